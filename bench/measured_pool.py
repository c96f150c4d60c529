"""A new pool, mounted, with what all measurements of its daemon's own work have in common."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from commitlogfs.bench.served import CommandFailedError, ServedPool
from commitlogfs.store import layout
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.segment import format_segment_name
from commitlogfs.store.thresholds import Thresholds

TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_OF_THE_FILESYSTEM: Final = 384 << 20
_CHUNK_BYTES: Final = 1 << 20


class MeasuredPool:
    """The pool, asked through its control socket, as a command does it."""

    def __init__(self, pool: ServedPool, disks: Sequence[Path], segment_size: int) -> None:
        self._pool = pool
        self.disks = tuple(disks)
        self.segment_size = segment_size

    @property
    def mountpoint(self) -> Path:
        return self._pool.mountpoint

    def read_bytes(self) -> int:
        """Bytes that the daemon has read from block devices."""
        for line in Path(f"/proc/{self._pool.pid}/io").read_text().splitlines():
            key, _, value = line.partition(": ")
            if key == "read_bytes":
                return int(value)
        raise CommandFailedError("the kernel does not count the input and output of a process")

    def passthrough(self) -> str:
        return str(self.status()["daemon"]["passthrough"])

    def status(self) -> dict[str, Any]:
        return self._pool.ask("status")

    def ask(self, verb: str, **arguments: object) -> None:
        """Raises CommandFailedError, also for a refusal."""
        answer = self._pool.ask(verb, **arguments)
        if "refused" in answer:
            raise CommandFailedError(f"{verb}: {answer['refused']}")

    def last_error(self) -> str:
        """The last error of the measured work, as the daemon reports it; empty without one."""
        return ""

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises CommandFailedError if the condition does not come true in time."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                error = self.last_error() or "none"
                raise CommandFailedError(f"not within {TIMEOUT_S:g} s: {what}; last error: {error}")
            time.sleep(_POLL_S)

    def make_segments(self, indexes: range) -> None:
        """Written and durable, and in the page cache."""
        chunk = os.urandom(_CHUNK_BYTES)
        for index in indexes:
            path = self.mountpoint / self._name(index)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, self.segment_size)
                for position in range(0, self.segment_size, _CHUNK_BYTES):
                    os.pwrite(fd, chunk, position)
                os.fsync(fd)
            finally:
                os.close(fd)

    def located(self, indexes: range) -> list[Path]:
        """The files of segments on the disks."""
        names = [self._name(index) for index in indexes]
        return [next(path for disk in self.disks if (path := disk / name).exists()) for name in names]

    def await_checksums(self, indexes: range) -> None:
        """The newest segments of the log get none. A computation takes out of the page cache what it has read
        itself, and what another process reads in that moment."""
        sealed = self.located(indexes)[:-NEWEST_KEPT]
        has_all = lambda: all(layout.XATTR_CHECKSUM in os.listxattr(path) for path in sealed)  # noqa: E731
        self.wait_until(has_all, "the segments get their checksums")

    def _name(self, index: int) -> str:
        return format_segment_name(index * self.segment_size).decode()


def disk_bytes(content_bytes: int) -> int:
    """Size of a disk that is below `clean` with this content."""
    return content_bytes * 100 // Thresholds().clean + _OF_THE_FILESYSTEM


P = TypeVar("P", bound=MeasuredPool)


@contextmanager
def measured_pool(work: Path, disks: Sequence[Path], segment_size: int, kind: type[P]) -> Iterator[P]:
    """A new pool on directories of the disks, mounted, and removed afterwards. Raises CommandFailedError."""
    work.mkdir(parents=True)
    directories = [disk / work.name for disk in disks]
    try:
        with ServedPool(work, directories, segment_size=segment_size) as pool:
            pool.run("init", pool.config)
            pool.mount()
            yield kind(pool, directories, segment_size)
            pool.unmount()
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
