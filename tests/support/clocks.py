"""Clocks of tests: some are set by the test, with others it does not wait."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from trio.testing import MockClock

from commitlogfs.store.clock import SystemClock


class VirtualTime(SystemClock):
    """Waits of a log in the time of an event loop, such as those after a refusal."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return 1000.0 + self._clock.current_time()


_ROUNDING_S = 1e-9


async def pass_time(clock: MockClock, seconds: float, rest: Callable[[], Awaitable[None]]) -> None:
    """Let virtual time pass as on a machine that keeps up: no task wakes up late. `rest` returns when every task
    waits. `clock.jump` is a pause of the whole machine instead."""
    end_s = clock.current_time() + seconds
    await rest()
    while True:
        left_s = end_s - clock.current_time()
        next_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if left_s <= 0.0 and next_s > _ROUNDING_S:
            return
        clock.jump(max(0.0, next_s if left_s <= 0.0 else min(left_s, next_s)))
        await rest()


class SetClock(SystemClock):
    """The machine's clocks, set forward by the test. Once it has set the wall clock, that one stands still."""

    def __init__(self) -> None:
        self.wall_s: float | None = None
        self.ahead_s = 0.0
        """Lead of `monotonic` and `boottime`."""

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def boottime(self) -> float:
        return super().boottime() + self.ahead_s

    def wall_ns(self) -> int:
        return super().wall_ns() if self.wall_s is None else round(self.wall_s * 1e9)

    def wall(self) -> float:
        return super().wall() if self.wall_s is None else self.wall_s


class ShortWaits(SystemClock):
    """The machine's clocks, with waits of a millisecond at most."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.001))


SHORT_WAITS: Final = ShortWaits()


class RecordedWaits(SystemClock):
    """The machine's clocks; a wait is over at once, and recorded."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
