"""A mounted pool with a disk whose segments can be moved away, and the bytes that its daemon has read for that."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from commitlogfs.bench.served import CommandFailedError, ServedPool

TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05


class DrainedPool:
    """The pool. `source` is the disk that drains; it gets no new segments in the whole run, so that a move is the
    only difference between two measurements."""

    def __init__(self, pool: ServedPool, disks: Sequence[Path]) -> None:
        self._pool = pool
        self.disks = tuple(disks)
        self.source = self.disks[0]
        self.others = self.disks[1:]

    @property
    def mountpoint(self) -> Path:
        return self._pool.mountpoint

    def fill_source_only(self) -> None:
        """New segments go to the source, until `fill_others_only`."""
        self._ask("disk-uncordon", disk=str(self.source))
        for disk in self.others:
            self._ask("disk-cordon", disk=str(disk), reason="bench")

    def fill_others_only(self) -> None:
        for disk in self.others:
            self._ask("disk-uncordon", disk=str(disk))
        self._ask("disk-cordon", disk=str(self.source), reason="bench")

    def drain(self, rate: int = 0) -> None:
        """Begin a drain by copying, or change its rate; 0 for the default. Raises CommandFailedError."""
        self._ask("disk-drain", disk=str(self.source), mode="copy", rate=rate, dry_run=False)

    def cancel(self) -> None:
        """Returns when no segment is being moved any more."""
        self._ask("disk-cancel", disk=str(self.source), dry_run=False)
        self.wait_until(lambda: not self.is_moving(), "the move under way ends")

    def is_moving(self) -> bool:
        return self.status()["moves"]["current"] is not None

    def segments_to_move(self) -> int:
        drain = self._status_of_source()["drain"]
        return 0 if drain is None else drain["segments_left"] - drain["segments_kept"]

    def moved_bytes(self) -> int:
        """Bytes of the segments that were moved since the mount."""
        return int(self.status()["moves"]["bytes"])

    def read_bytes(self) -> int:
        """Bytes that the daemon has read from block devices. A move reads each byte twice, past the page cache:
        from the source, and back from the copy. A rate limits their sum."""
        for line in Path(f"/proc/{self._pool.pid}/io").read_text().splitlines():
            key, _, value = line.partition(": ")
            if key == "read_bytes":
                return int(value)
        raise CommandFailedError("the kernel does not count the input and output of a process")

    def passthrough(self) -> str:
        return str(self.status()["daemon"]["passthrough"])

    def status(self) -> dict[str, Any]:
        return self._pool.ask("status")

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Raises CommandFailedError if the condition does not come true in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise CommandFailedError(
                    f"not within {timeout_s:g} s: {what}; last error of a move: "
                    f"{self.status()['moves']['last_error'] or 'none'}"
                )
            time.sleep(_POLL_S)

    def _status_of_source(self) -> dict[str, Any]:
        found: dict[str, Any] = next(d for d in self.status()["disks"] if d["path"] == str(self.source))
        return found

    def _ask(self, verb: str, **arguments: object) -> None:
        answer = self._pool.ask(verb, **arguments)
        if "refused" in answer:
            raise CommandFailedError(f"{verb}: {answer['refused']}")


@contextmanager
def drained_pool(work: Path, disks: Sequence[Path], segment_size: int) -> Iterator[DrainedPool]:
    """A new pool on directories of the disks, mounted, and removed afterwards. Raises CommandFailedError."""
    work.mkdir(parents=True)
    directories = [disk / work.name for disk in disks]
    try:
        with ServedPool(work, directories, segment_size=segment_size) as pool:
            pool.run("init", pool.config)
            pool.mount()
            yield DrainedPool(pool, directories)
            pool.unmount()
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
