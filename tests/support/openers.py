"""Opens and mappings of segments, in this process or in a child, with the same interface.

An opener that has ended has closed everything. Both are made before any file of a mount is open: see support.kept.
"""

import contextlib
import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

DIRECT_ALIGNMENT = 4096
_BOUNCE_BYTES = 1 << 20


class Opener(Protocol):
    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of LocalOpener. Raises its errors."""


class LocalOpener:
    """The opens of this process, by numbers that the caller gives them."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._direct: set[int] = set()
        self._mappings: dict[int, tuple[mmap.mmap, int]] = {}
        """With the position of the first byte."""
        self._bounce = mmap.mmap(-1, _BOUNCE_BYTES)
        """Aligned, for O_DIRECT."""
        self._sink = os.memfd_create("sink", os.MFD_CLOEXEC)

    def ask(self, what: str, *arguments: Any) -> Any:
        method: Callable[..., Any] = getattr(self, what)
        return method(*arguments)

    # --- opening and closing -------------------------------------------------------------------------

    def open(self, number: int, path: str, flags: int) -> None:
        self._fds[number] = os.open(path, flags, 0o644)
        if flags & os.O_DIRECT:
            self._direct.add(number)

    def close(self, number: int) -> None:
        """Its mapping, too."""
        if number in self._mappings:
            self.unmap(number)
        self._direct.discard(number)
        os.close(self._fds.pop(number))

    def map(self, number: int, start: int, length: int, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapping = mmap.mmap(self._fds[number], length, mmap.MAP_SHARED, protection, offset=start)
        self._mappings[number] = mapping, start

    def unmap(self, number: int) -> None:
        self._mappings.pop(number)[0].close()

    def end(self) -> None:
        for number in list(self._fds):
            self.close(number)

    # --- plain I/O -----------------------------------------------------------------------------------

    def pread(self, number: int, length: int, offset: int) -> bytes:
        if number not in self._direct:
            return os.pread(self._fds[number], length, offset)
        with memoryview(self._bounce)[:length] as buffer:
            return bytes(buffer[: os.preadv(self._fds[number], [buffer], offset)])

    def pwrite(self, number: int, data: bytes, offset: int) -> int:
        if number not in self._direct:
            return os.pwrite(self._fds[number], data, offset)
        self._bounce[: len(data)] = data
        with memoryview(self._bounce)[: len(data)] as buffer:
            return os.pwritev(self._fds[number], [buffer], offset)

    def send(self, number: int, length: int, offset: int) -> bytes:
        """Read by sendfile(2)."""
        os.lseek(self._sink, 0, os.SEEK_SET)
        sent = 0
        while sent < length:
            step = os.sendfile(self._sink, self._fds[number], offset + sent, length - sent)
            if not step:
                break
            sent += step
        return os.pread(self._sink, sent, 0)

    def copy(self, source: int, target: int, length: int, from_offset: int, to_offset: int) -> int:
        """copy_file_range(2), once."""
        return os.copy_file_range(self._fds[source], self._fds[target], length, from_offset, to_offset)

    def fsync(self, number: int) -> None:
        os.fsync(self._fds[number])

    def fdatasync(self, number: int) -> None:
        os.fdatasync(self._fds[number])

    def drop(self, number: int, offset: int, length: int) -> None:
        """Forget clean cached pages."""
        os.posix_fadvise(self._fds[number], offset, length, os.POSIX_FADV_DONTNEED)

    # --- mapped I/O ----------------------------------------------------------------------------------

    def load(self, number: int, length: int, offset: int) -> bytes:
        mapping, start = self._mappings[number]
        return mapping[offset - start : offset - start + length]

    def store(self, number: int, data: bytes, offset: int) -> None:
        mapping, start = self._mappings[number]
        mapping[offset - start : offset - start + len(data)] = data

    def msync(self, number: int, length: int, offset: int) -> None:
        """Call msync for the pages that hold these bytes."""
        mapping, start = self._mappings[number]
        first = (offset - start) // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.flush(first, offset - start + length - first)

    def unfault(self, number: int) -> None:
        """The next load or store of each page asks the kernel again."""
        self._mappings[number][0].madvise(mmap.MADV_DONTNEED)

    # --- size ----------------------------------------------------------------------------------------

    def size(self, number: int) -> int:
        return os.fstat(self._fds[number]).st_size

    def truncate(self, number: int, size: int) -> None:
        os.ftruncate(self._fds[number], size)

    def allocate(self, number: int, length: int) -> None:
        os.posix_fallocate(self._fds[number], 0, length)

    def seek(self, number: int, offset: int, whence: int) -> int:
        return os.lseek(self._fds[number], offset, whence)


class ChildOpener:
    """The opens of another process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, what: str, *arguments: Any) -> Any:
        self._connection.send((what, arguments))
        value = self._connection.recv()
        if isinstance(value, BaseException):
            raise value
        return value


@contextlib.contextmanager
def child_opener() -> Iterator[ChildOpener]:
    """A process that does as it is asked until the end of the block, or of this process."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(ours, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ChildOpener(ours)
    finally:
        ours.close()
        process.join()


def _serve(ours: Connection, theirs: Connection) -> None:
    ours.close()  # or its end would never be seen
    opener = LocalOpener()
    with contextlib.suppress(EOFError):
        while True:
            what, arguments = theirs.recv()
            try:
                theirs.send(opener.ask(what, *arguments))
            except Exception as error:
                theirs.send(error)
    opener.end()
