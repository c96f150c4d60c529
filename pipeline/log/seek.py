"""Places in a log that are known by a store time or by an amount: found by looking at few records, in their order.

All offsets are log offsets. A place is where a record begins, or where the log ends.
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

_STEP_BYTES = 4 << 20
"""The parts of a segment among which a store time is searched."""

_NEVER = 2**63

_CLOCK_SLACK_MS = 60_000
"""A clock that was set back by less leads no search astray."""
_AROUND = (0, 1)
"""How far from the result of a search, on the side that is left out, times are looked at."""
_FEW = 64
"""Of so many splits all times are looked at."""
_SAMPLES = 8
"""Of more splits, so many all over the log, and those that a search comes by."""
_OUTLIERS = 8
"""With more of them, times say nothing."""
_LISTINGS = 5

_logger = logging.getLogger(__name__)

FirstTime = Callable[[Split], int | None]


def survey(
    path: str, segment_size: int | None, known: int = 0, *, search_bytes: int | None = None
) -> tuple[LogListing, int]:
    """The log's segments and where it ends, looking at nothing before the place `known`; `search_bytes` as in
    `find_end`. What lies after the end and is not read is
    warned of. Raises LocationError, DuplicateSegmentError,
    SegmentGoneError."""
    for _ in range(_LISTINGS - 1):
        listing = list_segments(path, segment_size)
        # A broker that stops unlinks the segment it has made ahead: just that one may go while we look.
        with suppress(SegmentGoneError):
            return listing, _end_of(listing, known, search_bytes)
    listing = list_segments(path, segment_size)
    return listing, _end_of(listing, known, search_bytes)


def _end_of(listing: LogListing, known: int, search_bytes: int | None) -> int:
    if search_bytes is None:
        require_messages(listing)
    end = find_end(listing, known=known, search_bytes=search_bytes)
    # Asked again and again, while a broker writes, only a log that does not grow is worth the time.
    if search_bytes is None or end == known:
        warn_of_unread_end(listing, end, bytes_too=search_bytes is None)
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

    A binary search: store times never fall in a log, unless a clock was set back under its broker, or one is
    damaged. So the times at its result, and those it came by, are compared: a split whose first time does not fit
    in between its neighbours' is kept and asked no more; where times fall otherwise, all splits are kept. Either is
    said in the log. What falls and rises again between the times that are looked at is not seen.
    """
    times = _Times(splits, first_ms)
    times.look_at(range(0, len(splits), max(1, len(splits) // _SAMPLES) if len(splits) > _FEW else 1))
    times.look_at([len(splits) - 1])
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
        kept |= {max(0, index - 1), index}  # a clock may have been wrong from somewhere in the one before it
    return [replace(splits[index], alone=splits[index].alone or index - 1 not in kept) for index in sorted(kept)]


def _between(times: "_Times", start_ms: int | None, end_ms: int | None) -> set[int]:
    """The numbers of the splits of these times, as a binary search finds them."""
    first, last = 0, len(times)
    if end_ms is not None:
        last = bisect_left(times, end_ms + _CLOCK_SLACK_MS)
        times.look_at(last + step for step in _AROUND)
        if times[last] != _NEVER == times[last + 1]:
            last = len(times)  # nothing behind the last one would tell that its time is wrong
    if start_ms is not None:
        # The one before the first that begins at or after it may reach into it.
        first = max(0, bisect_left(times, start_ms - _CLOCK_SLACK_MS, hi=last) - 1)
        times.look_at(first - step for step in _AROUND)
    return set(range(first, last))


def _warn_of_outlier(split: Split) -> None:
    _logger.warning(
        "segment %s, log offset %d: the store time of the first message from here on does not fit those before and "
        "behind it: read whatever it says",
        *(split.segment.name, split.start_offset),
    )


def _warn_of_fall(splits: Sequence[Split], times: "_Times", fall: tuple[int, int]) -> None:
    before, after = (splits[index].start_offset for index in fall)
    _logger.warning(
        "store times fall by %d s between log offsets %d and %d: a clock was set back there, so a time cannot be "
        "searched for: all of the log is read",
        *((times[fall[0]] - times[fall[1]]) // 1000, before, after),
    )


class _Times(Sequence[int]):
    """First store time of each split; one without records counts with the next that has some, and so does one
    that is `distrusted`."""

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

    def look_at(self, indexes: Iterable[int]) -> None:
        """Where there are such."""
        for index in indexes:
            if 0 <= index < len(self._splits):
                self._trusted(index)

    def first_fall(self) -> tuple[int, int] | None:
        """Two splits, of those that were looked at, of which the later one begins earlier."""
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
        """Whether the times before and behind it follow one another, but not with its own between them."""
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
    """The first place in [start, end] that a reader from `start` on comes to: `start` may be inside a record.
    Inside damage it is `start` itself, for whoever reads from there to tell."""
    for split in plan_splits(listing, end, start_offset=start, split_size=max(listing.segment_size, 1)):
        if not split.start:
            return split.segment.base_offset
        with open_segment(split.segment) as reader:
            way = Window(split.segment, reader).walk_to(split.start, split.stop)
        if way.damage is not None:
            return start
        if way.first is not None:
            return split.segment.base_offset + way.first
    return end
