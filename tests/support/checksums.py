"""Checksums of a mounted pool's segments, as the mount shows them and as the disks' files require them."""

import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash
from support.pools import PoolMount, segment_bytes
from support.waiting import eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.store import layout
from commitlogfs.store.checksum import Checksum, parse_checksum

NAME = "user.commitlogfs.xxh3"
NEWEST = 3
"""Number of segments that get none."""
LONG_AGO_NS = 1_600_000_000_123_456_789


def fill(pool: PoolMount, indexes: Iterable[int]) -> None:
    """Segments that were written long ago."""
    for index in indexes:
        pool.make_segments([index])
        write(pool.path(index), segment_bytes(index, pool.segment_size), LONG_AGO_NS + index)


def write(path: Path, content: bytes, mtime_ns: int) -> None:
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(mtime_ns, mtime_ns))


def store(path: Path, content: bytes, mtime_ns: int) -> None:
    """`write` by a mapping."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[: len(content)] = content
        mapping.flush()
    os.utime(path, ns=(mtime_ns, mtime_ns))


def rot(path: Path) -> None:
    """Change one byte of a disk's file, and no timestamp."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        file.write(b"\xff")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def backing(pool: PoolMount, index: int) -> Path:
    """The file on the disk."""
    return Path(pool.disks[pool.disk_of(index)]) / pool.path(index).name


def shown(pool: PoolMount, index: int) -> str | None:
    """The value in the mount; None for ENODATA."""
    try:
        return os.getxattr(pool.path(index), NAME).decode()
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return None


def recorded(path: Path) -> Checksum | None:
    """The parsed attribute of a disk's file."""
    if layout.XATTR_CHECKSUM not in os.listxattr(path):
        return None
    return parse_checksum(os.getxattr(path, layout.XATTR_CHECKSUM))


def is_valid(path: Path) -> bool:
    """Whether a disk's file has a checksum of its present state."""
    found, status = recorded(path), path.stat()
    return found is not None and found.key == (status.st_ino, status.st_size, status.st_mtime_ns)


def required(path: Path) -> str:
    return xxhash.xxh3_128(path.read_bytes()).hexdigest()


def require_right(pool: PoolMount, indexes: Iterable[int]) -> None:
    for index in indexes:
        assert shown(pool, index) == required(backing(pool, index)), index


def counts(pool: PoolMount) -> dict[str, Any]:
    found: dict[str, Any] = pool.ask("status")["checksums"]
    return found


def await_checksums(pool: PoolMount, count: int) -> None:
    """Wait until that many segments have one."""

    def are_computed() -> bool:
        try:
            found = counts(pool)
        except UnreachableError:  # its daemon has just died
            return False
        return bool(found["with"] == count)

    eventually(are_computed, shown=lambda: str(counts(pool)))
