"""Durability with named pieces. What is promised holds for ext4 and xfs."""

import errno
import os


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


def read_xattr(dirfd: int, name: str) -> bytes | None:
    """The value, or None where it is absent or the filesystem keeps no user attributes. Raises OSError."""
    try:
        return os.getxattr(dirfd, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise
