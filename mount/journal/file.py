"""The file of the journal: one daemon writes it at a time, and its successor continues it.

It is written with pwrite(2) into space that was reserved before. What a daemon has written survives its end by a
signal, as with a mapping of the file; but a full or failing filesystem gives an error here, and a mapping would end
the daemon with SIGBUS.
"""

import contextlib
import os
import stat
from pathlib import Path

from commitlogfs.mount.journal import ring


class JournalFile:
    """The open journal."""

    def __init__(self, path: Path, fd: int, next_sequence: int) -> None:
        self._path = path
        self._fd = fd
        self._next = next_sequence

    def append(self, payload: bytes) -> None:
        """Takes some microseconds. Raises OSError, ValueError."""
        for slot in ring.encode(self._next, payload):
            if os.pwrite(self._fd, slot, ring.position(self._next)) != len(slot):
                raise OSError(f"{self._path}: was written in part only")
            self._next += 1

    def read(self) -> bytes:
        """The whole file as it is now. Raises OSError."""
        return os.pread(self._fd, ring.FILE_BYTES, 0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def remove(self) -> None:
        """The mount has ended: nobody continues the journal. Raises OSError."""
        self._path.unlink(missing_ok=True)


def open_journal(path: Path, pool_id: str) -> JournalFile:
    """Continue the journal of this pool; a damaged one, or one of another pool, is replaced. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        content = os.pread(fd, ring.FILE_BYTES + 1, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        if ring.is_journal_of(content, pool_id):
            return JournalFile(path, fd, ring.next_sequence(content))
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return _make(path, pool_id)


def _make(path: Path, pool_id: str) -> JournalFile:
    """A new file, so that a process that reads the former one is not disturbed."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, ring.FILE_BYTES)
        os.pwrite(fd, ring.encode_header(pool_id), 0)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return JournalFile(path, fd, 0)


def read_journal(path: Path) -> bytes | None:
    """The content of a journal whose daemon may be dead; None if there is none, or not one of this version. Raises
    OSError."""
    try:
        with path.open("rb") as file:
            content = file.read(ring.FILE_BYTES)
    except FileNotFoundError:
        return None
    return content if ring.is_journal(content) else None
