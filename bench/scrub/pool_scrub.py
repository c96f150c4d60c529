"""A scrub of a mounted pool, through its control socket."""

from typing import Final

from commitlogfs.bench.measured_pool import MeasuredPool

UNLIMITED: Final = 1 << 40


class PoolScrub:
    def __init__(self, pool: MeasuredPool) -> None:
        self._pool = pool

    def start(self, rate: int = 0) -> None:
        """`rate` in bytes per second; 0 for the default. Raises CommandFailedError."""
        self._pool.ask("scrub-start", rate=rate, messages=False, dry_run=False)

    def cancel(self) -> None:
        self._pool.ask("scrub-cancel", dry_run=False)
        self._pool.wait_until(lambda: not self.is_running(), "the scrub ends")

    def is_running(self) -> bool:
        return bool(self._pool.status()["scrub"]["state"] == "running")

    def done_bytes(self) -> int:
        return int(self._pool.status()["scrub"]["done_bytes"])
