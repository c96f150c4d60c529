"""Walks from record to record over raw bytes, and finds the first record after a gap. Compiled.

The layout is that of `store.record_layout`. `store.record` decodes one record for people; here records are only
checked. Bytes count as a record if TOTALSIZE fits the segment, the magic is V1 or V2, PHYSICALOFFSET is the log
offset of these bytes, and the lengths inside add up to TOTALSIZE (as CommitLog#checkMessageAndReturnSize, and
stricter by the offset). Every index is checked before it is used: the bytes may be anything.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import i16, i32, i64, u32, word
from commitlogfs.store.record_layout import (
    BODY_AT,
    BORN_HOST_V6_BIT,
    END_BLANK_BYTES,
    IPV6_EXTRA,
    LARGEST_V1_TOPIC_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    SIZE_AND_MAGIC_BYTES,
    SMALLEST_RECORD_BYTES,
    STORE_HOST_V6_BIT,
    SYS_FLAG_AT,
)


class Ended(IntEnum):
    """Reason why a walk ended at its position."""

    STOP = 0
    """The next record begins at or after the stop."""
    MORE = 1
    """The record there needs more bytes than are in the buffer."""
    BLANK = 2
    """The blank record that fills the rest of the segment, or the segment's end."""
    UNWRITTEN = 3
    """Eight bytes of zero: nothing was written there."""
    OTHER = 4
    """Bytes that are neither a record, nor the blank record, nor zero."""
    ELSEWHERE = 5
    """A header that is valid but has another log offset: data of an earlier use."""
    BROKEN = 6
    """A header with this log offset whose lengths contradict each other or the segment's size."""
    FULL = 7
    """The array of positions is full."""


REASONS = {
    Ended.UNWRITTEN: "nothing is written here, although the log continues",
    Ended.OTHER: "no record begins here",
    Ended.ELSEWHERE: "the record here has another log offset",
    Ended.BROKEN: "the lengths in the record here contradict each other",
}

# Compiled code handles numbers, not enumerations.
_STOP = int(Ended.STOP)
_MORE = int(Ended.MORE)
_BLANK = int(Ended.BLANK)
_UNWRITTEN = int(Ended.UNWRITTEN)
_OTHER = int(Ended.OTHER)
_ELSEWHERE = int(Ended.ELSEWHERE)
_BROKEN = int(Ended.BROKEN)
_FULL = int(Ended.FULL)
_RECORD = -1
"""The verdict on a position where a whole record begins."""

_SHIFTS = np.full(256, 4, np.uint8)
"""For each value of the last byte of a magic: the distance to the next possible magic (Boyer-Moore-Horspool)."""
for _magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
    for _byte, _shift in zip(_magic.to_bytes(4, "big"), (3, 2, 1, 0), strict=True):
        _SHIFTS[_byte] = min(_SHIFTS[_byte], _shift)


class Walk(NamedTuple):
    """`records` were found; the walk ended at `position`, and needs `needed` bytes from there to continue."""

    records: int
    ended: Ended
    position: int
    needed: int


class Found(NamedTuple):
    """`found`: whether there is a record at or after the start; `position`: where it begins, or the end of the
    range without one; `needed`: bytes from there on that are required for a decision (0: none)."""

    found: bool
    position: int
    needed: int


def walk(data: Bytes, offset: int, start: int, stop: int, room: int, positions: Longs) -> Walk:
    """Walks from record to record, from `start` to the last one that begins before `stop`. Positions count from
    data[0].

    `offset`: log offset of data[0]. `room`: end of the segment, counted from data[0]; it may lie after the buffer.
    Fills `positions`.
    """
    count, ended, position, needed = _walk(data, offset, start, stop, room, positions)
    return Walk(count, Ended(ended), position, needed)


def find(data: Bytes, offset: int, start: int, stop: int, room: int) -> Found:
    """The first position in [start, stop) where a record or the segment's blank record begins."""
    found, position, needed = _find(data, offset, start, stop, room)
    return Found(bool(found), position, needed)


@compiled
def _verdict_on(data: Bytes, offset: Scalar, at: Scalar, room: Scalar) -> tuple[Scalar, Scalar]:
    """The verdict on `at`: (_RECORD, its size), (Ended.MORE, bytes needed), or (another Ended, 0)."""
    left = room - at
    if left == 0:
        return _BLANK, 0
    if left < SIZE_AND_MAGIC_BYTES:
        return _OTHER, 0
    given = data.size - at
    if given < SIZE_AND_MAGIC_BYTES:
        return _MORE, SIZE_AND_MAGIC_BYTES
    size = i32(data, at)
    magic = u32(data, at + MAGIC_AT)
    if magic == MAGIC_BLANK:
        return (_BLANK, 0) if size == left else (_BROKEN, 0)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return (_UNWRITTEN, 0) if size == 0 and magic == 0 else (_OTHER, 0)
    if left < SMALLEST_RECORD_BYTES:
        return _BROKEN, 0
    if given < SMALLEST_RECORD_BYTES:
        return _MORE, SMALLEST_RECORD_BYTES
    if i64(data, at + PHYSICAL_OFFSET_AT) != offset + at:
        return _ELSEWHERE, 0
    if size < SMALLEST_RECORD_BYTES or size > left - END_BLANK_BYTES:
        return _BROKEN, 0
    flags = i32(data, at + SYS_FLAG_AT)
    before_body = BODY_AT + IPV6_EXTRA * (((flags >> BORN_HOST_V6_BIT) & 1) + ((flags >> STORE_HOST_V6_BIT) & 1))
    topic_bytes = 1 if magic == MAGIC_V1 else 2
    if before_body + topic_bytes + PROPERTIES_LENGTH_BYTES > size:
        return _BROKEN, 0
    if given < before_body:
        return _MORE, before_body
    body = i32(data, at + before_body - 4)
    if body < 0 or body > size - before_body - topic_bytes - PROPERTIES_LENGTH_BYTES:
        return _BROKEN, 0
    if given < size:
        return _MORE, size
    topic_at = at + before_body + body
    if topic_bytes == 1:
        topic: Scalar = np.int64(data[topic_at])
        if topic > LARGEST_V1_TOPIC_BYTES:
            return _BROKEN, 0
    else:
        topic = i16(data, topic_at)
        if topic < 0:
            return _BROKEN, 0
    if topic > size - before_body - body - topic_bytes - PROPERTIES_LENGTH_BYTES:
        return _BROKEN, 0
    properties = i16(data, topic_at + topic_bytes + topic)
    if properties < 0 or before_body + body + topic_bytes + topic + PROPERTIES_LENGTH_BYTES + properties != size:
        return _BROKEN, 0
    return _RECORD, size


@compiled
def _walk(
    data: Bytes, offset: Scalar, start: Scalar, stop: Scalar, room: Scalar, positions: Longs
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    count = 0
    at = start
    while at < stop:
        verdict, size = _verdict_on(data, offset, at, room)
        if verdict != _RECORD:
            return count, verdict, at, size
        if count == positions.size:
            return count, _FULL, at, 0
        positions[count] = at
        count += 1
        at += size
    return count, _STOP, at, 0


@compiled
def _find(data: Bytes, offset: Scalar, start: Scalar, stop: Scalar, room: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    at: Scalar = start
    last = min(stop, room - 7, data.size - 7)
    while at < last:
        shift = _SHIFTS[data[at + 7]]
        if shift:
            at += shift
            # A magic contains no zero, and unwritten ranges are long.
            while at + 32 <= data.size and not (
                word(data, at) | word(data, at + 8) | word(data, at + 16) | word(data, at + 24)
            ):
                at += 28
            continue
        magic = u32(data, at + MAGIC_AT)
        if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            verdict, needed = _verdict_on(data, offset, at, room)
            if verdict in (_RECORD, _BLANK):
                return 1, at, 0
            if verdict == _MORE:
                return 0, at, needed
        at += 1
    if at < min(stop, room - 7):
        return 0, at, SIZE_AND_MAGIC_BYTES  # the buffer ended before the range
    return 0, stop, 0
