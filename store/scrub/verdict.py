"""Verdict on a damaged segment, and its form in an extended attribute of the segment's file. Pure.

There are two witnesses. The checksum of the whole file shows that anything has changed since the segment was
sealed. RocketMQ's chain of records with their body CRCs shows whether the messages are whole.

    checksum differs   a message is damaged   verdict
    yes                yes                    rotted
    yes                no                     header-or-padding: only bytes for which RocketMQ has no checksum,
                                              or the blank record at the end
    no, or no checksum yes                    written-broken
    cannot be read                            unreadable
    (a write has failed, no scrub)            write-lost

A file that is shorter than a segment differs, even without a checksum, and counts as one with zeros at its end.
What lies past the end of a longer file is no part of the segment.

The attribute is, in little-endian order: the version of this format (1 byte), the CRC-32 of the rest (4 bytes), and
compact JSON of at most MOST_BYTES, with positions in the segment. Its key `sealed_broken` is optional. A version
that does not know the key ignores it, and leaves it out when it writes the verdict anew: then a right copy may be
refused, and only one of the broken content that was sealed is accepted.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final, NamedTuple

FORMAT_VERSION: Final = 1
MOST_BYTES: Final = 1200
"""Size of the JSON: unreadable ranges of the same file may take half of the 4 KiB that ext4 has for attributes."""
MOST_RANGES: Final = 16
MOST_MESSAGES: Final = 8
_MOST_TOPIC_CHARACTERS: Final = 127
_HEAD: Final = struct.Struct("<BI")
_LONGEST: Final = (1 << 63) - 1
_LONGEST_INT: Final = (1 << 31) - 1
_LATEST_S: Final = 1 << 37
"""A later time, after the year 6000, cannot be shown in all forms."""


class Kind(Enum):
    """Kinds of damage. The values are stable: they are in attributes, metrics and `--json`."""

    ROTTED = "rotted"
    """The content was right when the segment was sealed, and a message is damaged now."""
    WRITTEN_BROKEN = "written-broken"
    """A message was damaged already when the segment was sealed, or nothing tells since when it is."""
    HEADER_OR_PADDING = "header-or-padding"
    """The content has changed since the segment was sealed, but no byte for which RocketMQ has a checksum, or only
    the blank record at the end."""
    UNREADABLE = "unreadable"
    """A disk could not read a part of it. If it was moved from that disk, it has zeros there."""
    WRITE_LOST = "write-lost"
    """The disk has refused what was written to it (store/disks/lost_writes.py): memory may show what it lacks."""
    UNKNOWN = "unknown"
    """There is a record of damage that cannot be read: it is damaged itself, or of a newer version; or the segment
    was moved from a disk that could not read whether there is one, or the checksum."""

    @property
    def keeps_checksum(self) -> bool:
        """Whether the content is not what was sealed: it gets no checksum, and the one that the segment had then
        still shows which copy is right, even if the file has another inode or mtime since."""
        return self is not Kind.WRITTEN_BROKEN

    @property
    def is_mismatch(self) -> bool:
        """Whether the content is known not to be what was sealed: the segment's checksum was valid when the damage
        was found, unless the file was too short, and is bound to the file anew when that changes. A segment that
        cannot be read, or has lost writes, may have been written to before."""
        return self in (Kind.ROTTED, Kind.HEADER_OR_PADDING)


_SEVERITY: Final = (
    Kind.WRITE_LOST,
    Kind.ROTTED,
    Kind.UNREADABLE,
    Kind.WRITTEN_BROKEN,
    Kind.HEADER_OR_PADDING,
    Kind.UNKNOWN,
)


class Range(NamedTuple):
    """Positions [begin, end) in a segment."""

    begin: int
    end: int


class Message(NamedTuple):
    """A damaged message, as far as its record tells."""

    position: int
    """Where its record begins in the segment."""
    topic: str
    """Empty if it cannot be read."""
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the chain of records that is not right."""

    range: Range
    reason: str
    message: Message | None = None
    """The message that begins there, if its record still tells."""
    is_blank: bool = False
    """Whether only the blank record at the end is damaged, and no message."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Result of a complete read of a segment."""

    differs: bool
    """Whether the content is known to have changed: the segment has a valid checksum, and its content another one;
    or its file is too short."""
    unreadable: tuple[Range, ...]
    """Ranges that the disk cannot read, and those that a move could not read, and that are zeros since."""
    damages: tuple[Damage, ...]
    """Damaged parts of the chain."""
    has_end: bool
    """Whether the chain ends with its blank record. Without one, the rest of the segment is zeros."""
    chain_end: int
    """Position after the last record."""
    size: int
    is_as_sealed: bool = False
    """Whether the segment has a valid checksum, and its content that one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: Kind
    since_s: int
    """When the damage was found: seconds since 1970."""
    ranges: tuple[Range, ...]
    """Where the damage is, in ascending order; at most MOST_RANGES."""
    messages: tuple[Message, ...] = ()
    """At most MOST_MESSAGES of the damaged messages."""
    message_count: int = 0
    """Number of damaged messages that could be named."""
    is_located: bool = True
    """False if the damage may be anywhere in the ranges."""
    was_sealed_broken: bool = False
    """Whether a message was certainly damaged already when the segment was sealed, whatever has become of it since:
    its checksum is that of the broken content."""


def decide(evidence: Evidence, now_s: int) -> Verdict | None:
    """The verdict; None if the segment is right, as far as its witnesses tell."""
    kind = _kind(evidence)
    if kind is None:
        return None
    damages, whole = evidence.damages, Range(0, evidence.size)
    ranges = [*evidence.unreadable, *(damage.range for damage in damages)]
    if kind is Kind.ROTTED and not ranges:
        ranges = [Range(evidence.chain_end, evidence.size)]
    named = tuple(damage.message for damage in damages if damage.message is not None)
    return Verdict(
        kind,
        now_s,
        limit_ranges(ranges or [whole], MOST_RANGES),
        named[:MOST_MESSAGES],
        len(named),
        is_located=bool(ranges),
        was_sealed_broken=kind is Kind.WRITTEN_BROKEN and evidence.is_as_sealed,
    )


def whole_verdict(kind: Kind, size: int, now_s: int) -> Verdict:
    """The verdict if it is not known where the damage is."""
    return Verdict(kind, now_s, (Range(0, size),), is_located=False)


def unreadable_verdict(ranges: Iterable[tuple[int, int]], now_s: int) -> Verdict:
    """The verdict if these ranges [begin, end), at least one, could not be read."""
    return Verdict(Kind.UNREADABLE, now_s, limit_ranges([Range(*one) for one in ranges], MOST_RANGES))


def _kind(evidence: Evidence) -> Kind | None:
    if evidence.unreadable:
        return Kind.UNREADABLE
    if not evidence.differs:
        return Kind.WRITTEN_BROKEN if evidence.damages else None
    has_damaged_end = any(damage.is_blank for damage in evidence.damages)
    if not all(damage.is_blank for damage in evidence.damages):
        return Kind.ROTTED
    # A changed segment that ends in zeros has lost its blank record, and perhaps messages before it.
    return Kind.HEADER_OR_PADDING if evidence.has_end or has_damaged_end else Kind.ROTTED


def limit_ranges(ranges: Sequence[Range], most: int) -> tuple[Range, ...]:
    """The ranges in ascending order; those that touch become one, and of more than `most` the nearest."""
    merged: list[Range] = []
    for found in sorted(ranges):
        if merged and found.begin <= merged[-1].end:
            merged[-1] = Range(merged[-1].begin, max(merged[-1].end, found.end))
        else:
            merged.append(found)
    while len(merged) > most:
        gaps = [after.begin - before.end for before, after in pairwise(merged)]
        at = gaps.index(min(gaps))
        merged[at : at + 2] = [Range(merged[at].begin, merged[at + 1].end)]
    return tuple(merged)


def combine(former: Verdict | None, found: Verdict) -> Verdict:
    """The verdict on a segment that has `former` already: nothing that was found before is lost, but a verdict that
    names no place gives way to one that does, or that comes from a closer examination."""
    if former is None:
        return found
    kind = _combined_kind(former, found)
    was_sealed_broken = former.was_sealed_broken or found.was_sealed_broken
    was_sealed_broken |= former.kind is Kind.WRITTEN_BROKEN is not kind  # the same again says nothing more
    if not former.is_located and found.kind.is_mismatch:
        return replace(found, since_s=former.since_s, was_sealed_broken=was_sealed_broken)
    located = [verdict for verdict in (former, found) if verdict.is_located] or [found]
    messages = tuple(sorted({message for verdict in located for message in verdict.messages}))
    return Verdict(
        kind,
        former.since_s,
        limit_ranges([one for verdict in located for one in verdict.ranges], MOST_RANGES),
        messages[:MOST_MESSAGES],
        max(len(messages), *(verdict.message_count for verdict in located)),
        is_located=located[0].is_located,
        was_sealed_broken=was_sealed_broken,
    )


def _combined_kind(former: Verdict, found: Verdict) -> Kind:
    if former.kind.is_mismatch and found.kind is Kind.WRITTEN_BROKEN:
        return Kind.ROTTED  # it differs from its checksum of then, and now a message is damaged
    return min(former.kind, found.kind, key=_SEVERITY.index)


# --- the attribute ---------------------------------------------------------------------------------------


def format_verdict(verdict: Verdict) -> bytes:
    """Messages that do not fit are left out, the last first; `message_count` still counts them."""
    messages, most = list(verdict.messages), MOST_RANGES
    while True:
        body = _body(replace(verdict, messages=tuple(messages), ranges=limit_ranges(verdict.ranges, most)))
        if len(body) <= MOST_BYTES or (not messages and most == 1):
            return _HEAD.pack(FORMAT_VERSION, zlib.crc32(body)) + body
        if messages:
            messages.pop()
        else:
            most //= 2


def shortest(verdict: Verdict) -> Verdict:
    """The verdict with one range and without messages, for a disk that has no room for more."""
    return replace(verdict, ranges=limit_ranges(verdict.ranges, 1), messages=())


def parse_recorded(raw: bytes | None, size: int, now_s: float) -> Verdict | None:
    """The verdict in the attribute of a file of this size, empty without one. UNKNOWN, as of `now_s`, if it cannot
    be parsed, or, as None stands for, cannot be read."""
    if raw == b"":
        return None
    verdict = None if raw is None else parse_verdict(raw)
    return whole_verdict(Kind.UNKNOWN, size, round(now_s)) if verdict is None else verdict


def kinds_of(known: Kind | None, raw: bytes) -> list[Kind]:
    """How a segment is damaged: as far as is known, and as the attribute of its file says, empty without one. Each
    of the two may lack what the other one knows."""
    recorded = parse_recorded(raw, 0, 0.0)
    return [kind for kind in (known, None if recorded is None else recorded.kind) if kind is not None]


def parse_verdict(raw: bytes) -> Verdict | None:
    """None for a damaged value, for one of another version, and for one that no version writes."""
    if len(raw) < _HEAD.size:
        return None
    version, crc = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size :]
    if version != FORMAT_VERSION or crc != zlib.crc32(body):
        return None
    try:
        document = json.loads(body)
        verdict = Verdict(
            Kind(document["kind"]),
            document["since"],
            tuple(Range(begin, end) for begin, end in document["ranges"]),
            tuple(Message(at, topic, queue, offset) for at, topic, queue, offset in document["messages"]),
            document["count"],
            is_located=document["located"],
            was_sealed_broken=document.get("sealed_broken", False),
        )
        return verdict if _is_valid(verdict) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_valid(verdict: Verdict) -> bool:
    """Whether the values, which come from JSON, are those of a verdict."""
    ends = [0, *(at for one in verdict.ranges for at in one)]
    return (
        _is_integer(verdict.since_s, 0, _LATEST_S)
        and 0 < len(verdict.ranges) <= MOST_RANGES
        and all(_is_integer(end, 0, _LONGEST) for end in ends)
        and ends == sorted(ends)
        and len(verdict.messages) <= MOST_MESSAGES
        and all(map(_is_message, verdict.messages))
        and _is_integer(verdict.message_count, len(verdict.messages), _LONGEST)
        and isinstance(verdict.is_located, bool)
        and isinstance(verdict.was_sealed_broken, bool)
    )


def _is_message(message: Message) -> bool:
    """Raises UnicodeEncodeError for a topic that cannot be written anywhere."""
    return (
        isinstance(message.topic, str)
        and len(message.topic.encode()) <= MOST_BYTES
        and _is_integer(message.position, 0, _LONGEST)
        and _is_integer(message.queue_id, -_LONGEST_INT - 1, _LONGEST_INT)
        and _is_integer(message.queue_offset, -_LONGEST - 1, _LONGEST)
    )


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _body(verdict: Verdict) -> bytes:
    document: dict[str, Any] = {
        "kind": verdict.kind.value,
        "since": verdict.since_s,
        "ranges": verdict.ranges,
        "messages": [
            (at, topic[:_MOST_TOPIC_CHARACTERS], queue, offset) for at, topic, queue, offset in verdict.messages
        ],
        "count": verdict.message_count,
        "located": verdict.is_located,
    }
    if verdict.was_sealed_broken:
        document["sealed_broken"] = True
    return json.dumps(document, separators=(",", ":")).encode()
