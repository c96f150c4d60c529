"""The clock that a pool goes by: the only place that reads one.

A daemon's successor compares monotonic times with its own, so they come from CLOCK_MONOTONIC, not from trio, whose
times begin anywhere in each process. The event loop's own waits go by trio's clock.
"""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Tells the time. Each method may be called in any thread."""

    def monotonic(self) -> float:
        """Seconds since a fixed moment, which is the same for all processes of the machine, also for later ones."""
        ...

    def boottime(self) -> float:
        """As monotonic, but the time for which the machine was suspended counts."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, which somebody may set forward or back."""
        ...

    def wall(self) -> float:
        """The same, in seconds."""
        ...

    def processor(self) -> float:
        """Seconds of processor time that the calling thread has used."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait. Never in the event loop."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ns(self) -> int:
        return time.time_ns()

    def wall(self) -> float:
        return time.time()

    def processor(self) -> float:
        return time.thread_time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
