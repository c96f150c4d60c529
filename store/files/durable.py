"""Durability with named pieces. What is promised holds for ext4 and xfs."""

import errno
import os

from commitlogfs.store.files import safe_open


def sync_dir(dirfd: int) -> None:
    """Commit a directory's names and extended attributes. Raises OSError.

    A filesystem that cannot sync a directory (EINVAL, seen on some overlays) promises nothing anyway.
    """
    try:
        os.fsync(dirfd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def write_xattr(dirfd: int, name: str, value: bytes) -> None:
    """Set and commit one extended attribute of a directory. Raises OSError."""
    os.setxattr(dirfd, name, value)
    sync_dir(dirfd)


def remove_xattr(dirfd: int, name: str) -> None:
    """Remove and commit that; success, and nothing synced, where it is absent. Raises OSError."""
    if read_xattr(dirfd, name) is not None:
        os.removexattr(dirfd, name)
        sync_dir(dirfd)


def remove_file_xattr(dirfd: int, file: bytes, ino: int, name: str) -> bool:
    """Remove one extended attribute of a file in a directory, and commit that. Returns whether it had one. Raises
    OSError."""
    fd = safe_open.open_file(dirfd, file, os.O_RDONLY, ino)
    try:
        if name not in os.listxattr(fd):
            return False
        os.removexattr(fd, name)
        os.fsync(fd)
        return True
    finally:
        os.close(fd)


def read_xattr(dirfd: int, name: str) -> bytes | None:
    """The value, or None where it is absent or the filesystem keeps no user attributes. Raises OSError."""
    try:
        return os.getxattr(dirfd, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise
