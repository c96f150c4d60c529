"""Mark of a restored segment that no process has opened for writing since.

A broker reads its list of segments when it starts, and opens each for writing. It never removes a segment that it
does not know: only the mark shows that the segment is left over when the broker removes a later one.
"""

import errno
import os

from commitlogfs.store import layout
from commitlogfs.store.files import safe_open


def mark_restored(fd: int) -> None:
    """Not durable before the file is. Raises OSError."""
    os.setxattr(fd, layout.XATTR_RESTORED, b"1")


def has_mark(fd: int) -> bool:
    """False if it cannot be read."""
    try:
        return bool(os.getxattr(fd, layout.XATTR_RESTORED))
    except OSError:
        return False


def is_marked(dirfd: int, name: bytes, ino: int) -> bool:
    """Whether a segment has the mark. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        return has_mark(fd)
    finally:
        os.close(fd)


def remove_restored_mark(fd: int) -> None:
    """A mark that stays on a read-only disk does no harm: a broker removes this segment before later ones. Raises
    OSError."""
    try:
        os.removexattr(fd, layout.XATTR_RESTORED)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EROFS):
            raise
