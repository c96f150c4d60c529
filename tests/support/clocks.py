"""Clocks that tests set."""

from commitlogfs.store.clock import SystemClock


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
