"""A mounted pool with a disk whose segments can be moved away."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlogfs.bench.measured_pool import MeasuredPool, measured_pool
from commitlogfs.bench.served import ServedPool


class DrainedPool(MeasuredPool):
    """`source` is the disk that drains; it gets no new segments in the whole run, so that a move is the only
    difference between two measurements.

    A move reads each byte twice, past the page cache: from the source, and back from the copy. A rate limits their
    sum, which `read_bytes` counts.
    """

    def __init__(self, pool: ServedPool, disks: Sequence[Path], segment_size: int) -> None:
        super().__init__(pool, disks, segment_size)
        self.source, self.others = self.disks[0], self.disks[1:]

    def fill_source_only(self) -> None:
        """New segments go to the source, until `fill_others_only`."""
        self.ask("disk-uncordon", disk=str(self.source))
        for disk in self.others:
            self.ask("disk-cordon", disk=str(disk), reason="bench")

    def fill_others_only(self) -> None:
        for disk in self.others:
            self.ask("disk-uncordon", disk=str(disk))
        self.ask("disk-cordon", disk=str(self.source), reason="bench")

    def drain(self, rate: int = 0) -> None:
        """Begin a drain by copying, or change its rate; 0 for the default. Raises CommandFailedError."""
        self.ask("disk-drain", disk=str(self.source), mode="copy", rate=rate, dry_run=False)

    def cancel(self) -> None:
        """Returns when no segment is being moved any more."""
        self.ask("disk-cancel", disk=str(self.source), dry_run=False)
        self.wait_until(lambda: not self.is_moving(), "the move under way ends")

    def is_moving(self) -> bool:
        return self.status()["moves"]["current"] is not None

    def segments_to_move(self) -> int:
        drain = self._status_of_source()["drain"]
        return 0 if drain is None else drain["segments_left"] - drain["segments_kept"]

    def last_error(self) -> str:
        return str(self.status()["moves"]["last_error"])

    def _status_of_source(self) -> dict[str, Any]:
        found: dict[str, Any] = next(d for d in self.status()["disks"] if d["path"] == str(self.source))
        return found


@contextmanager
def drained_pool(work: Path, disks: Sequence[Path], segment_size: int) -> Iterator[DrainedPool]:
    """As `measured_pool`."""
    with measured_pool(work, disks, segment_size, DrainedPool) as pool:
        yield pool
