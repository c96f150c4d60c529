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

from commitlogfs.store import _syscalls
from commitlogfs.store.errors import UncertainPublishError
from commitlogfs.store.files import safe_open
from commitlogfs.store.files.attributes import PackedAttributes, stat_fd, stat_name
from commitlogfs.store.files.usage import DiskUsage, measure_usage

PERMISSION_BITS = 0o777
"""Mode bits that a caller can set: no setuid, setgid or sticky bit on a segment."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner and permissions of a new file."""

    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class Published:
    attributes: PackedAttributes
    usage: DiskUsage | None
    """None where the disk failed just after the link."""


def reserve(dirfd: int, segment_size: int, owner: Owner) -> int:
    """Steps 1 and 2: a descriptor of an unnamed file with every block of the segment reserved.

    Raises OSError: ENOSPC, EDQUOT, EROFS, EIO among them; EPERM if the owner cannot be set.
    """
    fd = safe_open.open_unnamed(dirfd, 0o600)
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
    """Step 3. On any OSError the name is certain not to lie on this disk as this file, so that another disk may
    be tried: FileExistsError where it is taken, others for trouble. Raises UncertainPublishError otherwise.
    """
    attributes = stat_fd(fd)
    try:
        safe_open.link_unnamed(fd, dirfd, name)
    except FileExistsError:
        raise
    except OSError as error:
        if is_certainly_absent(dirfd, name):
            raise
        raise UncertainPublishError(f"{name.decode()}: may or may not lie on the disk ({error})") from error
    # It exists from here on: whatever fails now, this is the segment.
    try:
        return Published(stat_fd(fd), measure_usage(dirfd))
    except OSError:
        return Published(attributes, None)


def is_certainly_absent(dirfd: int, name: bytes) -> bool:
    """False for a name that is there, and on a disk that cannot tell: one in trouble may have kept a name whose
    link it refused, and the same segment on two disks is the one thing that must not happen."""
    try:
        stat_name(dirfd, name)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
