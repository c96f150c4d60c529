"""Where a log ends that a broker may be writing at this moment.

Past the last record there may be anything: zeros, or bytes of an earlier use, records of a log that a broker
cut back after a crash among them. So the end is found by walking forward, in the one segment where it must be.
"""

import time
from functools import lru_cache

import numpy as np

from commitlogfs.pipeline.fields import record_fields
from commitlogfs.pipeline.segments import LogListing, SegmentFile, SegmentReader, open_segment, read_at
from commitlogfs.pipeline.walk import REASONS, Bytes, Ended, walk
from commitlogfs.pipeline.window import Window
from commitlogfs.store.record import MAGIC_BLANK, SysFlag

SETTLE_S = 0.2
_STORE_TIMESTAMP_AT = 56
_HEADER_BYTES = 88
_BEGIN_BYTES = 1 << 20


def find_end(
    listing: LogListing, *, known: int = 0, settle_s: float = SETTLE_S, search_bytes: int | None = None
) -> int:
    """The log offset after the last whole record, 0 for a log without any.

    `known`: a place where a record is known to begin or the log ended earlier; what is before it is not
    looked at. A record with nothing behind it counts once it has not changed for `settle_s` and does not end in
    zero: it may be in the making, and its header is there first. Damage inside the segment does not end the log;
    whoever reads it will say so. That is looked for to the segment's end, most of which may be zeros, or within
    `search_bytes`: who asks again and again will come to the rest. Raises SegmentGoneError, LocationError.
    """
    segments = [segment for segment in listing.segments if segment.end_offset > known]
    index = len(segments) - 1
    while index > 0 and not is_begun(segments[index]):
        index -= 1
    if index < 0:
        return known
    segment = segments[index]
    with open_segment(segment) as reader:
        tail = _Tail(segment, reader, settle_s, search_bytes)
        return segment.base_offset + tail.find(max(0, known - segment.base_offset))


class _Tail:
    """Positions are the segment's."""

    def __init__(
        self, segment: SegmentFile, reader: SegmentReader, settle_s: float, search_bytes: int | None
    ) -> None:
        self._segment, self._reader, self._settle_s = segment, reader, settle_s
        self._search_bytes = segment.size if search_bytes is None else search_bytes
        self._window = Window(segment, reader)

    def find(self, at: int) -> int:
        size, newest, needed = self._segment.size, -1, 0
        while True:
            self._window.load(at, needed)
            positions, walked = self._window.walk(at, size)
            if len(positions):
                newest = self._window.begin + int(positions[-1])
            at, needed = walked.position, walked.needed
            if walked.ended in (Ended.MORE, Ended.FULL):
                continue
            if walked.ended not in REASONS:
                return size
            following = self._follows(at, newest)
            if following is None:
                return self._settled(newest, at) if newest >= 0 else at
            at, needed = following, 0

    def _follows(self, at: int, newest: int) -> int | None:
        """Where the log goes on behind `at`, which is no record; None if it does not."""
        following = self._window.find(at, min(self._segment.size, at + self._search_bytes))
        if following is None:
            return None
        # A record that is seen proves that all before it are written: `at` may have become one meanwhile.
        if self._window.find(at, at + 1) == at:
            return at
        stored_ms = _stored_ms(self._reader, following)
        if stored_ms is None:
            return following  # the blank record: had the log been cut back, older records would lie before it
        newest_ms = _newest_ms(self._segment, at) if newest < 0 else _stored_ms(self._reader, newest)
        if newest_ms is not None and stored_ms < newest_ms:
            return None  # left over from before a broker cut the log back
        return following

    def _settled(self, newest: int, end: int) -> int:
        """`end`, once the record before it does not change any more."""
        before = read_at(self._reader, newest, end - newest)
        while True:
            time.sleep(self._settle_s)
            now = read_at(self._reader, newest, end - newest)
            if self._window.find(end, end + 1) == end:
                return end
            if np.array_equal(before, now):
                return end if self._ends_well(now, newest) else newest
            before = now

    def _ends_well(self, record: Bytes, at: int) -> bool:
        """Whether its last bytes are there: a broker copies a record front to back, and a slow disk may hold it up
        in between for any time. The last field are the properties, a text, so it does not end in zero."""
        place = np.empty(1, np.int64)
        # Read again, so proven again.
        walked = walk(record, self._segment.base_offset + at, 0, 1, self._segment.size - at, place)
        if (walked.records, walked.position) != (1, len(record)):
            return False
        return bool(record[-1]) or not record_fields(record, place).properties_length[0]


def _stored_ms(reader: SegmentReader, at: int) -> int | None:
    """STORETIMESTAMP of the record at `at`; None for the blank record, which has none."""
    header = read_at(reader, at, _HEADER_BYTES).tobytes()
    if int.from_bytes(header[4:8], "big") == MAGIC_BLANK:
        return None
    flags = int.from_bytes(header[36:40], "big")
    start = _STORE_TIMESTAMP_AT + (12 if flags & SysFlag.BORN_HOST_V6 else 0)
    return int.from_bytes(header[start : start + 8], "big", signed=True)


@lru_cache(maxsize=16)
def _newest_ms(segment: SegmentFile, end: int) -> int | None:
    """Store time of the last record before `end`, which does not change any more; None without one."""
    with open_segment(segment) as reader:
        newest = Window(segment, reader).walk_to(end, end).newest
        return None if newest < 0 else _stored_ms(reader, newest)


def is_begun(segment: SegmentFile) -> bool:
    """Whether anything was written into it. Raises SegmentGoneError, LocationError."""
    with open_segment(segment) as reader:
        if np.any(read_at(reader, 0, 8)):
            return True
        # Its first record may be the one that is damaged.
        return Window(segment, reader).find(0, min(segment.size, _BEGIN_BYTES)) is not None
