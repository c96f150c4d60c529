"""How fast the log grows and when a disk reaches its next threshold. Pure."""

from collections import deque
from dataclasses import dataclass

from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

WINDOW_S = 120.0
"""The rate is that of the latest so many seconds."""
IDLE_S = 30.0
"""A log that has not grown for so long is idle. Longer than the daemon's own measurements are apart."""
_SHORTEST_S = 0.5
"""Two measurements that are closer together give no rate."""


@dataclass(frozen=True, slots=True)
class NextThreshold:
    """The lowest threshold a disk has not reached yet."""

    name: str
    percent: int
    missing_bytes: int
    eta_seconds: float | None
    """None while the log does not grow, or not on this disk."""


class Growth:
    """The rate at which a log is written, from measurements of how far it is. Steady time measures durations, wall
    time says when."""

    def __init__(self) -> None:
        self.written_to: int | None = None
        """Log offset after the last byte that is known to be written."""
        self._samples: deque[tuple[float, int]] = deque()
        """Steady time and `written_to`, oldest first."""
        self._grown_at_s: float | None = None
        """Wall time of the latest measurement that found more than the one before."""
        self._changed_at_s = 0.0
        """Wall time: when the segment being written was last changed, as its filesystem says."""

    def record(self, steady_s: float, wall_s: float, written_to: int, changed_at_s: float) -> None:
        """One measurement."""
        former = self.written_to
        if former is not None and written_to < former:  # cut by a recovering broker
            self._samples.clear()
        elif former is not None and written_to > former:
            if self.idle_since(wall_s) is not None:  # the pause is no part of the new rate
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
        """0.0 for a log that is idle, or has not been measured twice within the window."""
        if len(self._samples) < 2 or self.idle_since(wall_s) is not None:
            return 0.0
        (began_s, first), (ended_s, last) = self._samples[0], self._samples[-1]
        if ended_s - began_s < _SHORTEST_S or steady_s - ended_s > WINDOW_S:
            return 0.0
        return (last - first) / (ended_s - began_s)


def seconds_until(usage: DiskUsage, percent: int, bytes_per_second: float) -> float | None:
    """Until a disk is at `percent`: 0.0 if it is, None if it never will be."""
    missing = _missing_bytes(usage, percent)
    if missing <= 0:
        return 0.0
    return missing / bytes_per_second if bytes_per_second > 0 else None


def _missing_bytes(usage: DiskUsage, percent: int) -> int:
    """How much more makes a disk `is_at_or_above` this."""
    return -(-percent * usage.entire_bytes // 100) - usage.used_bytes


def next_threshold(usage: DiskUsage, thresholds: Thresholds, bytes_per_second: float) -> NextThreshold | None:
    """None for a disk at or above `full`. `bytes_per_second` is this disk's share of the ingest."""
    for name, percent in (
        ("clean", thresholds.clean),
        ("force", thresholds.force),
        ("full", thresholds.full),
    ):
        if not usage.is_at_or_above(percent):
            eta = seconds_until(usage, percent, bytes_per_second)
            return NextThreshold(name, percent, _missing_bytes(usage, percent), eta)
    return None
