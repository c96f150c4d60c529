"""Empty files that a failing disk keeps of segments which were then made on another disk.

    what the disk had done               what lies there when it is well again
    refused the link, or undone it       nothing
    linked the name                      an empty file, all its blocks reserved
    carried out a late ftruncate         a file of full size without a byte of data

A file that holds data is never a leftover, and is never removed here. All functions but `keep_one` block.
"""

import errno
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Sequence, Set
from typing import Final

from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.errors import HoldsDataError
from commitlogfs.store.files import durable, safe_open, write_lease
from commitlogfs.store.files.attributes import nlink_of, stat_fd, unpack
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.pool.catalog import Segment

_INT: Final = struct.Struct("i")


def size_in_memory(fd: int) -> int:
    """Size of an open file, as the kernel knows it: the filesystem is not asked, so this neither waits nor fails
    on a disk that is in trouble (xfs answers fstat with EIO after a shutdown). Below 2 GiB, as segments are."""
    size: int = _INT.unpack(fcntl.ioctl(fd, termios.FIONREAD, bytes(_INT.size)))[0]
    return size


def holds_nothing(fd: int) -> bool:
    """Whether a file holds no data: it is empty, or has only blocks that were never written, on disk and in memory.
    Raises OSError where the filesystem cannot tell."""
    if os.fstat(fd).st_size == 0:
        return True
    try:
        os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return True
    return False


def name_holds_nothing(dirfd: int, name: bytes, ino: int) -> bool:
    """The same for the file with inode `ino` of that name, which must have no other. False in doubt."""
    try:
        fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    except OSError:
        return False
    try:
        return nlink_of(stat_fd(fd)) == 1 and holds_nothing(fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def keep_one(
    copies: Sequence[Segment],
    segment_size: int,
    opened: Set[tuple[DiskNumber, int]],
    holds_nothing: Callable[[Segment], bool],
) -> Segment | None:
    """Which of the files with the name of one segment is the segment, so that the others are leftovers; None where
    more than one may be. One that holds data is, and one of `opened`: somebody may be about to write there.

    Where nothing tells them apart they are all equally empty: a whole one, then the youngest, because a leftover
    was there first.
    """
    taken = [copy for copy in copies if (copy.disk, copy.ino) in opened or not holds_nothing(copy)]
    if len(taken) > 1:
        return None
    if taken:
        return taken[0]
    return max(copies, key=lambda copy: (copy.size == segment_size, unpack(copy.attributes).btime_ns))


def remove_leftover(dirfd: int, name: bytes, ino: int) -> DiskUsage | None:
    """Remove a leftover durably; the usage without it. None, and nothing removed, while somebody has it open.
    Success where it is gone already. Raises HoldsDataError, and OSError: ELOOP where another file lies there."""
    try:
        safe_open.require_file(dirfd, name, ino)
        if not name_holds_nothing(dirfd, name, ino):
            raise HoldsDataError(f"{name.decode()}: was given up empty, and may hold data by now; it stays")
        if write_lease.is_open_elsewhere(dirfd, name):
            return None
        os.unlink(name, dir_fd=dirfd)
    except FileNotFoundError:
        pass
    durable.sync_dir(dirfd)
    return measure_usage(dirfd)
