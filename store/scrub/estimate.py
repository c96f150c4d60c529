"""How fast a disk is read, for the time that a scrub has left. Pure."""

from collections import deque
from typing import Final

WINDOW_S: Final = 86400.0
"""The load of a broker's machine repeats itself every day, so that the mean of a day holds for the next ones."""
SHORTEST_S: Final = 0.5
"""A rate from less time at work says nothing."""
_SAMPLE_INTERVAL_S: Final = 60.0


class RateEstimate:
    """Mean rate of the last day at work. Times are the seconds at work, and bytes those that are done, since the
    begin of the run."""

    def __init__(self, active_s: float = 0.0, read_bytes: int = 0) -> None:
        """Count from here on."""
        self._samples = deque([(active_s, read_bytes)])

    def record(self, active_s: float, read_bytes: int) -> None:
        """Call it at intervals that are much shorter than a day."""
        if self._samples[-1][0] + _SAMPLE_INTERVAL_S <= active_s:
            self._samples.append((active_s, read_bytes))
        while len(self._samples) > 1 and self._samples[1][0] <= active_s - WINDOW_S:
            self._samples.popleft()

    def bytes_per_second(self, active_s: float, read_bytes: int) -> float:
        """0 if it is not known yet."""
        first_s, first_bytes = self._samples[0]
        if active_s - first_s < SHORTEST_S:
            return 0.0
        return max(0, read_bytes - first_bytes) / (active_s - first_s)
