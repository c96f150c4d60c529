"""Result of a simulation, counted while it runs. Pure."""

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.retention.engine import Rule
from commitlogfs.store.retention.facts import SegmentFacts
from commitlogfs.store.retention.rules import Trigger
from commitlogfs.store.retention.simulated_pool import PlannedDisk, SimulatedPool

LEVELS = ("clean", "force", "full")
STEADY_SHARE: Final = 0.99
STEADY_TAIL: Final = 0.1
_NS: Final = 10**9
_DAY_NS: Final = 24 * 3600 * _NS


class Actor(Enum):
    BROKER = "broker"
    FILESYSTEM = "filesystem"


@dataclass(frozen=True, slots=True)
class DiskReport:
    number: int
    planned: PlannedDisk
    reached_s: dict[str, float]
    """Time at which the disk first reached clean, force, full; without levels that it never reached."""
    was_skipped: bool
    """Whether it was skipped for new segments while other disks took them."""
    used_percent: float
    """Fill level at the end."""
    segments: int


@dataclass(frozen=True, slots=True)
class Retention:
    """Age of the oldest segment over a period."""

    shortest_s: float
    median_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class DiskChange:
    """A disk was added, or began to drain by expiry."""

    number: int
    at_s: float
    drains: bool
    empty_s: float | None
    """Time at which a disk that drains was empty; None if it never was, or was added."""
    forecast_s: float | None
    """How long the daemon would have said, at the beginning of the drain, that it takes; None if it was added."""
    before: Retention | None
    """In the last day before; None if the log was empty."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    duration_s: float
    segment_size: int
    created: int
    disks: tuple[DiskReport, ...]
    reached_s: dict[str, float]
    """Time at which all disks (trigger ALL), or the first one (ANY), were at a level."""
    first_removal_s: float | None
    steady_s: float | None
    """Time from which on as many segments are removed as are created: at least one was removed, the log had grown
    to STEADY_SHARE of its largest size, the last change of the disks was over, and disks that drain were empty.
    None if that was within the last STEADY_TAIL of the time, or never."""
    retention: Retention | None
    """In the steady state; None without one."""
    changes: tuple[DiskChange, ...]
    """In the order in which they happened."""
    removed: dict[tuple[Actor, Rule], int]
    youngest_removed_s: float | None
    """Age of the youngest segment that was removed for lack of space."""
    segments: int
    """Number of segments at the end."""
    most_segments: int
    refused_creates: int
    """Number of segments that no disk took at their first create."""
    refused_s: float
    """Time during which messages were refused."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A period without removals, and the modification time of the oldest segment in it."""

    since_ns: int
    until_ns: int
    mtime_ns: int

    @property
    def youngest_ns(self) -> int:
        return self.since_ns - self.mtime_ns

    @property
    def eldest_ns(self) -> int:
        return self.until_ns - self.mtime_ns


@dataclass(slots=True)
class Tally:
    """Counts while the simulation runs. All times, modification times included, are nanoseconds since its
    beginning."""

    trigger: Trigger
    refused_creates: int = 0
    refused_ns: int = 0
    _reached_ns: dict[str, int] = field(default_factory=dict)
    _disk_reached_ns: dict[tuple[int, str], int] = field(default_factory=dict)
    _removed: Counter[tuple[Actor, Rule]] = field(default_factory=Counter)
    _first_removal_ns: int | None = None
    _youngest_removed_ns: int | None = None
    _grown_ns: list[int] = field(default_factory=list)
    """Item k is the time at which the log first had k + 1 segments."""
    _spans: list[_Span] = field(default_factory=list)
    _oldest_since_ns: int = 0
    _oldest_mtime_ns: int = 0
    _changes: list[DiskChange] = field(default_factory=list)
    """Without the times at which disks were empty."""
    _empty_ns: dict[int, int] = field(default_factory=dict)
    """When disks that drain were empty."""

    def record_levels(self, pool: SimulatedPool, now_ns: int) -> None:
        """Record the levels that the disks have reached. Call it whenever a disk has left its band."""
        for level in LEVELS:
            if all((number, level) in self._disk_reached_ns for number in pool.writable()):
                continue
            at = pool.disks_at(level)
            for number in at:
                self._disk_reached_ns.setdefault((number, level), now_ns)
            if at and (self.trigger is Trigger.ANY or len(at) == len(pool.writable())):
                self._reached_ns.setdefault(level, now_ns)

    def record_change(self, number: DiskNumber, pool: SimulatedPool, now_ns: int, forecast_s: float | None) -> None:
        """Record that a disk was added, or drains from now on. `pool` knows it already."""
        drains = number not in pool.writable()
        before = self._retention_in(now_ns - _DAY_NS, now_ns)
        self._changes.append(DiskChange(number, now_ns / _NS, drains, None, forecast_s, before))
        if drains:
            self._record_empty(pool, now_ns)

    def _record_empty(self, pool: SimulatedPool, now_ns: int) -> None:
        for change in self._changes:
            if change.drains and not pool.log.count_on(DiskNumber(change.number)):
                self._empty_ns.setdefault(change.number, now_ns)

    def record_created(self, segments: int, now_ns: int) -> None:
        """Record a create. `segments` is the number of segments with the new one."""
        if segments > len(self._grown_ns):
            self._grown_ns.append(now_ns)

    def record_removals(
        self, removed: Sequence[SegmentFacts], actor: Actor, rule: Rule, pool: SimulatedPool, now_ns: int
    ) -> None:
        """Record the removal of the log's oldest segments, at least one. `pool` does not have them any more."""
        self._removed[actor, rule] += len(removed)
        if self._first_removal_ns is None:
            self._first_removal_ns = now_ns
        else:
            self._end_span(now_ns)
        if rule is not Rule.AGE:
            youngest_ns = now_ns - removed[-1].mtime_ns
            known_ns = self._youngest_removed_ns
            self._youngest_removed_ns = youngest_ns if known_ns is None else min(known_ns, youngest_ns)
        self._record_empty(pool, now_ns)
        self._oldest_since_ns = now_ns
        self._oldest_mtime_ns = pool.log.sealed[0].mtime_ns if pool.log.sealed else now_ns

    def report(self, pool: SimulatedPool, end_ns: int) -> SimulationReport:
        if self._first_removal_ns is not None:
            self._end_span(end_ns)
        steady_ns = self._steady_ns(end_ns)
        return SimulationReport(
            duration_s=end_ns / _NS,
            segment_size=pool.log.segment_size,
            created=pool.log.created,
            disks=tuple(self._disk_report(pool, DiskNumber(n)) for n in range(1, len(pool.disks) + 1)),
            reached_s={level: at_ns / _NS for level, at_ns in self._reached_ns.items()},
            first_removal_s=_seconds(self._first_removal_ns),
            steady_s=_seconds(steady_ns),
            retention=None if steady_ns is None else self._retention(steady_ns),
            changes=tuple(
                replace(change, empty_s=_seconds(self._empty_ns.get(change.number))) if change.drains else change
                for change in self._changes
            ),
            removed=dict(self._removed),
            youngest_removed_s=_seconds(self._youngest_removed_ns),
            segments=len(pool.log),
            most_segments=len(self._grown_ns),
            refused_creates=self.refused_creates,
            refused_s=self.refused_ns / _NS,
        )

    def _disk_report(self, pool: SimulatedPool, number: DiskNumber) -> DiskReport:
        reached = {
            level: self._disk_reached_ns[number, level] / _NS
            for level in LEVELS
            if (number, level) in self._disk_reached_ns
        }
        return DiskReport(
            number=number,
            planned=pool.disks[number - 1],
            reached_s=reached,
            was_skipped=number in pool.was_skipped,
            used_percent=pool.usage(number).used_percent,
            segments=pool.log.count_on(number),
        )

    def _end_span(self, now_ns: int) -> None:
        if now_ns > self._oldest_since_ns:
            self._spans.append(_Span(self._oldest_since_ns, now_ns, self._oldest_mtime_ns))

    def _steady_ns(self, end_ns: int) -> int | None:
        if self._first_removal_ns is None:
            return None
        grown_ns = self._grown_ns[math.ceil(len(self._grown_ns) * STEADY_SHARE) - 1]
        steady_ns = max(grown_ns, self._first_removal_ns)
        for change in self._changes:
            over_ns = self._empty_ns.get(change.number) if change.drains else round(change.at_s * _NS)
            if over_ns is None:
                return None
            steady_ns = max(steady_ns, over_ns)
        return steady_ns if steady_ns <= end_ns * (1 - STEADY_TAIL) else None

    def _retention(self, since_ns: int) -> Retention:
        spans = [span for span in self._spans if span.since_ns >= since_ns] or self._spans[-1:]
        return _age_range(spans)

    def _retention_in(self, since_ns: int, until_ns: int) -> Retention | None:
        """Retention until now, `until_ns`; None if nothing was written."""
        spans = [*self._spans]
        if until_ns > self._oldest_since_ns:
            spans.append(_Span(self._oldest_since_ns, until_ns, self._oldest_mtime_ns))
        late = [_Span(max(span.since_ns, since_ns), span.until_ns, span.mtime_ns) for span in spans]
        late = [span for span in late if span.since_ns < span.until_ns]
        return _age_range(late) if late else None


def _age_range(spans: list[_Span]) -> Retention:
    return Retention(
        shortest_s=min(span.youngest_ns for span in spans) / _NS,
        median_s=_median(spans) / _NS,
        longest_s=max(span.eldest_ns for span in spans) / _NS,
    )


def _median(spans: list[_Span]) -> int:
    """Median age: the oldest segment was younger for half of the time. Within a span its age grows steadily."""
    half_ns = sum(span.eldest_ns - span.youngest_ns for span in spans) // 2

    def time_below(age_ns: int) -> int:
        return sum(min(max(age_ns - span.youngest_ns, 0), span.eldest_ns - span.youngest_ns) for span in spans)

    low_ns, high_ns = min(s.youngest_ns for s in spans), max(s.eldest_ns for s in spans)
    ages = range(low_ns, high_ns + 1)
    return ages[bisect.bisect_left(ages, half_ns, key=time_below)]


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / _NS
