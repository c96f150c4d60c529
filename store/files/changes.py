"""Changes of a file's attributes: its size, mode, owner and times. Blocks; belongs in a worker thread."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from commitlogfs.store.files import safe_open
from commitlogfs.store.files.allocate import PERMISSION_BITS
from commitlogfs.store.files.attributes import PackedAttributes, stat_fd


@dataclass(frozen=True, slots=True)
class Changes:
    """The attributes to change; None leaves one as it is."""

    size: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


def apply(
    dirfd: int, path: bytes, ino: int, changes: Changes, check_resize: Callable[[int, int], None]
) -> PackedAttributes:
    """All checks come before the first change. Returns the attributes afterwards.

    Raises OSError, and whatever `check_resize(current, new)` raises.
    """
    flags = os.O_RDONLY if changes.size is None else os.O_RDWR
    fd = safe_open.open_file(dirfd, path, flags, ino)
    try:
        st = os.fstat(fd)
        if changes.size is not None:
            check_resize(st.st_size, changes.size)
        if changes.uid is not None or changes.gid is not None:
            os.fchown(fd, -1 if changes.uid is None else changes.uid, -1 if changes.gid is None else changes.gid)
        if changes.mode is not None:
            os.fchmod(fd, changes.mode & PERMISSION_BITS)
        if changes.size is not None and changes.size != st.st_size:
            os.ftruncate(fd, changes.size)
        if changes.atime_ns is not None or changes.mtime_ns is not None:
            atime_ns = st.st_atime_ns if changes.atime_ns is None else changes.atime_ns
            mtime_ns = os.fstat(fd).st_mtime_ns if changes.mtime_ns is None else changes.mtime_ns
            os.utime(fd, ns=(atime_ns, mtime_ns))
        return stat_fd(fd)
    finally:
        os.close(fd)
