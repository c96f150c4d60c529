"""Opening files beneath a disk's directory descriptor, and nowhere else.

Every path is resolved by openat2 with symlinks, magic links, `..` above the disk and mount crossings all
refused; the result is checked to be a regular file, so a planted fifo or device is never talked to.
"""

import errno
import os
import stat

from commitlogfs.store import _syscalls

_RESOLVE = (
    _syscalls.RESOLVE_BENEATH
    | _syscalls.RESOLVE_NO_SYMLINKS
    | _syscalls.RESOLVE_NO_MAGICLINKS
    | _syscalls.RESOLVE_NO_XDEV
)


def open_file(dirfd: int, name: bytes, flags: int) -> int:
    """Open an existing regular file; the caller closes the descriptor. Raises OSError.

    O_NONBLOCK keeps a planted fifo from blocking the open; it means nothing for regular files.
    """
    fd = _syscalls.openat2(dirfd, name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0, _RESOLVE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, "not a regular file", os.fsdecode(name))
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_unnamed(dirfd: int, mode: int) -> int:
    """A new file without a name (O_TMPFILE) on the disk's filesystem, open for reading and writing."""
    return _syscalls.openat2(dirfd, b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode, _RESOLVE)


def open_folder(dirfd: int, name: bytes) -> int:
    """A directory descriptor of a folder beneath the disk. Raises OSError."""
    return _syscalls.openat2(dirfd, name, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC, 0, _RESOLVE)


def link_unnamed(fd: int, dirfd: int, name: bytes) -> None:
    """Give an unnamed file its name. Raises FileExistsError where the name is taken."""
    os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=dirfd, follow_symlinks=True)
