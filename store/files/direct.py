"""Reads and writes past the page cache (O_DIRECT): they take no memory from a broker; a read asks the device."""

import errno
import fcntl
import mmap
import os
from typing import Final

ALIGNMENT: Final = 4096
"""Multiple of every offset and length for O_DIRECT: the largest logical block of any drive."""


def set_direct(fd: int, *, wanted: bool = True) -> None:
    """Let reads and writes of an open file go past the page cache, or no longer. Does nothing on a filesystem
    without direct I/O. Raises OSError."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def read_block(fd: int, position: int) -> bytes:
    """The ALIGNMENT bytes at a multiple of it, fewer at the end of the file, of a file that `set_direct` was called
    for. Blocks; raises OSError."""
    with mmap.mmap(-1, ALIGNMENT) as aligned:
        return aligned[: os.preadv(fd, [aligned], position)]
