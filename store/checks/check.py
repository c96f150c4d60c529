"""Check of a disk that nobody has complained about: a few blocks are read past the page cache, and a little is
written durably.

Everything here blocks, for as long as the disk hangs. It runs in a process of its own (check_process.py).
"""

import errno
import mmap
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlogfs.store.disks.disk import MEDIUM_ERRORS, translate
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files import direct, safe_open

BLOCK: Final = 4096
BLOCKS_READ: Final = 3
"""Number of blocks that a check reads, of different segments if the disk holds as many. One bad block is not a bad
disk."""


class Stage(Enum):
    """Part of a check that is under way."""

    READING = "reading"
    WRITING = "writing"


@dataclass(frozen=True, slots=True)
class DiskCheck:
    """The answers of a disk to a check."""

    read: int
    """Number of blocks that could be read."""
    failed: int
    """Number of blocks that the disk refused to read."""
    read_errno: int
    """Error of the last block that was refused; 0 if there is none."""
    write_errno: int
    """Why nothing could be written durably; 0 if it could, or was not tried."""


def check_disk(
    dirfd: int, names: Sequence[bytes], *, may_write: bool, announce: Callable[[Stage], None]
) -> DiskCheck:
    """Read blocks of the segments `names` and, if `may_write`, write and sync a file without a name, which leaves
    nothing behind. If no block of a segment was read or refused, that file is read back: else a disk without
    segments, or with such as have no data, could never prove that it can be read again. `announce` is called at the
    beginning of each stage."""
    announce(Stage.READING)
    read = failed = read_errno = 0
    for index in range(BLOCKS_READ if names else 0):
        try:
            read += read_block(dirfd, names[index % len(names)])
        except OSError as error:
            if _is_refusal(error):  # not where a segment was removed meanwhile
                failed, read_errno = failed + 1, error.errno or errno.EIO
    write_errno = 0
    if may_write:
        announce(Stage.WRITING)
        try:
            fd = safe_open.open_unnamed(dirfd, 0o600)
            try:
                os.pwrite(fd, bytes(BLOCK), 0)
                os.fdatasync(fd)
                if not read and not failed:
                    read, failed, read_errno = _read_back(fd)
            finally:
                os.close(fd)
        except OSError as error:
            write_errno = error.errno or errno.EIO
    return DiskCheck(read, failed, read_errno, write_errno)


def read_block(dirfd: int, name: bytes) -> bool:
    """Read some block of a file, another one each time; False if the file has no data. Bypasses the page cache if
    the filesystem supports O_DIRECT. Raises OSError."""
    try:
        fd = safe_open.open_file(dirfd, name, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = safe_open.open_file(dirfd, name, os.O_RDONLY)
    try:
        position = _some_position(fd)
        if position is None:
            return False
        with mmap.mmap(-1, BLOCK) as aligned:
            os.preadv(fd, [aligned], position)
    finally:
        os.close(fd)
    return True


def _some_position(fd: int) -> int | None:
    """Position of a block with data. The kernel answers for a hole, or for blocks that are only reserved, without
    asking the device."""
    size = os.fstat(fd).st_size
    for start in (random.randrange(max(1, size // BLOCK)) * BLOCK, 0):  # noqa: S311
        try:
            return os.lseek(fd, start, os.SEEK_DATA) // BLOCK * BLOCK
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
    return None


def _read_back(fd: int) -> tuple[int, int, int]:
    """Blocks read, blocks failed, error of the last one."""
    try:
        direct.set_direct(fd)
        direct.read_block(fd, 0)
    except OSError as error:
        return (0, 1, error.errno or errno.EIO) if _is_refusal(error) else (0, 0, 0)
    return 1, 0, 0


def _is_refusal(error: OSError) -> bool:
    """Whether a read failed because of the disk, or of the way to it, and not for want of memory or of the file.
    Direct reads get such errors from the block layer as they are."""
    return error.errno in MEDIUM_ERRORS or isinstance(translate("", error), DiskFailedError)
