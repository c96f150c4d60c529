"""Attributes of files that need not exist, and plain directories as disks, for tests without a mount."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.disks.membership import DiskNumber, Member, Membership
from commitlogfs.store.files import filesystem
from commitlogfs.store.files.attributes import _LAYOUT, FileAttributes, PackedAttributes
from commitlogfs.store.pool.inventory import Inventory
from commitlogfs.store.pool.open import Pool
from commitlogfs.store.thresholds import Thresholds

GIB = 1 << 30


def packed_attributes(
    ino: int, size: int, *, mode: int = 0o644, nlink: int = 1, blocks: int | None = None, btime_ns: int = 0
) -> PackedAttributes:
    """As the C side would pack them for a regular file."""
    blocks = size // 512 if blocks is None else blocks
    fields = FileAttributes(ino, stat.S_IFREG | mode, nlink, 0, 0, size, blocks, 1, 1, 1, btime_ns)
    return PackedAttributes(_LAYOUT.pack(*fields))


@contextmanager
def open_disk(
    directory: Path, number: int = 1, *, state: DiskState = DiskState.RW, thresholds: Thresholds | None = None
) -> Iterator[Disk]:
    """A disk over an existing directory."""
    dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    disk = Disk(
        DiskNumber(number),
        f"disk-{number}",
        str(directory),
        dirfd,
        filesystem.identify(dirfd),
        thresholds or Thresholds(),
        state,
    )
    try:
        yield disk
    finally:
        disk.close()


def pool_of(disks: list[Disk], inventory: Inventory, segment_size: int, missing: Sequence[str] = ()) -> Pool:
    """An open pool, with this content, whose disks record the first list of members."""
    members = tuple(Member(disk.number, disk.disk_id, disk.path) for disk in disks)
    membership = Membership(members, last_number=max(disk.number for disk in disks))
    recorded: dict[DiskNumber, int | None] = {disk.number: 0 for disk in disks}
    root = RootAttributes(0o755, 0, 0)
    return Pool("pool", segment_size, membership, recorded, disks, inventory, root, list(missing))


def size_if_there(path: Path) -> int | None:
    """Size of a file; None if it has been removed since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))
