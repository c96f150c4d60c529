"""Proves that a log is the one that was read before: a remembered position keeps a digest of a message next to it.

The first bytes of a message have its log offset, its queue offset, its store time, the address of its producer and
the CRC of its body, so another log has other bytes at the same place. A broker only appends to a log, or cuts off
its end. So what a log was and what it is now are the same up to some log offset, and differ from there on: one
message that is still at its place proves everything before it, and the last one of many is enough.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from commitlogfs.pipeline.arrays.walk import Ended, find, walk
from commitlogfs.pipeline.log.errors import SegmentGoneError
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile, SegmentReader, open_segment, read_at
from commitlogfs.store.record_layout import SMALLEST_RECORD_BYTES

_BYTES: Final = 256
"""Number of bytes of a message that are compared: its header, and the beginning of its body."""
_NEAR_BYTES: Final = 4 << 10
_FARTHEST_BYTES: Final = 16 << 20
"""The last message before a place is searched in the last `_NEAR_BYTES` first, and in no more than these."""
_STEP: Final = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """SHA-256 of the bytes [offset, offset + length) of a log: the beginning of a message."""

    offset: int
    length: int
    digest: str

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Self:
        """From the fields of `asdict`. Raises TypeError, ValueError."""
        return cls(int(document["offset"]), int(document["length"]), str(document["digest"]))

    @property
    def end_offset(self) -> int:
        return self.offset + self.length


def fingerprints_of_range(
    listing: LogListing, start: int, end: int, log_end: int | None = None
) -> tuple[Fingerprint, ...]:
    """Fingerprints of the first and of the last message of [start, end), which a message or the log ends at.

    If a segment ends at `end`, and the log only at `log_end`, also of the message after it: the others may be
    deleted with their segments. Reads 4 KiB, more if the last message is longer or a blank record follows it.
    Raises SegmentGoneError, LocationError.
    """
    segment = _segment_at(listing, start) if start < end else None
    if segment is None:
        return ()
    with open_segment(segment) as reader:
        first = _fingerprint(segment, reader, start - segment.base_offset, min(end, segment.end_offset))
    found = [first, fingerprint_before(listing, end)]
    after = _segment_at(listing, end)
    if log_end is not None and log_end > end and after is not None and after.base_offset == end:
        with open_segment(after) as reader:
            found.append(_fingerprint(after, reader, 0, min(log_end, after.end_offset)))
    return tuple(dict.fromkeys(one for one in found if one is not None))


def fingerprint_before(listing: LogListing, place: int) -> Fingerprint | None:
    """Fingerprint of the last message before `place`, where a message begins or the log ends; None if the log has
    nothing before it. Raises SegmentGoneError, LocationError."""
    segment = _segment_at(listing, place - 1)
    if segment is None:
        return None
    stop = place - segment.base_offset
    with open_segment(segment) as reader:
        at = _last_record(segment, reader, stop)
        # A damaged range of many megabytes is before the place: its last bytes are as good.
        return _fingerprint(segment, reader, max(0, stop - _BYTES) if at is None else at, place)


def is_same(listing: LogListing, fingerprint: Fingerprint) -> bool | None:
    """Whether the log has this message at its place; None if no segment holds the place any more: the message was
    deleted, or its disk is missing. One read of 256 bytes. Raises LocationError."""
    segment = _segment_at(listing, fingerprint.offset)
    if segment is None or segment.end_offset < fingerprint.end_offset:
        return None
    try:
        with open_segment(segment) as reader:
            found = _fingerprint(segment, reader, fingerprint.offset - segment.base_offset, fingerprint.end_offset)
    except SegmentGoneError:
        return None
    return found == fingerprint


def first_difference(listing: LogListing, end: int, remembered: Iterable[Fingerprint]) -> Fingerprint | None:
    """The first of these messages that is not in the log any more, though the log, which ends at `end`, has another
    one there; None if all are there that the log could have.

    One read if nothing differs, however many are remembered; else some more, by a binary search. Raises
    LocationError.
    """
    ordered = sorted({*remembered}, key=lambda one: one.offset)
    while ordered:
        same = is_same(listing, ordered[-1]) if ordered[-1].end_offset <= end else None
        if same is None:
            ordered.pop()  # it was deleted, or the log ends before it
        elif same:
            return None
        else:
            return ordered[bisect_left(ordered[:-1], True, key=lambda one: is_same(listing, one) is False)]
    return None


def _segment_at(listing: LogListing, offset: int) -> SegmentFile | None:
    segments = listing.segments
    index = bisect_left(segments, offset + 1, key=lambda one: one.base_offset) - 1
    return segments[index] if index >= 0 and offset < segments[index].end_offset else None


def _fingerprint(segment: SegmentFile, reader: SegmentReader, position: int, stop_offset: int) -> Fingerprint:
    offset = segment.base_offset + position
    data = read_at(reader, position, min(_BYTES, stop_offset - offset))
    return Fingerprint(offset, len(data), hashlib.sha256(data.tobytes()).hexdigest())


def _last_record(segment: SegmentFile, reader: SegmentReader, stop: int) -> int | None:
    """Position of the last record that begins before `stop`; None if none is near."""
    span = _NEAR_BYTES
    while True:
        start = max(0, stop - span)
        found = _last_in(segment, reader, start, stop)
        if found is not None or not start or span >= _FARTHEST_BYTES:
            return found
        span *= _STEP


def _last_in(segment: SegmentFile, reader: SegmentReader, start: int, stop: int) -> int | None:
    data = read_at(reader, start, stop - start)
    offset, room = segment.base_offset + start, segment.size - start
    positions = np.empty(len(data) // SMALLEST_RECORD_BYTES + 1, np.int64)
    last, at = None, 0
    while at < len(data):
        found = find(data, offset, at, len(data), room)
        at = found.position
        if found.found:
            walked = walk(data, offset, at, len(data), room, positions)
            last = start + int(positions[walked.records - 1]) if walked.records else last
            at = walked.position
            if walked.ended is Ended.BLANK:
                break  # after the blank record there may be records of an earlier use
        at += 1
    return last
