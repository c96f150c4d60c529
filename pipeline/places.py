"""Places in a log that are known by a store time or by an amount: found by looking at few records, in their order.

All offsets are log offsets. A place is where a record begins, or where the log ends.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from commitlogfs.pipeline.errors import SegmentGoneError
from commitlogfs.pipeline.fields import record_fields
from commitlogfs.pipeline.scanner import Chunk, DamageMode, scan_split
from commitlogfs.pipeline.segments import LogListing, list_segments, open_segment
from commitlogfs.pipeline.splits import Split, plan_splits
from commitlogfs.pipeline.tail import find_end
from commitlogfs.pipeline.truncation import warn_of_crossing_record
from commitlogfs.pipeline.walk import Ended, Longs
from commitlogfs.pipeline.window import Window

_STEP_BYTES = 4 << 20
"""The parts of a segment among which a store time is searched."""

_NEVER = 2**63

_CLOCK_SLACK_MS = 60_000
"""A clock that was set back by less leads no search astray."""
_LISTINGS = 5

FirstTime = Callable[[Split], int | None]


def survey(
    path: str, segment_size: int | None, known: int = 0, *, search_bytes: int | None = None
) -> tuple[LogListing, int]:
    """The log's segments and where it ends, looking at nothing before the place `known`; `search_bytes` as in
    `find_end`. A file that ends inside a record is warned of. Raises LocationError, DuplicateSegmentError,
    SegmentGoneError."""
    for _ in range(_LISTINGS - 1):
        listing = list_segments(path, segment_size)
        # A broker that stops unlinks the segment it has made ahead: just that one may go while we look.
        with suppress(SegmentGoneError):
            return listing, _end_of(listing, known, search_bytes)
    listing = list_segments(path, segment_size)
    return listing, _end_of(listing, known, search_bytes)


def _end_of(listing: LogListing, known: int, search_bytes: int | None) -> int:
    end = find_end(listing, known=known, search_bytes=search_bytes)
    warn_of_crossing_record(listing, end)
    return end


# --- by store time ---------------------------------------------------------------------------------------


def first_stored_ms(split: Split) -> int | None:
    """Store time of the first record that begins in `split`; None without one."""
    with open_segment(split.segment) as reader:
        window = Window(split.segment, reader)
        at = window.find(split.start, split.stop)
        if at is None:
            return None
        window.load(at)
        while True:
            positions, walked = window.walk(at, at + 1)
            if walked.ended is not Ended.MORE:
                break
            window.load(at, walked.needed)
        if not len(positions):
            return None  # the blank record, which has no time
        return int(record_fields(window.data, positions).store_ms[0])


def narrow_by_time(
    splits: Sequence[Split], start_ms: int | None, end_ms: int | None, first_ms: FirstTime = first_stored_ms
) -> Sequence[Split]:
    """The splits that may hold records stored in [start_ms, end_ms).

    A binary search: store times never fall in a log, unless a clock was set back under its broker.
    """
    times = _Times(splits, first_ms)
    if end_ms is not None:
        splits = splits[: bisect_left(times, end_ms + _CLOCK_SLACK_MS)]
    if start_ms is not None:
        # The one before the first that begins at or after it may reach into it.
        splits = splits[max(0, bisect_left(times, start_ms - _CLOCK_SLACK_MS, hi=len(splits)) - 1) :]
    return [replace(split, alone=split.alone or not index) for index, split in enumerate(splits)]


class _Times(Sequence[int]):
    """First store time of each split; one without records counts with the next that has some."""

    def __init__(self, splits: Sequence[Split], first_ms: FirstTime) -> None:
        self._splits, self._first_ms = splits, first_ms
        self._known: dict[int, int | None] = {}

    def __len__(self) -> int:
        return len(self._splits)

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        for later in range(index, len(self._splits)):
            if later not in self._known:
                self._known[later] = self._first_ms(self._splits[later])
            time = self._known[later]
            if time is not None:
                return time
        return _NEVER


def offset_of_time(listing: LogListing, start: int, end: int, start_ms: int) -> int:
    """Where the first record of [start, end) stored at `start_ms` or later begins; `end` without one."""
    wholes = plan_splits(listing, end, start_offset=start, split_size=max(listing.segment_size, 1))
    for whole in narrow_by_time(wholes, start_ms, None):
        parts = plan_splits(
            LogListing(listing.segment_size, (whole.segment,)),
            whole.stop_offset,
            start_offset=whole.start_offset,
            split_size=_STEP_BYTES,
        )
        for part in narrow_by_time(parts, start_ms, None):
            for chunk in _chunks(part):
                reached = np.flatnonzero(record_fields(chunk.data, chunk.positions).store_ms >= start_ms)
                if len(reached):
                    return chunk.offset + int(chunk.positions[reached[0]])
    return end


# --- by amount -------------------------------------------------------------------------------------------


def advance(
    listing: LogListing, start: int, end: int, *, max_bytes: int | None = None, max_records: int | None = None
) -> int:
    """The furthest place in [start, end] that leaves no more than these amounts before it, but one record at least.

    `start` and `end` are places. Walks from `start`; for a number of bytes alone, only from the begin of the
    segment in which they end.
    """
    if max_records is None:
        if max_bytes is None or end - start <= max_bytes:
            return end
        walk_from = max(
            (s.base_offset for s in listing.segments if s.base_offset <= start + max_bytes), default=start
        )
        reached = max(start, walk_from)
    else:
        reached = start
    count = 0
    whole = max(1, listing.segment_size)
    for split in plan_splits(listing, end, start_offset=reached, exact_start=True, split_size=whole):
        for chunk in _chunks(split):
            ends = _ends(chunk)
            allowed = len(ends)
            if max_records is not None:
                allowed = min(allowed, max_records - count)
            if max_bytes is not None:
                allowed = min(allowed, int(np.searchsorted(ends, start + max_bytes, side="right")))
            if allowed < len(ends):
                if not allowed and reached == start:
                    allowed = 1
                return int(ends[allowed - 1]) if allowed else reached
            count += allowed
            reached = int(ends[-1])
    return end


def _chunks(split: Split) -> Iterator[Chunk]:
    """What can be read of `split`: damage is for those to report who read the records themselves."""
    for part in scan_split(split, DamageMode.PERMISSIVE):
        if isinstance(part, Chunk):
            yield part


def _ends(chunk: Chunk) -> Longs:
    sizes = record_fields(chunk.data, chunk.positions[-1:]).total_size
    return chunk.offset + np.append(chunk.positions[1:], chunk.positions[-1] + sizes[0])


def first_place(listing: LogListing, start: int, end: int) -> int:
    """The first place in [start, end] that a reader from `start` on comes to: `start` may be inside a record."""
    for split in plan_splits(listing, end, start_offset=start, split_size=max(listing.segment_size, 1)):
        with open_segment(split.segment) as reader:
            at = Window(split.segment, reader).find(split.start, split.stop) if split.start else 0
        if at is not None:
            return split.segment.base_offset + at
    return end
