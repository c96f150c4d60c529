"""Inode numbers: derived from the files, so that another process can serve them without a table.

    1                              the mounted root directory
    2 ..                           the hidden directory `.commitlogfs` and its files
    epoch << 60 | disk number << 48 | st_ino
                                   a segment, temporary or retired file, by its backing inode

They contain the backing inode, not the segment number: a name that was unlinked and made again while a process
still holds the old file is another inode, so the two never mix (docs/decisions.md). The file handle of a file is
its inode number, too. The epoch is 0 unless the knowledge of open files was lost at a takeover: from then on every
file is another inode to the kernel, which still holds the old ones.
"""

import errno
from collections.abc import Mapping
from typing import NamedTuple

import pyfuse3
from pyfuse3 import InodeT

from commitlogfs.store.disks.membership import LARGEST_DISK_NUMBER, DiskNumber
from commitlogfs.store.errors import SegmentNotFoundError
from commitlogfs.store.pool.catalog import Segment

ROOT: InodeT = pyfuse3.ROOT_INODE
CONTROL_DIRECTORY = InodeT(2)
CONTROL_LOG = InodeT(3)
CONTROL_STATUS = InodeT(4)
CONTROL_METRICS = InodeT(5)

BACKING_BITS = 48
LARGEST_BACKING = (1 << BACKING_BITS) - 1
DISK_BITS = 12
LARGEST_DISK = (1 << DISK_BITS) - 1
_EPOCH_BIT = BACKING_BITS + DISK_BITS
_EPOCH_BITS = 4

assert LARGEST_DISK == LARGEST_DISK_NUMBER, "every disk of a pool has inode numbers"
assert _EPOCH_BIT + _EPOCH_BITS == 64, "an inode number has 64 bits"

_epoch = 0
incarnations = [0] * (LARGEST_DISK + 1)
"""Incarnation of each disk, by its number. Only `begin_incarnations` changes it."""


class StaleInodeError(SegmentNotFoundError):
    """No file has this number: it was opened before the knowledge of open files was lost."""


class BackingInode(NamedTuple):
    disk: DiskNumber
    ino: int


def encode(file: Segment) -> InodeT:
    """Raises OSError (EOVERFLOW) for a backing inode number of more than 48 bits, which ext4 and xfs reach
    only on filesystems far beyond any disk."""
    if file.ino > LARGEST_BACKING:
        raise OSError(errno.EOVERFLOW, f"backing inode {file.ino} has more than {BACKING_BITS} bits")
    return InodeT(_epoch | file.disk << BACKING_BITS | file.ino)


def begin_epoch(epoch: int) -> None:
    """Called once, before the first request is answered. Raises OverflowError for more than four bits."""
    global _epoch
    if not 0 <= epoch < 1 << _EPOCH_BITS:
        raise OverflowError(f"not an epoch: {epoch}")
    _epoch = epoch << _EPOCH_BIT


def first_of_disk(disk: DiskNumber) -> int:
    """The number to add to a backing inode number of at most LARGEST_BACKING."""
    return _epoch | disk << BACKING_BITS


def decode(inode: int) -> BackingInode | None:
    """None for the root, the control files, a file of a former epoch, and any number that no file can have."""
    if inode >> _EPOCH_BIT != _epoch >> _EPOCH_BIT or not is_of_disk(inode):
        return None
    return BackingInode(DiskNumber(inode >> BACKING_BITS & LARGEST_DISK), inode & LARGEST_BACKING)


def is_of_disk(inode: int) -> bool:
    """Whether the number is that of a file on a disk, in this or in a former epoch."""
    return bool(inode >> BACKING_BITS & LARGEST_DISK)


def is_on_disk(inode: int, disk: int) -> bool:
    """Whether the number is that of a file on this disk, in this or in a former epoch."""
    return inode >> BACKING_BITS & LARGEST_DISK == disk


def begin_incarnations(numbers: Mapping[DiskNumber, int]) -> None:
    """Called once, before the first request is answered: the incarnation of each disk, 0 of those that lack."""
    incarnations[:] = [numbers.get(DiskNumber(disk), 0) for disk in range(LARGEST_DISK + 1)]


def generation_of(disk: DiskNumber, btime_ns: int) -> int:
    """Distinguishes two files that got the same inode number one after the other, by 32 bits of the birth time, and
    a file on the same disk before and after that was away."""
    return (btime_ns ^ btime_ns >> 32) + incarnations[disk] & 0xFFFFFFFF
