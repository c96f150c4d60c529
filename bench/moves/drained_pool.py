"""A mounted pool with a disk whose segments can be moved away."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlogfs.bench.measured_pool import TIMEOUT_S, MeasuredPool, measured_pool


class DrainedPool:
    """`source` is the disk that drains; it gets no new segments in the whole run, so that a move is the only
    difference between two measurements."""

    def __init__(self, pool: MeasuredPool) -> None:
        self.pool = pool
        self.source, *others = pool.disks
        self.others = tuple(others)

    @property
    def mountpoint(self) -> Path:
        return self.pool.mountpoint

    def fill_source_only(self) -> None:
        """New segments go to the source, until `fill_others_only`."""
        self.pool.ask("disk-uncordon", disk=str(self.source))
        for disk in self.others:
            self.pool.ask("disk-cordon", disk=str(disk), reason="bench")

    def fill_others_only(self) -> None:
        for disk in self.others:
            self.pool.ask("disk-uncordon", disk=str(disk))
        self.pool.ask("disk-cordon", disk=str(self.source), reason="bench")

    def drain(self, rate: int = 0) -> None:
        """Begin a drain by copying, or change its rate; 0 for the default. Raises CommandFailedError."""
        self.pool.ask("disk-drain", disk=str(self.source), mode="copy", rate=rate, dry_run=False)

    def cancel(self) -> None:
        """Returns when no segment is being moved any more."""
        self.pool.ask("disk-cancel", disk=str(self.source), dry_run=False)
        self.wait_until(lambda: not self.is_moving(), "the move under way ends")

    def is_moving(self) -> bool:
        return self.pool.status()["moves"]["current"] is not None

    def segments_to_move(self) -> int:
        drain = self._status_of_source()["drain"]
        return 0 if drain is None else drain["segments_left"] - drain["segments_kept"]

    def read_bytes(self) -> int:
        """Bytes read for moves. A move reads each byte twice, past the page cache: from the source, and back from
        the copy. A rate limits their sum."""
        return self.pool.read_bytes()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises CommandFailedError if the condition does not come true in time."""
        self.pool.wait_until(condition, what, TIMEOUT_S, self._last_error)

    def _last_error(self) -> str:
        return str(self.pool.status()["moves"]["last_error"] or "none")

    def _status_of_source(self) -> dict[str, Any]:
        disks = self.pool.status()["disks"]
        found: dict[str, Any] = next(disk for disk in disks if disk["path"] == str(self.source))
        return found


@contextmanager
def drained_pool(work: Path, disks: Sequence[Path], segment_size: int) -> Iterator[DrainedPool]:
    """As `measured_pool`."""
    with measured_pool(work, disks, segment_size) as pool:
        yield DrainedPool(pool)
