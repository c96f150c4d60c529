"""Growth rate of the log, and the time when a disk reaches its next threshold. Pure."""

from collections import deque
from dataclasses import dataclass

from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

WINDOW_S = 120.0
"""Length of the latest period over which the rate is measured."""
IDLE_S = 30.0
"""Time after which a log that does not grow is idle. It is longer than the time between two measurements."""
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


def seconds_until_expired(
    room_bytes: int, written_since_bytes: int, bytes_per_second: float, lifetime_left_s: float | None
) -> float | None:
    """Seconds until a disk that gets no new segments is empty, if nothing is copied; None if that is not known.

    `room_bytes` is what the other disks can hold of the log before old segments are deleted for lack of space: when
    they hold that much that is newer, the disk's segments are gone. `written_since_bytes` of it were written after
    the disk's newest segment. `lifetime_left_s` is the time until that segment is as old as those that were deleted
    lately; None if none was.
    """
    known = [] if lifetime_left_s is None else [max(0.0, lifetime_left_s)]
    if bytes_per_second > 0:
        known.append(max(0.0, (room_bytes - written_since_bytes) / bytes_per_second))
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
