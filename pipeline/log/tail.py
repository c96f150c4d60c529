"""Finds the end of a log that a broker may be writing at the same time.

After the last record there may be any bytes: zeros, or data of an earlier use, including records of a log that a
broker truncated after a crash. So the end is found by walking forward in the one segment that must contain it.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.arrays.walk import REASONS, Ended, walk
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile, SegmentReader, open_segment, read_at
from commitlogfs.pipeline.log.window import Window
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.record import SysFlag
from commitlogfs.store.record_layout import BODY_AT, IPV6_EXTRA, PHYSICAL_OFFSET_AT, STORE_TIMESTAMP_AT, SYS_FLAG_AT

SETTLE_S = 0.2
_BEGIN_BYTES = 1 << 20
_BEFORE = 8
"""Number of records before a damaged place whose store times are compared with those of the records after it."""
_AFTER = 32
"""Number of records after a damaged place whose store times decide whether they belong to the log."""


def find_end(
    listing: LogListing,
    *,
    known: int = 0,
    settle_s: float = SETTLE_S,
    search_bytes: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """The log offset after the last whole record; 0 for a log without records.

    `known`: a place where a record begins, or where the log ended earlier; nothing before it is read. A record that
    no other record follows counts once it has not changed for `settle_s` and does not end in zero: a broker may
    still be writing it, and writes its header first. Damage inside the segment does not end the log; readers of the
    records report it. To find records after damage, the search goes on to the segment's end, most of which may be
    zeros, or covers `search_bytes`: a caller that repeats the call reaches the rest later. `unread_end.find_unread`
    reports data after the end that is not read. Raises SegmentGoneError, LocationError.
    """
    segments = [segment for segment in listing.segments if segment.end_offset > known]
    index = len(segments) - 1
    while index > 0 and not is_begun(segments[index]):
        index -= 1
    if index < 0:
        return known
    end = _end_in(segments[index], known, settle_s, search_bytes, clock)
    # After a full segment the log continues in the next one, whose first megabytes may be damaged.
    while index + 1 < len(segments) and end == segments[index].end_offset:
        index += 1
        if not is_begun(segments[index], search_bytes or segments[index].size):
            break
        end = _end_in(segments[index], known, settle_s, search_bytes, clock)
    return end


def _end_in(segment: SegmentFile, known: int, settle_s: float, search_bytes: int | None, clock: Clock) -> int:
    with open_segment(segment) as reader:
        tail = _Tail(segment, reader, settle_s, search_bytes, clock)
        return segment.base_offset + tail.find(max(0, known - segment.base_offset))


class _Tail:
    """The search in one segment. Positions count from the segment's first byte."""

    def __init__(
        self,
        segment: SegmentFile,
        reader: SegmentReader,
        settle_s: float,
        search_bytes: int | None,
        clock: Clock,
    ) -> None:
        self._segment, self._reader, self._settle_s, self._clock = segment, reader, settle_s, clock
        self._search_bytes = segment.size if search_bytes is None else search_bytes
        self._window = Window(segment, reader)
        self._begin = 0
        self._recent: deque[int] = deque(maxlen=_BEFORE)
        """Store times of the last records since `_begin`."""

    def find(self, at: int) -> int:
        size, newest, needed = self._segment.size, -1, 0
        self._begin = at
        while True:
            self._window.load(at, needed)
            positions, walked = self._window.walk(at, size)
            if len(positions):
                newest = self._window.begin + int(positions[-1])
                self._recent.extend(_store_times(self._window.data, positions[-_BEFORE:]))
            at, needed = walked.position, walked.needed
            if walked.ended in (Ended.MORE, Ended.FULL):
                continue
            if walked.ended not in REASONS:
                return size
            following = self._follows(at)
            if following is None:
                return self._settled(newest, at) if newest >= 0 else at
            at, needed = following, 0

    def _follows(self, at: int) -> int | None:
        """Position where the log continues after `at`, which is not a record; None if it does not continue.

        Records that were stored before those before `at` remain from before a broker truncated the log. A store
        time may be damaged, too, so several records on both sides decide. If these do not agree, no record after
        `at` is read, and `unread_end` reports them.
        """
        stop = min(self._segment.size, at + self._search_bytes)
        following = self._window.find(at, stop)
        if following is None:
            return None
        # A later record proves that everything before it is written: `at` may have become a record meanwhile.
        if self._window.find(at, at + 1) == at:
            return at
        newest_ms = self._newest_ms()
        after = self._times_after(following, stop)
        if newest_ms is None:
            return following
        if not after:
            # The blank record has no store time. It may also remain after the last of the old records.
            return following if begins_here(self._segment, self._reader, at, newest_ms) else None
        return following if 2 * sum(time >= newest_ms for time in after) > len(after) else None

    def _newest_ms(self) -> int | None:
        """Store time of the last record, ignoring a time that does not fit those of the other records."""
        times = list(self._recent)
        if len(times) < _BEFORE and self._begin:
            times = [*_times_before(self._segment, self._begin), *times][-_BEFORE:]
        return _last_in_order(times)

    def _times_after(self, at: int, stop: int) -> list[int]:
        """Store times of the first records from `at` on, without damaged ranges."""
        times: list[int] = []
        place: int | None = at
        while place is not None and len(times) < _AFTER:
            self._window.load(place)
            positions, walked = self._window.walk(place, stop)
            times += _store_times(self._window.data, positions[:_AFTER])
            if walked.ended is Ended.MORE:
                self._window.load(walked.position, walked.needed)
                positions, walked = self._window.walk(walked.position, walked.position + 1)
                times += _store_times(self._window.data, positions)
            elif walked.ended not in REASONS and walked.ended is not Ended.FULL:
                break
            place = self._window.find(walked.position, stop)
        return times[:_AFTER]

    def _settled(self, newest: int, end: int) -> int:
        """`end`, once the record before it no longer changes."""
        before = read_at(self._reader, newest, end - newest)
        while True:
            self._clock.sleep(self._settle_s)
            now = read_at(self._reader, newest, end - newest)
            if self._window.find(end, end + 1) == end:
                return end
            if np.array_equal(before, now):
                return end if self._ends_well(now, newest) else newest
            before = now

    def _ends_well(self, record: Bytes, at: int) -> bool:
        """Whether the last bytes of the record are written. A broker copies a record from front to back, and a slow
        disk may delay the rest for any time. The last field, the properties, is text, so it does not end in
        zero."""
        place = np.empty(1, np.int64)
        # The record is read again, so its lengths are checked again.
        walked = walk(record, self._segment.base_offset + at, 0, 1, self._segment.size - at, place)
        if (walked.records, walked.position) != (1, len(record)):
            return False
        return has_its_end(record)


def has_its_end(record: Bytes) -> bool:
    """Whether the last bytes of a record whose lengths are checked were written: see `find_end`."""
    return bool(record[-1]) or not record_fields(record, np.zeros(1, np.int64)).properties_length[0]


def _store_times(data: Bytes, positions: Longs) -> list[int]:
    times: list[int] = record_fields(data, positions).store_ms.tolist() if len(positions) else []
    return times


def _last_in_order(times: Sequence[int]) -> int | None:
    """The last element of the longest subsequence of `times` that never falls; the latest of several."""
    best: list[tuple[int, int]] = []
    for time_ms in times:
        length = 1 + max((known for known, last in best if last <= time_ms), default=0)
        best.append((length, time_ms))
    return max(best)[1] if best else None


@lru_cache(maxsize=16)
def _times_before(segment: SegmentFile, end: int) -> tuple[int, ...]:
    """Store times of the last records before `end`, which no longer change."""
    times: deque[int] = deque(maxlen=_BEFORE)
    with open_segment(segment) as reader:
        window = Window(segment, reader)
        at: int | None = 0
        needed = 0
        while at is not None and at < end:
            window.load(at, needed)
            positions, walked = window.walk(at, end)
            times.extend(_store_times(window.data, positions[-_BEFORE:]))
            at, needed = walked.position, walked.needed
            if walked.ended is Ended.BLANK:
                break
            if walked.ended in REASONS:
                at, needed = window.find(at, end), 0
    return tuple(times)


def begins_here(segment: SegmentFile, reader: SegmentReader, at: int, newest_ms: int | None) -> bool:
    """Whether the bytes at `at`, which are not a whole record, have the header of a record that was written to this
    log offset, and not before `newest_ms`."""
    header = read_at(reader, at, BODY_AT).tobytes()
    if len(header) < BODY_AT:
        return False
    if int.from_bytes(header[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big") != segment.base_offset + at:
        return False
    flags = int.from_bytes(header[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big")
    start = STORE_TIMESTAMP_AT + (IPV6_EXTRA if flags & SysFlag.BORN_HOST_V6 else 0)
    stored_ms = int.from_bytes(header[start : start + 8], "big", signed=True)
    return newest_ms is None or stored_ms >= newest_ms


def is_begun(segment: SegmentFile, search_bytes: int = _BEGIN_BYTES) -> bool:
    """Whether anything was written into the segment. Raises SegmentGoneError, LocationError."""
    with open_segment(segment) as reader:
        if np.any(read_at(reader, 0, 8)):
            return True
        # The first record may be the damaged one.
        return Window(segment, reader).find(0, min(segment.size, search_bytes)) is not None
