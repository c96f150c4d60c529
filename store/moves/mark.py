"""Mark of a copy: which file of which disk a segment was copied from, until that file is gone.

The mark makes a move safe to interrupt. While both files exist, it says that they are one segment, and that the
copy is complete. Inode numbers are given out again, so the birth time belongs to it.

While the disk of a copy is away, its segment may be copied from the same file again. Then several copies have the
same mark, which says that they are one segment, also when that file is gone. So a copy keeps its mark as long as
another file of its segment has the name, or a disk is missing. A move beside a missing disk gives the next copy the
same mark, if that is certainly equal, and nobody has written to its source since that got the mark.
"""

import errno
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from commitlogfs.store import layout
from commitlogfs.store.disks.disk import open_directory
from commitlogfs.store.disks.identity import read_identity
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import StoreError
from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.files.attributes import FileAttributes, stat_name, unpack

NO_DISK: Final = DiskNumber(0)
"""In place of a disk: no mark names it. Numbers of disks begin with 1."""


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


def write_repair_mark(fd: int, damaged: Source) -> None:
    """Mark a right copy of a damaged segment. Besides the other mark, so that a former version takes it for a moved
    one. Not durable before the file is. Raises OSError."""
    os.setxattr(fd, layout.XATTR_REPAIRS, format_mark(damaged))


def copy_repair_mark(source: int, target: int) -> None:
    """Give one file the mark of a repair that another one has, if any. Not durable before the file is. Raises
    OSError."""
    try:
        os.setxattr(target, layout.XATTR_REPAIRS, os.getxattr(source, layout.XATTR_REPAIRS))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise


def read_mark(dirfd: int, name: bytes, ino: int) -> Source | None:
    """The mark of the file `name`; None without one, with a damaged one, or if the file cannot be read."""
    try:
        fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    except OSError:
        return None
    try:
        return read_mark_of(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_mark_of(file: int | str) -> Source | None:
    """The mark of a file, given as descriptor or path; None without one, or with a damaged one. Raises OSError."""
    try:
        return _parse_mark(os.getxattr(file, layout.XATTR_MOVED_FROM, follow_symlinks=isinstance(file, int)))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return None


def is_repair_of(dirfd: int, name: bytes, ino: int, damaged: Source) -> bool:
    """Whether the file `name` has the mark of a right copy of this file, written to since or not. Raises
    OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        found = _parse_mark(os.getxattr(fd, layout.XATTR_REPAIRS))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return False
    finally:
        os.close(fd)
    return found is not None and found[:3] == damaged[:3]


def _parse_mark(text: bytes) -> Source | None:
    try:
        disk, ino, btime_ns, mtime_ns = json.loads(text)
        return Source(DiskNumber(int(disk)), int(ino), int(btime_ns), int(mtime_ns))
    except (ValueError, TypeError, RecursionError):
        return None


class MarkedFile(NamedTuple):
    """A file of a segment, as a mark describes it, and its own mark."""

    itself: Source
    mark: Source | None


def may_replace(file: MarkedFile, other: MarkedFile) -> bool:
    """Whether a file of a segment has all that another one has, because it is a copy of that, or because both are
    copies of one file and nobody has written to the other one since. Pure."""
    mark = file.mark
    return mark is not None and (
        mark == other.itself or (mark == other.mark and other.itself.mtime_ns == mark.mtime_ns)
    )


def is_moved_copy(copy: Path, source: Path) -> bool:
    """Whether two files in directories of disks are one segment in the middle of a move, and the one may replace
    the other. False in doubt."""
    try:
        return may_replace(_read_marked(copy), _read_marked(source))
    except (OSError, StoreError):
        return False


def _read_marked(path: Path) -> MarkedFile:
    """Raises OSError, StoreError."""
    dirfd = open_directory(str(path.parent))
    try:
        identity = read_identity(dirfd, str(path.parent))
        name = os.fsencode(path.name)
        attributes = unpack(stat_name(dirfd, name))
        number = NO_DISK if identity is None else identity.number
        return MarkedFile(source_of(number, attributes), read_mark(dirfd, name, attributes.ino))
    finally:
        os.close(dirfd)


def remove_mark(dirfd: int, name: bytes, ino: int) -> None:
    """Remove both marks, durably. Raises OSError."""
    durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_MOVED_FROM)
    durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_REPAIRS)
