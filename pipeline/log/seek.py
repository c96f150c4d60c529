"""Finds log offsets by store time or by amount, reading few records, in their order.

All offsets are log offsets. A "place" is an offset where a record begins, or where the log ends.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Longs
from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.arrays.walk import Ended
from commitlogfs.pipeline.log.errors import SegmentGoneError
from commitlogfs.pipeline.log.scanner import Chunk, DamageMode, scan_split
from commitlogfs.pipeline.log.segments import LogListing, list_segments, open_segment
from commitlogfs.pipeline.log.splits import Split, plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.log.unread_end import require_messages, warn_of_unread_end
from commitlogfs.pipeline.log.window import Window
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

_STEP_BYTES = 4 << 20
"""Size of the parts of a segment in which a store time is searched."""

_NEVER = 2**63

_CLOCK_SLACK_MS = 60_000
"""A clock that was set back by less than this does not mislead a search."""
_AROUND = (0, 1)
"""Neighbours of a search's result, on the side that is left out, whose times are checked."""
_FEW = 64
"""With at most so many splits, the times of all are checked."""
_SAMPLES = 8
"""Number of evenly spaced splits whose times are checked besides those that a search visits."""
_OUTLIERS = 8
"""With more outliers than this, store times are useless for a search."""
_LISTINGS = 5

_logger = logging.getLogger(__name__)

FirstTime = Callable[[Split], int | None]


def survey(
    path: str,
    segment_size: int | None,
    known: int = 0,
    *,
    search_bytes: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[LogListing, int]:
    """The log's segments and its end. Reads nothing before the place `known`; `search_bytes` as in `find_end`.

    Warns of data after the end that is not read. Raises LocationError, DuplicateSegmentError, SegmentGoneError."""
    for _ in range(_LISTINGS - 1):
        listing = list_segments(path, segment_size)
        # A broker that stops removes its preallocated segment: this one segment may disappear during the survey.
        with suppress(SegmentGoneError):
            return listing, _end_of(listing, known, search_bytes, clock)
    listing = list_segments(path, segment_size)
    return listing, _end_of(listing, known, search_bytes, clock)


def _end_of(listing: LogListing, known: int, search_bytes: int | None, clock: Clock) -> int:
    if search_bytes is None:
        require_messages(listing, clock=clock)
    end = find_end(listing, known=known, search_bytes=search_bytes, clock=clock)
    # A stream calls this for every trigger. While the log grows, the check of its end is not worth the time.
    if search_bytes is None or end == known:
        warn_of_unread_end(listing, end, bytes_too=search_bytes is None, clock=clock)
    return end


# --- by store time ---------------------------------------------------------------------------------------


def first_stored_ms(split: Split) -> int | None:
    """Store time of the first record that begins in `split`; None if no record begins there."""
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
            return None  # the blank record, which has no store time
        return int(record_fields(window.data, positions).store_ms[0])


def narrow_by_time(
    splits: Sequence[Split], start_ms: int | None, end_ms: int | None, first_ms: FirstTime = first_stored_ms
) -> Sequence[Split]:
    """The splits that may hold records stored in [start_ms, end_ms), found by binary search.

    Store times never fall in a log, unless the broker's clock was set back or a store time is damaged. So the times
    next to the result, and those that the search visited, are compared. A split whose first time does not fit
    between its neighbours is kept and ignored by the search; if times fall otherwise, all splits are kept. Both
    cases are logged. A fall between the times that are checked is not noticed.
    """
    times = _Times(splits, first_ms)
    times.check(range(0, len(splits), max(1, len(splits) // _SAMPLES) if len(splits) > _FEW else 1))
    times.check([len(splits) - 1])
    while True:
        kept = _between(times, start_ms, end_ms)
        fall = times.first_fall()
        if fall is None:
            break
        uncertain = next((index for index in fall if times.is_outlier(index)), None)
        if uncertain is None or len(times.distrusted) == _OUTLIERS:
            _warn_of_fall(splits, times, fall)
            return splits
        times.distrusted.add(uncertain)
    for index in times.distrusted:
        _warn_of_outlier(splits[index])
        kept |= {max(0, index - 1), index}  # the clock may have been wrong already in the split before this one
    return [replace(splits[index], alone=splits[index].alone or index - 1 not in kept) for index in sorted(kept)]


def _between(times: "_Times", start_ms: int | None, end_ms: int | None) -> set[int]:
    """Indexes of the splits that a binary search selects by these times."""
    first, last = 0, len(times)
    if end_ms is not None:
        last = bisect_left(times, end_ms + _CLOCK_SLACK_MS)
        times.check(last + step for step in _AROUND)
        if times[last] != _NEVER == times[last + 1]:
            last = len(times)  # no later split could show that the time of the last one is wrong
    if start_ms is not None:
        # The split before the first one that begins at or after start_ms may hold records stored after start_ms.
        first = max(0, bisect_left(times, start_ms - _CLOCK_SLACK_MS, hi=last) - 1)
        times.check(first - step for step in _AROUND)
    return set(range(first, last))


def _warn_of_outlier(split: Split) -> None:
    _logger.warning(
        "segment %s, log offset %d: the store time of a message is out of order; this part is read completely "
        "(slower, no message is lost)",
        *(split.segment.name, split.start_offset),
    )


def _warn_of_fall(splits: Sequence[Split], times: "_Times", fall: tuple[int, int]) -> None:
    before, after = (splits[index].start_offset for index in fall)
    _logger.warning(
        "log offsets %d to %d: store times go back by %d s (a clock was set back), so a store time cannot be "
        "searched for; the whole log is read (slower, no message is lost)",
        *(before, after, (times[fall[0]] - times[fall[1]]) // 1000),
    )


class _Times(Sequence[int]):
    """First store time of each split. A split without records, or one that is `distrusted`, has the time of the
    next split."""

    def __init__(self, splits: Sequence[Split], first_ms: FirstTime) -> None:
        self._splits, self._first_ms = splits, first_ms
        self._known: dict[int, int | None] = {}
        self.distrusted: set[int] = set()

    def __len__(self) -> int:
        return len(self._splits)

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        for later in range(index, len(self._splits)):
            time = self._trusted(later)
            if time is not None:
                return time
        return _NEVER

    def check(self, indexes: Iterable[int]) -> None:
        """Read the times of these splits; indexes outside the range are ignored."""
        for index in indexes:
            if 0 <= index < len(self._splits):
                self._trusted(index)

    def first_fall(self) -> tuple[int, int] | None:
        """Two of the splits whose times are known, of which the later one has an earlier time; None if there are
        none."""
        highest: tuple[int, int] | None = None
        for index, time in sorted(self._known.items()):
            if time is None or index in self.distrusted:
                continue
            if highest is not None and time < highest[1] - _CLOCK_SLACK_MS:
                return highest[0], index
            if highest is None or time > highest[1]:
                highest = (index, time)
        return None

    def is_outlier(self, index: int) -> bool:
        """Whether the times before and after the split are in order, but its own time does not fit between them."""
        time, after = self[index], self[index + 1]
        before = next((t for i in range(index - 1, -1, -1) if (t := self._trusted(i)) is not None), None)
        if before is None:
            return time > after + _CLOCK_SLACK_MS
        if after == _NEVER:
            return time < before - _CLOCK_SLACK_MS
        fits = before - _CLOCK_SLACK_MS <= time <= after + _CLOCK_SLACK_MS
        return before <= after + _CLOCK_SLACK_MS and not fits

    def _trusted(self, index: int) -> int | None:
        if index in self.distrusted:
            return None
        if index not in self._known:
            self._known[index] = self._first_ms(self._splits[index])
        return self._known[index]


def offset_of_time(listing: LogListing, start: int, end: int, start_ms: int) -> int:
    """Log offset of the first record of [start, end) stored at `start_ms` or later; `end` if there is none."""
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
    """The last place in [start, end] such that at most these amounts lie before it; at least one record does.

    `start` and `end` are places. Walks from `start`; given only `max_bytes`, it walks only from the beginning of
    the segment in which these bytes end.
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
    """The readable records of `split`. Damage is reported by those who read the records themselves."""
    for part in scan_split(split, DamageMode.PERMISSIVE):
        if isinstance(part, Chunk):
            yield part


def _ends(chunk: Chunk) -> Longs:
    sizes = record_fields(chunk.data, chunk.positions[-1:]).total_size
    return chunk.offset + np.append(chunk.positions[1:], chunk.positions[-1] + sizes[0])


def first_place(listing: LogListing, start: int, end: int) -> int:
    """The first place in [start, end] that a reader from `start` on reaches; `start` may be inside a record. If
    `start` is inside a damaged range, it is the result: the reader that begins there reports the damage."""
    for split in plan_splits(listing, end, start_offset=start, split_size=max(listing.segment_size, 1)):
        if not split.start:
            return split.segment.base_offset
        with open_segment(split.segment) as reader:
            arrival = Window(split.segment, reader).walk_to(split.start, split.stop)
        if arrival.damage is not None:
            return start
        if arrival.first is not None:
            return split.segment.base_offset + arrival.first
    return end
