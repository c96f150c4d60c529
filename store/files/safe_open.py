"""Opening files below a disk's directory, by its descriptor, and nowhere else.

Every path is resolved by openat2 with symlinks, magic links, `..` above the disk and mount crossings all
refused, and nothing but a regular file is opened, so a planted fifo or device is never talked to.
"""

import errno
import os
import stat

from commitlogfs.store import _syscalls
from commitlogfs.store.files.attributes import PackedAttributes, stat_name, unpack

_RESOLVE = (
    _syscalls.RESOLVE_BENEATH
    | _syscalls.RESOLVE_NO_SYMLINKS
    | _syscalls.RESOLVE_NO_MAGICLINKS
    | _syscalls.RESOLVE_NO_XDEV
)


def open_file(dirfd: int, name: bytes, flags: int, ino: int | None = None) -> int:
    """Open an existing regular file, the one with inode `ino` if given; the caller closes the descriptor.

    Raises OSError: ELOOP where something else lies there. The file behind the name is checked first, by
    a descriptor that opens nothing (O_PATH): the mere open of a device or fifo can have an effect.
    """
    place = _syscalls.openat2(dirfd, name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE)
    try:
        st = os.fstat(place)
        if not stat.S_ISREG(st.st_mode):
            raise OSError(errno.ELOOP, "not a regular file", os.fsdecode(name))
        if ino is not None and st.st_ino != ino:
            raise OSError(errno.ELOOP, "another file", os.fsdecode(name))
        return os.open(f"/proc/self/fd/{place}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)


def require_file(dirfd: int, name: bytes, ino: int) -> None:
    """Raises OSError (ELOOP) unless the file with inode `ino` lies there, ENOENT where nothing does."""
    attributes = unpack(stat_name(dirfd, name))
    if attributes.ino != ino or not stat.S_ISREG(attributes.mode):
        raise OSError(errno.ELOOP, "another file", os.fsdecode(name))


def stat_path(dirfd: int, path: bytes) -> PackedAttributes:
    """Attributes of a file that lies in the disk's directory, or in one below it. Raises OSError."""
    directory, _, name = path.rpartition(b"/")
    if not directory:
        return stat_name(dirfd, name)
    fd = open_directory(dirfd, directory)
    try:
        return stat_name(fd, name)
    finally:
        os.close(fd)


def open_unnamed(dirfd: int, mode: int) -> int:
    """A new file without a name (O_TMPFILE) on the disk's filesystem, open for reading and writing."""
    return _syscalls.openat2(dirfd, b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode, _RESOLVE)


def open_directory(dirfd: int, name: bytes) -> int:
    """A descriptor of a directory below the disk's own. Raises OSError."""
    return _syscalls.openat2(dirfd, name, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC, 0, _RESOLVE)


def link_unnamed(fd: int, dirfd: int, name: bytes) -> None:
    """Give an unnamed file its name. Raises FileExistsError where the name is taken."""
    os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=dirfd, follow_symlinks=True)
