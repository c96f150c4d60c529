"""The chain of records in a segment that may be damaged: where it breaks, where it continues, and which messages
are concerned. Pure.

Unlike store/sealed_segment.py, which accepts whole segments only, the check continues after a damage at the next
record that carries its own log offset.
"""

import bisect
import contextlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from commitlogfs.store.record import (
    PROPERTY_CRC_BYTES,
    BlankRecordError,
    Record,
    RecordError,
    TruncatedRecordError,
    WrongOffsetError,
    decode,
    locate_parts,
    peek,
    property_crc_of,
)
from commitlogfs.store.record_layout import (
    BODY_AT,
    BODY_CRC_AT,
    BODY_LENGTH_AT,
    BORN_HOST_V6_BIT,
    FLAG_AT,
    IPV6_EXTRA,
    LARGEST_HEADER_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE_AND_MAGIC_BYTES,
    SMALLEST_RECORD_BYTES,
    STORE_HOST_V6_BIT,
    SYS_FLAG_AT,
)
from commitlogfs.store.scrub.verdict import MOST_MESSAGES, Damage, Message, Range
from commitlogfs.store.segment import BaseOffset

_HEAD_BYTES: Final = 4 << 20
"""Bytes of a damaged record that are kept to name its message."""
_SEARCHED_BYTES: Final = 1 << 16
"""Bytes of its body that are searched for the end of the body."""
_LARGEST_RECORD_BYTES: Final = 64 << 20
"""A record that claims to be larger is damaged: brokers accept requests of at most 16 MiB."""
_MOST_DAMAGES: Final = 10_000
"""If there are more, the last one reaches to the end: the segment holds something else than a log."""
_INT, _UNSIGNED, _LONG = struct.Struct(">i"), struct.Struct(">I"), struct.Struct(">q")
_LONGEST_TOPIC_BYTES: Final = 255
"""A longer topic is found only by its own length."""
_LONGEST_PROPERTIES_BYTES: Final = 0x7FFF
_TEXT: Final = re.compile(rb"[ -~]+")
_SLICE_BYTES: Final = 16 << 10
"""The most that one call searches: the daemon's other threads do not run meanwhile."""
_SMALL_RECORD_BYTES: Final = 16 << 10
"""A larger record is copied only if the lengths in it fit."""
_NAMED_RECORD_BYTES: Final = 16 << 10
"""In a larger record, a damaged byte of the message's name is not searched for."""
_MAGIC_BYTES: Final = 4
_MAGICS: Final = tuple(magic.to_bytes(_MAGIC_BYTES, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
_MASK: Final = 0x7FFFFFFF

Load = Callable[[], bytes]
"""The next bytes of the segment; empty at its end. Raises OSError."""
Pause = Callable[[], None]
"""Called before each slice that is searched. It may wait, and it raises whatever is to end the check."""


class Chain:
    """Result of a check."""

    def __init__(self) -> None:
        self.damages: list[Damage] = []
        self.has_end = False
        """Whether it ends with the blank record."""
        self.end = 0
        """Position after the last record."""


def _continue() -> None:
    """A pause of no length."""


def check_chain(
    load: Load,
    base_offset: BaseOffset,
    size: int,
    pause: Pause = _continue,
    *,
    present: int | None = None,
) -> Chain:
    """Follow the chain through the segment that `load` returns from its beginning on; all of it is loaded. Its file
    has the first `present` bytes of it; all, if that is None. Raises OSError."""
    check = _Check(load, base_offset, size, pause, size if present is None else present)
    check.run()
    return check.chain


def is_of_other_segment(head: bytes, base_offset: BaseOffset) -> bool:
    """Whether a file that begins with `head`, SYS_FLAG_AT bytes at least, begins with the record of another log
    offset."""
    (magic,) = _UNSIGNED.unpack_from(head, MAGIC_AT)
    (own_offset,) = _LONG.unpack_from(head, PHYSICAL_OFFSET_AT)
    return magic in (MAGIC_V1, MAGIC_V2) and own_offset != base_offset


class _Check:
    def __init__(self, load: Load, base_offset: BaseOffset, size: int, pause: Pause, present: int) -> None:
        self._load_more = load
        self._pause = pause
        self._base_offset = base_offset
        self._size = size
        self._present = present
        self._data = bytearray()
        """A window of the segment: what is loaded, from the record at hand on."""
        self._begin = 0
        """Position of the window's first byte."""
        self._broken: int | None = None
        """Position of the damage whose end is searched, as long as the window holds its beginning."""
        self._head = b""
        """Its first bytes, once the window has dropped them."""
        self._named = 0
        """Number of damages with a message."""
        self.chain = Chain()

    def run(self) -> None:
        position = 0
        while position < self._size:
            self._drop_before(position)
            try:
                data = self._record(position)
                record = decode(data, self._base_offset + position)
            except BlankRecordError as blank:
                if blank.size == self._size - position:
                    self.chain.has_end, self.chain.end = True, position
                    self._distrust_blank(position)
                    self._load_rest()
                    return
                reason = f"a blank record of {blank.size} bytes ends elsewhere"
            except RecordError as error:
                reason = str(error)
            else:
                end = position + record.total_size
                if not record.body_crc_ok or record.property_crc_ok is False:
                    if self._is_too_damaged():
                        self._give_up(position, "too many messages are damaged")
                        return
                    self._add(
                        position, end, "the checksum of the message is wrong", self._name(position, data, record)
                    )
                elif end > self._present:
                    self._add(position, end, "the file ends in the message", _message(position, record))
                position = end
                continue
            following = self._skip_damage(position, reason)
            if following is None:
                self.chain.end = position
                return
            position = following
        self.chain.end = self._size

    def _skip_damage(self, position: int, reason: str) -> int | None:
        """Record a break of the chain. Returns where the chain continues; None if nothing was ever written there,
        nor after it."""
        self._broken = position
        written = self._next_written(position)
        if written is None:  # a segment that was sealed early, or never written to
            return None
        if self._is_too_damaged():
            self._give_up(position, reason)
            return self._size
        end = self._next_record(max(position + 1, written - SIZE_AND_MAGIC_BYTES))
        length = end - position
        head = self._head if self._broken is None else bytes(self._loaded(position, min(length, _HEAD_BYTES)))
        self._broken, self._head = None, b""
        if end == self._size and _is_damaged_blank(head, length):
            self.chain.damages.append(Damage(Range(position, end), "the blank record is damaged", is_blank=True))
            return end
        message = name_message(head, length, self._base_offset, position, self._pause)
        self._add(position, end, reason, message)
        return end

    def _is_too_damaged(self) -> bool:
        return len(self.chain.damages) >= _MOST_DAMAGES

    def _give_up(self, position: int, reason: str) -> None:
        """Count the rest of the segment as damaged."""
        self._load_rest()
        self._add(position, self._size, reason, None)
        self.chain.end = self._size

    def _distrust_blank(self, position: int) -> None:
        """The blank record has no log offset. Without a sound record before it, it may be that of another segment,
        so that all that follows may be wrong, too."""
        damages = self.chain.damages
        if damages and damages[0].range == (0, position):
            damages[0] = replace(damages[0], range=Range(0, self._size))

    def _name(self, position: int, data: bytes, record: Record) -> Message | None:
        """The message of a record with a wrong checksum. If the record has a checksum of its own, and its body is
        right, the damage may be in the name: a byte of it with which the checksum is right is put right. Long
        records are not named then."""
        if not record.body_crc_ok or record.property_crc_ok is not False:
            return _message(position, record)
        if len(data) > _NAMED_RECORD_BYTES:
            return None
        if self._named >= MOST_MESSAGES:  # it is counted, and a verdict does not keep its name
            return _message(position, record)
        return _message(position, _with_right_name(data, record, self._pause))

    def _add(self, begin: int, end: int, reason: str, message: Message | None) -> None:
        self.chain.damages.append(Damage(Range(begin, end), reason, message))
        self._named += message is not None

    def _next_record(self, start: int) -> int:
        """Position of the first sound record, or blank record, at or after `start`; the segment's size if there is
        none."""
        search = start + MAGIC_AT
        while True:
            end = min(search + _SLICE_BYTES, self._begin + len(self._data) - _MAGIC_BYTES + 1)
            if search < end:
                self._pause()
                for at in self._magics(search, end):
                    if self._is_record(at - MAGIC_AT):
                        return at - MAGIC_AT
                search = end
            elif not self._load():
                return self._size
            self._drop_before(search - MAGIC_AT)

    def _magics(self, begin: int, end: int) -> Iterator[int]:
        """Positions of magic numbers that begin there, in ascending order.

        Each number has its own search, which continues after its last hit, so no byte is searched twice for it.
        """

        def find(magic: bytes, begin: int) -> int:
            at = self._data.find(magic, begin - self._begin, end + _MAGIC_BYTES - 1 - self._begin)
            return end if at < 0 else at + self._begin

        hits = [find(magic, begin) for magic in _MAGICS]
        while (at := min(hits)) < end:
            yield at
            which = hits.index(at)
            hits[which] = find(_MAGICS[which], at + 1)

    def _is_record(self, position: int) -> bool:
        try:
            decode(self._record(position), self._base_offset + position)
        except BlankRecordError as blank:
            return blank.size == self._size - position
        except RecordError:
            return False
        return True

    def _next_written(self, position: int) -> int | None:
        """Position of the first byte at or after `position` that is not zero; None if the rest is zeros."""
        at = position
        while True:
            part = self._data[at - self._begin : at - self._begin + _SLICE_BYTES]
            zeros = len(part) - len(part.lstrip(b"\0"))
            at += zeros
            if zeros < len(part):
                return at
            self._drop_before(at - SIZE_AND_MAGIC_BYTES)
            if not part and not self._load():
                return None

    # --- the window ----------------------------------------------------------------------------------

    def _record(self, position: int) -> bytes:
        """The bytes of the record that begins there. Raises RecordError."""
        length = peek(bytes(self._loaded(position, SIZE_AND_MAGIC_BYTES)))
        if position + length > self._size or length > _LARGEST_RECORD_BYTES:
            raise TruncatedRecordError(length, self._size - position)
        (own_offset,) = _LONG.unpack_from(self._loaded(position, SYS_FLAG_AT), PHYSICAL_OFFSET_AT)
        if own_offset != self._base_offset + position:
            raise WrongOffsetError(own_offset)
        if length > _SMALL_RECORD_BYTES:
            self._require_fitting_lengths(position, length)
        return bytes(self._loaded(position, length))

    def _require_fitting_lengths(self, position: int, length: int) -> None:
        """Raises DamagedRecordError, as `decode` does, if the parts of a record do not add up to its length. Only
        their lengths are read, and nothing after them is loaded."""
        header = bytes(self._loaded(position, LARGEST_HEADER_BYTES))
        extra = _ipv6_extra(header)
        (magic,) = _UNSIGNED.unpack_from(header, MAGIC_AT)
        (body_length,) = _INT.unpack_from(header, BODY_LENGTH_AT + extra)

        def read(part: slice) -> bytes:
            return bytes(self._loaded(position + part.start, part.stop - part.start))

        locate_parts(read, length, magic, BODY_AT + extra, body_length)

    def _loaded(self, position: int, length: int) -> bytearray:
        """The bytes there, fewer at the end of the segment."""
        while position + length > self._begin + len(self._data) and self._load():
            pass
        at = position - self._begin
        return self._data[at : at + length]

    def _drop_before(self, position: int) -> None:
        """In large steps: each one moves the rest of the window."""
        broken = self._broken
        if broken is not None and position < broken + _HEAD_BYTES:
            return
        at = position - self._begin
        if at > len(self._data) // 2:
            if broken is not None:
                self._head = bytes(self._loaded(broken, _HEAD_BYTES))
                self._broken = None
            del self._data[:at]
            self._begin = position

    def _load(self) -> bool:
        data = self._load_more()
        self._data += data
        return bool(data)

    def _load_rest(self) -> None:
        while self._load():
            self._begin += len(self._data)
            self._data.clear()


def _ipv6_extra(header: bytes) -> int:
    """Bytes by which hosts with IPv6 addresses make the header longer."""
    sys_flag = int.from_bytes(header[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big")
    return IPV6_EXTRA * ((sys_flag >> BORN_HOST_V6_BIT & 1) + (sys_flag >> STORE_HOST_V6_BIT & 1))


def _is_damaged_blank(head: bytes, length: int) -> bool:
    """Whether either size or magic of a blank record with this length is left. No message has one of them: after
    each there is room for a blank record."""
    if len(head) < SIZE_AND_MAGIC_BYTES:
        return False
    size, magic = int.from_bytes(head[:MAGIC_AT], "big"), int.from_bytes(head[MAGIC_AT:SIZE_AND_MAGIC_BYTES], "big")
    return size == length or magic == MAGIC_BLANK


def _with_right_name(data: bytes, record: Record, pause: Pause) -> Record:
    """The record with the one byte of topic, queue or queue offset with which its own checksum is right; as it is,
    if there is none: then the damage is in other bytes, as far as they are few."""
    (magic,) = _UNSIGNED.unpack_from(data, MAGIC_AT)
    body_at = BODY_AT + _ipv6_extra(data)
    (body_length,) = _INT.unpack_from(data, body_at - 4)
    _, topic, _ = locate_parts(data.__getitem__, len(data), magic, body_at, body_length)
    places = (
        *range(QUEUE_ID_AT, FLAG_AT),
        *range(QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT),
        *range(topic.start, topic.stop),
    )
    required, checked = property_crc_of(data), memoryview(data)[:-PROPERTY_CRC_BYTES]
    for at in places:
        pause()
        before, after = zlib.crc32(checked[:at]), checked[at + 1 :]
        for value in range(256):
            if zlib.crc32(after, zlib.crc32(bytes((value,)), before)) & _MASK == required:
                with contextlib.suppress(RecordError):
                    return decode(data[:at] + bytes((value,)) + data[at + 1 :], record.physical_offset)
    return record


def _message(position: int, record: Record) -> Message:
    return Message(position, record.topic, record.queue_id, record.queue_offset)


def name_message(
    data: bytes, length: int, base_offset: BaseOffset, position: int, pause: Pause = _continue
) -> Message | None:
    """The message whose damaged record has `length` bytes and begins with `data`; None if nothing of it is left, or
    if a sound record of another place in the log lies there.

    A record in which only size, magic or log offset is damaged is decoded with the right ones. Of others, queue and
    queue offset are read from their places, and the topic where the lengths leave only one place for it.
    """
    if len(data) < BODY_AT or not any(data[QUEUE_ID_AT:BODY_AT]):
        return None
    for magic in (MAGIC_V1, MAGIC_V2):
        patched = bytearray(data)
        patched[:MAGIC_AT] = length.to_bytes(4, "big")
        patched[MAGIC_AT : MAGIC_AT + 4] = magic.to_bytes(4, "big")
        _LONG.pack_into(patched, PHYSICAL_OFFSET_AT, base_offset + position)
        try:
            record = decode(bytes(patched), base_offset + position)
        except RecordError:
            continue
        if record.body_crc_ok or record.topic.isprintable():
            return _message(position, record)
    if not _is_header(data, base_offset, position) or _is_of_other_place(data, base_offset + position):
        return None
    (queue_id,) = _INT.unpack_from(data, QUEUE_ID_AT)
    (queue_offset,) = _LONG.unpack_from(data, QUEUE_OFFSET_AT)
    return Message(position, _topic(data, length, pause), queue_id, queue_offset)


def _is_of_other_place(data: bytes, log_offset: int) -> bool:
    (own_offset,) = _LONG.unpack_from(data, PHYSICAL_OFFSET_AT)
    if own_offset == log_offset:
        return False
    try:
        return decode(data, own_offset).body_crc_ok
    except RecordError:
        return False


def _is_header(data: bytes, base_offset: BaseOffset, position: int) -> bool:
    """Whether two of size, magic and log offset say that a record begins here."""
    magic = int.from_bytes(data[MAGIC_AT : MAGIC_AT + 4], "big")
    (own_offset,) = _LONG.unpack_from(data, PHYSICAL_OFFSET_AT)
    is_large_enough = int.from_bytes(data[:MAGIC_AT], "big") >= SMALLEST_RECORD_BYTES
    signs = (magic in (MAGIC_V1, MAGIC_V2), own_offset == base_offset + position, is_large_enough)
    return signs.count(True) >= 2


def _topic(data: bytes, length: int, pause: Pause) -> str:
    """The topic of a record with a damaged length of body, topic or properties; empty if it cannot be found."""
    if len(data) < length:  # its end shows whether the lengths fit
        return ""
    extra = _ipv6_extra(data)
    width = 2 if int.from_bytes(data[MAGIC_AT : MAGIC_AT + 4], "big") == MAGIC_V2 else 1
    body_at = BODY_AT + extra
    body_length = int.from_bytes(data[BODY_LENGTH_AT + extra : body_at], "big")
    topics = _Topics(data, length, width, body_at, pause)
    return topics.after_body_with_crc() or topics.at(body_at + body_length)


class _Topics:
    """Topics that a record may have, depending on where its body ends.

    Each position costs the same few steps, whatever the bytes are: a damaged body may have the record's CRC at each
    of its ends, and all bytes may look like a topic.
    """

    def __init__(self, data: bytes, length: int, width: int, body_at: int, pause: Pause) -> None:
        self._data = data
        self._width = width
        """Bytes of the topic's length."""
        self._body_at = body_at
        self._pause = pause
        self._latest_end = length - PROPERTIES_LENGTH_BYTES
        """The topic ends there at the latest."""
        self._fitting_ends: list[int] = []
        """Ends of a topic after which properties fit that reach to the end of the record, in ascending order."""
        self._fitting_from = length
        """They are known from there on."""
        self._text = range(0)
        """The text that was found last."""

    def after_body_with_crc(self) -> str:
        """The first topic after a body that has the record's CRC. Ends of the body are checked byte by byte, as its
        length is not known."""
        data = self._data
        required = int.from_bytes(data[BODY_CRC_AT : BODY_CRC_AT + 4], "big")
        crc = 0
        end = min(len(data), self._body_at + _SEARCHED_BYTES, self._latest_end - self._width)
        for part in self._slices(self._body_at, end):
            for at in part:
                if crc & _MASK == required and (topic := self.at(at)):
                    return topic
                crc = zlib.crc32(data[at : at + 1], crc)
        return ""

    def at(self, at: int) -> str:
        """The topic whose length field is there, if its end or the length of the properties fits; else empty.

        Of several ends with which the properties fit, the last one counts, and each of them more than the topic's
        own length.
        """
        begin = at + self._width
        if begin >= self._latest_end or not self._is_text(begin):
            return ""
        if begin < self._fitting_from:
            self._find_fitting_ends(begin)
        found = bisect.bisect_right(self._fitting_ends, min(begin + _LONGEST_TOPIC_BYTES, self._text.stop))
        end = self._fitting_ends[found - 1] if found else begin
        if end <= begin:
            end = begin + int.from_bytes(self._data[at:begin], "big")
        return self._data[begin:end].decode() if end <= min(self._text.stop, self._latest_end) else ""

    def _is_text(self, at: int) -> bool:
        """Whether printable ASCII lies there; then `_text` is all of it from there on."""
        if at not in self._text:
            found = _TEXT.match(self._data, at)
            self._text = range(0) if found is None else range(*found.span())
        return at in self._text

    def _find_fitting_ends(self, begin: int) -> None:
        data, latest = self._data, self._latest_end
        self._fitting_from = begin
        self._fitting_ends = [
            at
            for part in self._slices(max(begin, latest - _LONGEST_PROPERTIES_BYTES), latest + 1)
            for at in part
            if data[at] << 8 | data[at + 1] == latest - at
        ]

    def _slices(self, begin: int, end: int) -> Iterator[range]:
        for at in range(begin, end, _SLICE_BYTES):
            self._pause()
            yield range(at, min(at + _SLICE_BYTES, end))
