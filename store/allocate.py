"""Making a segment on one disk: reserve first, name last.

    step                                   a crash here leaves
    1 unnamed file, owner, mode            nothing (the kernel frees an unnamed file)
    2 reserve the whole segment            nothing
    3 link the name                        a reserved segment of size 0, not listed, found again by name
    4 the caller's one ftruncate           the finished segment, all zeros
    5 directory sync, in the background    before it a power cut may undo 3: as if it had never been made

Steps 1 and 2 can be given up at any moment (a hung disk); step 3 decides, so it runs on its own.
All functions block and belong in a worker thread.
"""

import os
from dataclasses import dataclass

from commitlogfs.store import _syscalls, beneath
from commitlogfs.store.attributes import PackedAttributes, stat_fd
from commitlogfs.store.usage import DiskUsage, measure_usage

PERMISSION_BITS = 0o777
"""No setuid, setgid or sticky bit on a segment, whatever the caller asks for."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a new file belongs to."""

    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class Published:
    attributes: PackedAttributes
    usage: DiskUsage


def reserve(dirfd: int, segment_size: int, owner: Owner) -> int:
    """Steps 1 and 2: a descriptor of an unnamed file with every block of the segment reserved.

    Raises OSError: ENOSPC, EDQUOT, EROFS, EIO among them; EPERM if the owner cannot be set.
    """
    fd = beneath.open_unnamed(dirfd, 0o600)
    try:
        _syscalls.fallocate(fd, _syscalls.FALLOC_FL_KEEP_SIZE, 0, segment_size)
        if (owner.uid, owner.gid) != (os.geteuid(), os.getegid()):
            os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, owner.mode & PERMISSION_BITS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def publish(dirfd: int, fd: int, name: bytes) -> Published:
    """Step 3. Raises FileExistsError where the name is taken on this disk, other OSErrors for trouble."""
    beneath.link_unnamed(fd, dirfd, name)
    return Published(stat_fd(fd), measure_usage(dirfd))
