"""Pages of files that are in the page cache, from mincore(2)."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlogfs.bench.figures import Target

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_FAILED = ctypes.c_void_p(-1).value
CACHE_LIMIT: Final = 0.01
_STEP_BYTES: Final = 1 << 20


def pages_of(paths: Iterable[Path]) -> int:
    """Number of pages that the files have."""
    return sum(-(-path.stat().st_size // mmap.PAGESIZE) for path in paths)


def cached_pages_of(paths: Iterable[Path]) -> int:
    """Number of their pages in the page cache. Reads none into it. Raises OSError."""
    return sum(_cached_pages(path) for path in paths)


def _cached_pages(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if not size:
            return 0
        # The mmap module gives no address of a read-only map.
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            raise _last_error(path)
        try:
            resident = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
            if _LIBC.mincore(address, size, resident):
                raise _last_error(path)
            return sum(byte & 1 for byte in resident.raw[: -(-size // mmap.PAGESIZE)])
        finally:
            _LIBC.munmap(address, size)
    finally:
        os.close(fd)


def _last_error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))


@dataclass(slots=True)
class KeptPages:
    """Cached pages of files before and after some work, and of a control file that the work has nothing to do with:
    some machines reclaim idle pages at any time."""

    before: int = 0
    after: int = 0
    control_before: int = 0
    control_after: int = 0

    @property
    def lost(self) -> float:
        """Part of the pages that are gone, beyond that of the control file."""
        return round(max(0.0, self.control_after / self.control_before - self.after / self.before), 4)

    def target(self, of: str) -> Target:
        name = f"cached pages of {of} that are gone, beyond those of a file elsewhere"
        return Target(name, self.lost, CACHE_LIMIT, "")

    def as_json(self) -> dict[str, dict[str, int]]:
        return {
            "other_cached_pages": {"before": self.before, "after": self.after},
            "control_cached_pages": {"before": self.control_before, "after": self.control_after},
        }

    def in_words(self) -> str:
        return (
            f"{self.before:,} before, {self.after:,} after; of a file elsewhere {self.control_before:,} and "
            f"{self.control_after:,}"
        )


def kept_pages(paths: Sequence[Path], control: Path, work: Callable[[], object]) -> KeptPages:
    """Read all files and a new file `control`, as large as they are together, into the page cache; count before and
    after `work`. Raises OSError, and what `work` raises."""
    chunk = os.urandom(_STEP_BYTES)
    with control.open("wb") as file:
        for _ in range(sum(path.stat().st_size for path in paths) // _STEP_BYTES):
            file.write(chunk)
        os.fsync(file.fileno())
    _read_in_turn([*paths, control])
    kept = KeptPages(cached_pages_of(paths), 0, cached_pages_of([control]), 0)
    work()
    kept.after, kept.control_after = cached_pages_of(paths), cached_pages_of([control])
    return kept


def drop_from_cache(path: Path) -> None:
    """Its clean pages."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _read_in_turn(paths: Sequence[Path]) -> None:
    """Read all files anew, a part of each after the other: some machines reclaim idle pages at any time, by their
    place in memory."""
    for path in paths:
        drop_from_cache(path)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]
        unread = [(file, os.fstat(file.fileno()).st_size) for file in files]
        steps = max(size for _, size in unread) // _STEP_BYTES
        for step in range(steps):
            for file, size in unread:
                begin, end = step * size // steps, (step + 1) * size // steps
                os.pread(file.fileno(), end - begin, begin)
