"""Disks and a log that exist only as numbers, for a simulation. Pure.

The rules only compare the fill level of a disk with thresholds, and each comparison changes its result at one
number of segments. Between two such numbers, in one *band*, every result is the same. So a result for the bands of
all disks holds until one disk leaves its band. The bands are found with the daemon's own arithmetic.
"""

import bisect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Final

from commitlogfs.store.disks.capacity import KEPT_SEGMENTS
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.eligibility import DiskView, Eligibility, evaluate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.placement import Candidate, PlacementPolicy, PlacementRequest
from commitlogfs.store.retention.facts import DiskFacts, Moment, SegmentFacts, Snapshot
from commitlogfs.store.retention.statfs import DiskShare
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds

REMEMBERED: Final = 1 << 16
"""Number of cached results; more would only cost memory."""

Bands = tuple[int, ...]
Question = Callable[[DiskUsage], bool]
"""A question about a fill level that, once answered with yes, stays yes for any more segments."""


@dataclass(frozen=True, slots=True)
class PlannedDisk:
    """A disk before the log begins, and what is planned for it."""

    path: str
    size_bytes: int
    """Used + available bytes, of which the fill level is a percentage."""
    foreign_bytes: int = 0
    """Bytes used by other data during the whole simulation."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    weight: float = 1.0
    added_s: int = 0
    """Time at which it joins the pool, empty; 0 for a disk of the first hour."""
    drains_s: int | None = None
    """Time from which on it gets no new segments, so that it becomes empty by expiry; None if it never drains."""


class SimulatedLog:
    """Implements LogFacts. The active segment and the one made ahead are not sealed."""

    def __init__(self, segment_size: int, disks: int) -> None:
        self.sealed: deque[SegmentFacts] = deque()
        self.unsealed: deque[SegmentFacts] = deque()
        self.counts = [0] * (disks + 1)
        """Number of segments by disk number. Disk numbers begin at 1."""
        self.created = 0
        self._segment_size = segment_size

    @property
    def segment_size(self) -> int:
        return self._segment_size

    def __len__(self) -> int:
        return len(self.sealed) + len(self.unsealed)

    def __iter__(self) -> Iterator[SegmentFacts]:
        return chain(self.sealed, self.unsealed)

    def newest(self, count: int) -> tuple[SegmentFacts, ...]:
        newest_first = islice(chain(reversed(self.unsealed), reversed(self.sealed)), count)
        return tuple(newest_first)[::-1]

    def count_on(self, disk: DiskNumber) -> int:
        return self.counts[disk]

    def newest_on(self, disk: DiskNumber) -> SegmentFacts | None:
        newest_first = chain(reversed(self.unsealed), reversed(self.sealed))
        return next((segment for segment in newest_first if segment.disk == disk), None)

    def append(self, disk: DiskNumber, wall_ns: int) -> None:
        base = BaseOffset(self.created * self._segment_size)
        self.unsealed.append(SegmentFacts(base, disk, self._segment_size, wall_ns))
        self.counts[disk] += 1
        self.created += 1

    def seal(self, wall_ns: int) -> None:
        """Seal the active segment, because it is full."""
        active = self.unsealed.popleft()
        self.sealed.append(SegmentFacts(active.base_offset, active.disk, active.allocated_bytes, wall_ns))

    def remove_oldest(self) -> SegmentFacts:
        oldest = self.sealed.popleft()
        self.counts[oldest.disk] -= 1
        return oldest


class SimulatedPool:
    """Simulated disks and their log. A disk is writable from the time on at which it joins, until it drains.

    `percents` are the percentages with which a broker compares the fill level. `remember`: cache results by bands.
    """

    def __init__(
        self,
        disks: tuple[PlannedDisk, ...],
        segment_size: int,
        policy: PlacementPolicy,
        percents: frozenset[int],
        *,
        remember: bool,
    ) -> None:
        self.disks = disks
        self.log = SimulatedLog(segment_size, len(disks))
        self.skipped: frozenset[DiskNumber] = frozenset()
        self.was_skipped: set[DiskNumber] = set()
        self._policy = policy
        self._numbers = tuple(DiskNumber(number) for number in range(1, len(disks) + 1))
        self._states = [DiskState.RW if disk.added_s == 0 else None for disk in disks]
        """None for a disk that has not joined yet."""
        self._edges = [self._find_edges(number, percents) for number in self._numbers]
        self._levels = {
            name: [self._first_at(number, name) for number in self._numbers] for name in ("clean", "force", "full")
        }
        self.bands: Bands = tuple(self._band(number) for number in self._numbers)
        self.is_shallow = any(0 < self._first_at(number, "resume") <= KEPT_SEGMENTS for number in self._numbers)
        """Whether the newest segments, which always stay, can keep a disk at or above `resume`."""
        self._facts: list[DiskFacts | None] = [None] * len(disks)
        self._candidates = [self._candidate(number) for number in self._numbers]
        self._eligibility = lru_cache(REMEMBERED)(self._evaluate) if remember else self._evaluate

    # --- what the rules see ------------------------------------------------------------------------------

    def usage(self, number: DiskNumber) -> DiskUsage:
        return self._usage_with(number, self.log.counts[number])

    def snapshot(self, moment: Moment) -> Snapshot:
        return Snapshot(moment, tuple(self._fact(number) for number in self.members()), self.log)

    def shares(self) -> tuple[DiskShare, ...]:
        size = self.log.segment_size
        return tuple(
            DiskShare(
                self._state(number),
                self.usage(number),
                self.log.counts[number] * size,
                self.disks[number - 1].thresholds,
            )
            for number in self.members()
        )

    def members(self) -> tuple[DiskNumber, ...]:
        """The disks that have joined, in order."""
        return tuple(number for number in self._numbers if self._states[number - 1] is not None)

    def writable(self) -> tuple[DiskNumber, ...]:
        """The disks that may get new segments, full or not."""
        return tuple(number for number in self._numbers if self._states[number - 1] is DiskState.RW)

    def disks_at(self, level: str) -> tuple[DiskNumber, ...]:
        """Writable disks at or above `level`, which is clean, force or full."""
        firsts = self._levels[level]
        return tuple(number for number in self.writable() if self.log.counts[number] >= firsts[number - 1])

    # --- what happens --------------------------------------------------------------------------------------

    def join(self, number: DiskNumber) -> None:
        self._states[number - 1] = DiskState.RW
        self._record_change(number)

    def drain(self, number: DiskNumber) -> None:
        """It gets no new segments from now on."""
        self._states[number - 1] = DiskState.DRAINING
        self._record_change(number)

    def create(self, wall_ns: int) -> bool:
        """Create the next segment. Returns False if no disk takes it."""
        eligibility = self._eligibility(self.bands, self.skipped)
        self.skipped = eligibility.skipped
        if not eligibility.eligible:
            return False
        if eligibility.skipped and not eligibility.fallback:
            self.was_skipped |= eligibility.skipped
        newest = self.log.newest(1)
        request = PlacementRequest(
            BaseOffset(self.log.created * self.log.segment_size),
            self.log.segment_size,
            newest[0].disk if newest else None,
            self.members(),
        )
        candidates = tuple([self._candidates[number - 1] for number in eligibility.eligible])
        chosen = self._policy.rank(request, candidates)[0]
        self.log.append(chosen, wall_ns)
        self._record_change(chosen)
        return True

    def remove_oldest(self) -> SegmentFacts:
        oldest = self.log.remove_oldest()
        self._record_change(oldest.disk)
        return oldest

    # --- inside --------------------------------------------------------------------------------------------

    def _record_change(self, number: DiskNumber) -> None:
        index = number - 1
        self._facts[index] = None
        self._candidates[index] = self._candidate(number)
        band = self._band(number)
        if band != self.bands[index]:
            self.bands = (*self.bands[:index], band, *self.bands[index + 1 :])

    def _state(self, number: DiskNumber) -> DiskState:
        state = self._states[number - 1]
        assert state is not None
        return state

    def _band(self, number: DiskNumber) -> int:
        """Negative for a disk that is not writable: its state belongs to what decides."""
        state = self._states[number - 1]
        if state is None:
            return -1
        band = bisect.bisect_right(self._edges[number - 1], self.log.counts[number])
        return band if state is DiskState.RW else -2 - band

    def _evaluate(self, bands: Bands, skipped: frozenset[DiskNumber]) -> Eligibility:
        views = tuple(
            DiskView(number, self._state(number), self.usage(number), self.disks[number - 1].thresholds)
            for number in self.members()
        )
        return evaluate(views, self.log.segment_size, skipped)

    def _fact(self, number: DiskNumber) -> DiskFacts:
        known = self._facts[number - 1]
        if known is None:
            disk = self.disks[number - 1]
            known = DiskFacts(number, disk.path, self._state(number), self.usage(number), 0, disk.thresholds)
            self._facts[number - 1] = known
        return known

    def _candidate(self, number: DiskNumber) -> Candidate:
        disk = self.disks[number - 1]
        used = disk.foreign_bytes + self.log.counts[number] * self.log.segment_size
        return Candidate(number, disk.path, disk.path, disk.weight, disk.size_bytes - used)

    def _usage_with(self, number: DiskNumber, segments: int) -> DiskUsage:
        disk = self.disks[number - 1]
        free = disk.size_bytes - disk.foreign_bytes - segments * self.log.segment_size
        return DiskUsage(disk.size_bytes, free, free)

    def _first_count(self, number: DiskNumber, question: Question) -> int:
        """The smallest number of segments for which the answer is yes."""
        disk = self.disks[number - 1]
        most = (disk.size_bytes - disk.foreign_bytes) // self.log.segment_size
        return bisect.bisect_left(
            range(most + 1), True, key=lambda count: question(self._usage_with(number, count))
        )

    def _first_at(self, number: DiskNumber, level: str) -> int:
        return self._first_count(number, _at_or_above(getattr(self.disks[number - 1].thresholds, level)))

    def _find_edges(self, number: DiskNumber, percents: frozenset[int]) -> list[int]:
        """Numbers of segments at which a comparison changes its result.

        Comparisons: at or above a threshold; above it (as the broker compares); no room for one more.
        """
        limits = self.disks[number - 1].thresholds

        def has_no_room(usage: DiskUsage) -> bool:
            return usage.available_bytes - self.log.segment_size < limits.min_free_bytes

        questions: list[Question] = [has_no_room]
        for percent in {limits.clean, limits.force, limits.full, limits.resume, *percents}:
            questions += [_at_or_above(percent), _above(percent)]
        return sorted({self._first_count(number, question) for question in questions})


def _at_or_above(percent: int) -> Question:
    return lambda usage: usage.is_at_or_above(percent)


def _above(percent: int) -> Question:
    return lambda usage: usage.used_ratio * 100 > percent
