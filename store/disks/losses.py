"""Accepted losses: the segments of a disk that an operator has given up. Pure.

Their gaps refuse no mount any more. They are recorded with the list of members, so they have to be short: the
segments of a lost disk lie at nearly regular distances, because round-robin had put them there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from commitlogfs.store.segment import BaseOffset

MOST_RUNS: Final = 40
"""Runs of one loss: about 800 bytes of the 4 KiB that ext4 has for the attributes of a directory."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` ranges of `length` segments, whose beginnings are `stride` apart. All numbers count segments from log
    offset 0."""

    first: int
    length: int
    stride: int
    count: int

    @property
    def end(self) -> int:
        """The segment after the last one."""
        return self.first + self.stride * (self.count - 1) + self.length

    def covers(self, index: int) -> bool:
        number, rest = divmod(index - self.first, self.stride)
        return 0 <= number < self.count and rest < self.length

    def indexes(self) -> Iterator[int]:
        """The segments, in ascending order."""
        for number in range(self.count):
            begin = self.first + number * self.stride
            yield from range(begin, begin + self.length)


@dataclass(frozen=True, slots=True)
class Loss:
    """A disk that was given up, and the segments that were missing then."""

    number: int
    path: str
    since_s: int
    """Seconds since 1970."""
    runs: tuple[Run, ...]

    @property
    def end(self) -> int:
        """The segment after the last lost one."""
        return max((run.end for run in self.runs), default=0)

    def covers(self, index: int) -> bool:
        return any(run.covers(index) for run in self.runs)

    def as_span(self) -> "Loss":
        """The shortest record: everything from its first segment to its last one."""
        length = self.end - min((run.first for run in self.runs), default=0)
        return replace(self, runs=(Run(self.end - length, length, length, 1),) if self.runs else ())


def still_lost(losses: Iterable[Loss], is_present: Callable[[int], bool]) -> tuple[Loss, ...]:
    """The losses without the segments that are there again, whether restored or written anew: such a segment is no
    accepted loss if it is lost once more. A loss stays as it is if what is left of it is too irregular: a single
    run would cover segments that were never lost. Thousands of segments take some milliseconds."""
    found = []
    for loss in losses:
        indexes = [index for run in loss.runs for index in run.indexes()]
        left = [index for index in indexes if not is_present(index)]
        runs = _runs(_ranges(left))
        is_changed = len(left) < len(indexes) and len(runs) <= MOST_RUNS
        found.append(replace(loss, runs=runs) if is_changed else loss)
    return tuple(found)


def _ranges(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """(first segment, number of segments) of segments in ascending order."""
    found: list[tuple[int, int]] = []
    for index in indexes:
        if found and index == sum(found[-1]):
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((index, 1))
    return found


def lost_before(first: int, losses: Iterable[Loss]) -> int:
    """Number of accepted losses directly before segment `first`, with which the log begins."""
    known, index = tuple(losses), first
    while index and any(loss.covers(index - 1) for loss in known):
        index -= 1
    return first - index


def runs_of(ranges: Iterable[tuple[int, int]]) -> tuple[Run, ...]:
    """Runs that cover these ranges (first segment, number of segments), which are in ascending order.

    Of ranges that are too irregular, one run covers everything from the first to the last.
    """
    runs = _runs(ranges)
    if len(runs) <= MOST_RUNS:
        return runs
    length = runs[-1].end - runs[0].first
    return (Run(runs[0].first, length, length, 1),)


def _runs(ranges: Iterable[tuple[int, int]]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for first, length in ranges:
        last = runs[-1] if runs else None
        if last is not None and last.length == length and last.count == 1 and first > last.first:
            runs[-1] = Run(last.first, length, first - last.first, 2)
        elif last is not None and last.length == length and first == last.first + last.stride * last.count:
            runs[-1] = Run(last.first, length, last.stride, last.count + 1)
        else:
            runs.append(Run(first, length, length, 1))
    return tuple(runs)


def count_accepted(losses: tuple[Loss, ...], gaps: list[tuple[BaseOffset, BaseOffset]], segment_size: int) -> int:
    """Number of the gaps [start, end) that are accepted losses. Thousands of gaps take tens of milliseconds."""
    return sum(is_accepted(losses, start, end, segment_size) for start, end in gaps)


def is_accepted(losses: Iterable[Loss], start: int, end: int, segment_size: int) -> bool:
    """Whether all segments of the gap [start, end) are accepted losses."""
    known = tuple(losses)
    return bool(known) and all(
        any(loss.covers(index) for loss in known) for index in range(start // segment_size, end // segment_size)
    )
