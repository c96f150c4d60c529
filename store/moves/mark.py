"""Mark of a copy: which file of which disk a segment was copied from, until that file is gone.

The mark makes a move safe to interrupt. While both files exist, it says that they are one segment, and that the
copy is complete. Inode numbers are given out again, so the birth time belongs to it.
"""

import json
import os
from typing import NamedTuple

from commitlogfs.store import layout
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files import safe_open
from commitlogfs.store.files.attributes import FileAttributes


class Source(NamedTuple):
    """The file that a segment was copied from."""

    disk: DiskNumber
    """Numbers are never reused in a pool."""
    ino: int
    btime_ns: int
    mtime_ns: int
    """A program that has written to it since, such as a native broker, has changed this."""


def source_of(disk: DiskNumber, attributes: FileAttributes) -> Source:
    return Source(disk, attributes.ino, attributes.btime_ns, attributes.mtime_ns)


def format_mark(source: Source) -> bytes:
    return json.dumps(source, separators=(",", ":")).encode()


def write_mark(fd: int, source: Source) -> None:
    """Not durable before the file is. Raises OSError."""
    os.setxattr(fd, layout.XATTR_MOVED_FROM, format_mark(source))


def read_mark(dirfd: int, name: bytes, ino: int) -> Source | None:
    """The mark of the file `name`; None without one, with a damaged one, or if the file cannot be read."""
    try:
        fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    except OSError:
        return None
    try:
        disk, ino, btime_ns, mtime_ns = json.loads(os.getxattr(fd, layout.XATTR_MOVED_FROM))
        return Source(DiskNumber(int(disk)), int(ino), int(btime_ns), int(mtime_ns))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    finally:
        os.close(fd)


def remove_mark(dirfd: int, name: bytes, ino: int) -> None:
    """Durable. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        if layout.XATTR_MOVED_FROM in os.listxattr(fd):
            os.removexattr(fd, layout.XATTR_MOVED_FROM)
            os.fsync(fd)
    finally:
        os.close(fd)
