"""How far a segment is written. Its size and its blocks do not show it: all of it is reserved in advance.

RocketMQ writes a segment from its beginning, and what it has not written yet reads as zeros, whether as an
unwritten extent or because the broker has touched the pages in advance (warmMapedFileEnable). So the end of data is
found by bisection. SEEK_HOLE would count what a process has merely read: a page of an unwritten extent that is
in memory is data to it.
"""

import os
from dataclasses import dataclass
from typing import Final

from commitlogfs.store.files import safe_open

_WINDOW: Final = 64 * 1024
"""Bytes read in one place. A record shows by its header, so only a body of that many zeros looks unwritten."""
_BEGINNING: Final = 8


@dataclass(frozen=True, slots=True)
class Written:
    length: int
    """Bytes from the beginning of the segment up to the last one that is not zero; 0 without a record."""
    mtime_ns: int


def has_data(dirfd: int, path: bytes) -> bool:
    """Whether a record begins the file: RocketMQ's segments begin with a record's length. Blocks; raises OSError.
    Where the daemon serves the file, a store to a mapping shows here only after msync."""
    fd = safe_open.open_file(dirfd, path, os.O_RDONLY)
    try:
        return any(os.pread(fd, _BEGINNING, 0))
    finally:
        os.close(fd)


def find_written(dirfd: int, path: bytes, size: int, at_least: int = 0) -> Written:
    """`at_least` bytes are known to be written. Blocks; raises OSError."""
    fd = safe_open.open_file(dirfd, path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        mtime_ns = os.fstat(fd).st_mtime_ns
        if not any(os.pread(fd, _BEGINNING, 0)):
            return Written(0, mtime_ns)
        low, high = max(1, at_least // _WINDOW), -(-size // _WINDOW)
        while low < high:
            middle = (low + high) // 2
            if _written_in(fd, middle):
                low = middle + 1
            else:
                high = middle
        start = (low - 1) * _WINDOW
        return Written(max(at_least, start + _written_in(fd, low - 1)), mtime_ns)
    finally:
        os.close(fd)


def _written_in(fd: int, window: int) -> int:
    """Length of what is written in one window, by its last byte that is not zero."""
    return len(os.pread(fd, _WINDOW, window * _WINDOW).rstrip(b"\0"))
