"""Leftovers: files without data that a failed disk keeps of segments which were then made on another disk.

A leftover is empty, or has full size without a byte of data if the disk has carried out a late ftruncate. A file
that holds data is never a leftover and is never removed here. What a crash leaves: docs/architecture.md. All
functions except `keep_one` block.
"""

import errno
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Sequence, Set
from typing import Final

from commitlogfs.store import _syscalls, layout
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import HoldsDataError
from commitlogfs.store.files import durable, safe_open, write_lease
from commitlogfs.store.files.attributes import nlink_of, stat_fd, unpack
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.pool.catalog import Segment

_INT: Final = struct.Struct("i")


def size_in_memory(fd: int) -> int:
    """Size of an open file from the kernel's memory, for files below 2 GiB, as segments are.

    The filesystem takes no part in it. So this neither waits nor fails on a disk in trouble, where fstat may: xfs
    returns EIO after a shutdown.
    """
    size: int = _INT.unpack(fcntl.ioctl(fd, termios.FIONREAD, bytes(_INT.size)))[0]
    return size


def is_unwritten(fd: int, segment_size: int) -> bool:
    """Whether nobody has written to an open file that a disk is about to give its full size. False in doubt, and on
    a kernel before Linux 6.5.

    ext4 shows the new size before its journal has it, so the size proves nothing: the page cache does, which never
    had a page of the file. The kernel tells from memory (cachestat takes no lock of the file). It does not know of
    direct I/O: such a writer could only write to a size that no process has seen yet.
    """
    size = size_in_memory(fd)
    if size != segment_size:
        return size == 0
    try:
        return not any(_syscalls.cachestat(fd))
    except OSError:
        return False


def holds_nothing(fd: int) -> bool:
    """Whether a file holds no data: it is empty, or has only blocks that were never written, on disk and in memory.

    Raises OSError if the filesystem does not know.
    """
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
    """Whether the file `name` with inode `ino` holds no data and has no other name. False in doubt."""
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


def lacks_data(dirfd: int, name: bytes, ino: int) -> bool:
    """As `name_holds_nothing`; one system call suffices for a segment with a checksum, which nobody makes of a
    leftover."""
    try:
        os.getxattr(f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}", layout.XATTR_CHECKSUM, follow_symlinks=False)
    except OSError:
        return name_holds_nothing(dirfd, name, ino)
    return False


def keep_one(
    copies: Sequence[Segment],
    segment_size: int,
    opened: Set[tuple[DiskNumber, int]],
    holds_nothing: Callable[[Segment], bool],
) -> Segment | None:
    """The one of several files of one segment that is the segment, so that the others are leftovers.

    It is the file that holds data, or that is in `opened`, as a program may be about to write to it. None if that
    is more than one. If there is none, all are equally empty: then a file of full size, then the youngest, because
    a leftover is older than the file that replaces it.
    """
    taken = [copy for copy in copies if (copy.disk, copy.ino) in opened or not holds_nothing(copy)]
    if len(taken) > 1:
        return None
    if taken:
        return taken[0]
    return max(copies, key=lambda copy: (copy.size == segment_size, unpack(copy.attributes).btime_ns))


def remove_leftover(dirfd: int, name: bytes, ino: int) -> DiskUsage | None:
    """Remove a leftover durably and return the disk's usage. It is no error if the file is gone already.

    Returns None and removes nothing while a process has the file open. Raises HoldsDataError; OSError with ELOOP if
    another file has the name.
    """
    try:
        safe_open.require_file(dirfd, name, ino)
        if not name_holds_nothing(dirfd, name, ino):
            raise HoldsDataError(
                f"{name.decode()}: was empty when it was given up, and may hold data by now; it stays"
            )
        if write_lease.is_open_elsewhere(dirfd, name):
            return None
        os.unlink(name, dir_fd=dirfd)
    except FileNotFoundError:
        pass
    durable.sync_dir(dirfd)
    return measure_usage(dirfd)
