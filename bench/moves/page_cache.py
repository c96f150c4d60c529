"""Number of pages of a file that are in the page cache, from mincore(2)."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_FAILED = ctypes.c_void_p(-1).value


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
