"""Growth rate of the log, and the times when a disk reaches its next threshold or is empty. Pure."""

import bisect
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

WINDOW_S = 120.0
"""Length of the latest period over which the rate is measured."""
IDLE_S = 30.0
"""Time after which a log that does not grow is idle. It is longer than the time between two measurements."""
DAY_S = 86_400
_APART_S = 300.0
"""About one of the removed segments that were changed in this time is kept: fewer than 300 of a day."""
_SHORTEST_S = 0.5
"""Shortest time between two measurements that give a rate."""


@dataclass(frozen=True, slots=True)
class NextThreshold:
    """The lowest threshold that a disk has not reached yet."""

    name: str
    percent: int
    missing_bytes: int
    eta_seconds: float | None
    """Seconds until the disk reaches it; None while the log does not grow on this disk."""


class Growth:
    """Rate at which a log is written, from measurements of its end.

    Durations are in steady time, points in time in wall time.
    """

    def __init__(self) -> None:
        self.written_to: int | None = None
        """Log offset after the last byte that is known to be written."""
        self._samples: deque[tuple[float, int]] = deque()
        """Measurements as (steady time, `written_to`), oldest first."""
        self._grown_at_s: float | None = None
        """Wall time of the latest measurement at which the log had grown."""
        self._changed_at_s = 0.0
        """Wall time of the last change of the active segment, from its filesystem."""

    def record(self, steady_s: float, wall_s: float, written_to: int, changed_at_s: float) -> None:
        """Record one measurement."""
        former = self.written_to
        if former is not None and written_to < former:  # a recovering broker has cut the log
            self._samples.clear()
        elif former is not None and written_to > former:
            if self.idle_since(wall_s) is not None:  # the pause must not lower the new rate
                self._samples = deque([(self._samples[-1])])
            self._grown_at_s = wall_s
        self.written_to = written_to
        self._changed_at_s = changed_at_s
        self._samples.append((steady_s, written_to))
        while len(self._samples) > 2 and self._samples[1][0] <= steady_s - WINDOW_S:
            self._samples.popleft()

    def idle_since(self, wall_s: float) -> float | None:
        """Wall time of the last write; None while the log grows, or if it is not known."""
        times = (self._changed_at_s, self._grown_at_s or 0.0)
        latest = max((moment for moment in times if 0 < moment <= wall_s), default=None)
        return latest if latest is not None and wall_s - latest >= IDLE_S else None

    def bytes_per_second(self, steady_s: float, wall_s: float) -> float:
        """Rate; 0.0 if the log is idle or was not measured twice within the window."""
        if len(self._samples) < 2 or self.idle_since(wall_s) is not None:
            return 0.0
        (began_s, first), (ended_s, last) = self._samples[0], self._samples[-1]
        if ended_s - began_s < _SHORTEST_S or steady_s - ended_s > WINDOW_S:
            return 0.0
        return (last - first) / (ended_s - began_s)


EndOf = Callable[[int], tuple[float, int]]
"""Returns when a segment, by its number from the oldest on, was changed last (wall time), and the log offset at its
end."""


class _Removed(NamedTuple):
    changed_s: float
    age_s: float
    end_offset: int


class Removals:
    """Segments that were removed from the beginning of a log, over about a day.

    A broker removes expired segments in certain hours, and a log that fills its disks loses more at noon than at
    night. So the age at which a segment is removed depends on the time of the day at which it was written.
    """

    def __init__(self) -> None:
        self._removed: deque[_Removed] = deque()
        """In the order of `changed_s`; not each of those close together."""

    def record(self, changed_s: float, now_s: float, end_offset: int) -> None:
        """A segment was removed that was changed last at `changed_s`, in wall time."""
        if self._removed and changed_s < self._removed[-1].changed_s:
            self._removed.clear()
        if len(self._removed) > 1 and changed_s - self._removed[-2].changed_s < _APART_S:
            self._removed.pop()
        self._removed.append(_Removed(changed_s, now_s - changed_s, end_offset))
        while self._removed[0].changed_s < changed_s - DAY_S - _APART_S:
            self._removed.popleft()

    def lifetime(self, changed_s: float) -> float | None:
        """Age at which a segment that was changed last at `changed_s` is removed if the days are alike.

        It is the age of one from the same time of an earlier day, else of the latest one. None if none was removed.
        """
        if not self._removed:
            return None
        days = math.ceil((changed_s - self._removed[-1].changed_s) / DAY_S)
        same_time_s = changed_s - days * DAY_S
        if same_time_s < self._removed[0].changed_s:
            return self._removed[-1].age_s
        index = bisect.bisect_left(self._removed, same_time_s, key=lambda removed: removed.changed_s)
        return self._removed[min(index, len(self._removed) - 1)].age_s

    def shortest_lifetime(self) -> float | None:
        """None if no segment was removed."""
        return min((removed.age_s for removed in self._removed), default=None)

    def history(self, count: int, end_of: EndOf) -> "WriteHistory":
        """History of a log with `count` sealed segments, and of those that were removed."""
        removed = tuple(self._removed)

        def end_of_all(index: int) -> tuple[float, int]:
            if index < len(removed):
                return removed[index].changed_s, removed[index].end_offset
            return end_of(index - len(removed))

        return WriteHistory(len(removed) + count, end_of_all)


class WriteHistory:
    """How much of a log was written when, by the changes of its sealed segments."""

    def __init__(self, count: int, end_of: EndOf) -> None:
        self._count = count
        self._end_of = end_of

    def seconds_to_write(self, count: int, now_s: float) -> float | None:
        """Seconds until `count` more bytes are written if the latest whole days, at most a week, repeat.

        None if less than a day is known, or nothing was written in these days.
        """
        days = min(int((now_s - self._end_of(0)[0]) / DAY_S), 7) if self._count else 0
        if not days:
            return None
        period_s = days * DAY_S
        begin_s = now_s - period_s
        begin = self._written_at(begin_s)
        in_period = self._written_at(now_s) - begin
        if in_period <= 0:
            return None
        periods, left = divmod(count, in_period)
        seconds = range(period_s + 1)
        within_s = bisect.bisect_left(seconds, left, key=lambda s: self._written_at(begin_s + s) - begin)
        return periods * period_s + within_s

    def _written_at(self, time_s: float) -> float:
        """Log offset, in proportion to the time between the ends of two segments."""
        after = bisect.bisect_right(range(self._count), time_s, key=lambda index: self._end_of(index)[0])
        if after == 0:
            return self._end_of(0)[1]
        from_s, low = self._end_of(after - 1)
        if after == self._count:
            return low
        to_s, high = self._end_of(after)
        return low + (high - low) * (time_s - from_s) / (to_s - from_s)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Facts about a disk that gets no new segments, from which follows when its segments are gone."""

    now_s: float
    """Wall time."""
    changed_s: float
    """When its newest segment was changed last."""
    bytes_to_clean: int
    """Bytes that have to be written until the other disks are at `clean` with segments that are newer than the
    disk's: from then on, expired segments are removed at any hour."""
    bytes_to_force: int
    """The same for `force`: from then on, segments are removed for lack of space."""
    bytes_per_second: float
    """Present rate of the log. It counts while less than a day of the log is known."""


def seconds_until_expired(facts: Expiry, history: WriteHistory, removals: Removals) -> float | None:
    """Seconds until the disk is empty, if nothing is copied and the next days are as the last ones; None if that is
    not known."""

    def seconds_to_write(count: int) -> float:
        seconds = history.seconds_to_write(max(0, count), facts.now_s)
        return max(0.0, count / facts.bytes_per_second) if seconds is None else seconds

    def seconds_left(lifetime_s: float) -> float:
        return max(0.0, facts.changed_s + lifetime_s - facts.now_s)

    known = []
    lifetime_s, shortest_s = removals.lifetime(facts.changed_s), removals.shortest_lifetime()
    if lifetime_s is not None:
        known.append(seconds_left(lifetime_s))
    if facts.bytes_per_second > 0:
        known.append(seconds_to_write(facts.bytes_to_force))
        if shortest_s is not None:
            known.append(max(seconds_left(shortest_s), seconds_to_write(facts.bytes_to_clean)))
    return min(known, default=None)


def seconds_until(usage: DiskUsage, percent: int, bytes_per_second: float) -> float | None:
    """Seconds until a disk is at `percent`: 0.0 if it is already, None if the rate is 0."""
    missing = _missing_bytes(usage, percent)
    if missing <= 0:
        return 0.0
    return missing / bytes_per_second if bytes_per_second > 0 else None


def _missing_bytes(usage: DiskUsage, percent: int) -> int:
    """Bytes that, added to the used ones, bring a disk to `percent`; not above 0 if it is there already."""
    return -(-percent * usage.entire_bytes // 100) - usage.used_bytes


def next_threshold(usage: DiskUsage, thresholds: Thresholds, bytes_per_second: float) -> NextThreshold | None:
    """The next threshold of a disk; None if it is at or above `full`. `bytes_per_second` is its share of the
    ingest."""
    for name, percent in (
        ("clean", thresholds.clean),
        ("force", thresholds.force),
        ("full", thresholds.full),
    ):
        if not usage.is_at_or_above(percent):
            eta = seconds_until(usage, percent, bytes_per_second)
            return NextThreshold(name, percent, _missing_bytes(usage, percent), eta)
    return None
