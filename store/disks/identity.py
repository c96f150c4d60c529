"""Who a disk is: pool, number, members. Kept in extended attributes of the disk's folder.

user.commitlogfs.identity   JSON, written once by `init` or `adopt` (and when membership changes)
user.commitlogfs.newest     decimal base offset of the newest segment anywhere in the pool, kept on every
                            disk so that a degraded mount can tell whether the newest segment is absent
user.commitlogfs.root       "MODE UID GID" of the mounted root directory (mode octal)
user.commitlogfs.birth      there until every disk of the pool has its identity: a birth that can be finished
"""

import json
from dataclasses import dataclass
from typing import NewType

from commitlogfs.store import layout
from commitlogfs.store.errors import PoolError
from commitlogfs.store.files import durable
from commitlogfs.store.segment import BaseOffset

DiskNumber = NewType("DiskNumber", int)
"""1, 2, 3 ... in the order given at birth; never reused within a pool, part of every inode number."""

LARGEST_DISK_NUMBER = 2**12 - 1
"""It has 12 bits in an inode number (fusefs.kernel.inodes). Numbers are never reused, so a pool has at most so many
disks in all its life."""


@dataclass(frozen=True, slots=True)
class Member:
    number: DiskNumber
    disk_id: str
    path: str
    """Where the disk was when this was written: for messages only."""


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    pool_id: str
    disk_id: str
    number: DiskNumber
    segment_size: int
    members: tuple[Member, ...]


NEW_ROOT_MODE = 0o750
"""Of the mounted directory of a new pool: its owner and the owner's group, as every file in it holds messages."""


@dataclass(frozen=True, slots=True)
class RootAttributes:
    """Permission bits and owner of the mounted root directory."""

    mode: int
    uid: int
    gid: int


def format_identity(identity: DiskIdentity) -> bytes:
    document = {
        "version": layout.FORMAT_VERSION,
        "pool": identity.pool_id,
        "disk": identity.disk_id,
        "number": identity.number,
        "segment_size": identity.segment_size,
        "members": [[m.number, m.disk_id, m.path] for m in identity.members],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def parse_identity(raw: bytes, where: str) -> DiskIdentity:
    """Raises PoolError naming the folder `where` if the attribute is damaged or of a later version."""
    try:
        document = json.loads(raw)
        version = document["version"]
        if version != layout.FORMAT_VERSION:
            raise PoolError(
                f"{where}: written by format version {version}, this program knows {layout.FORMAT_VERSION}: "
                "use the newer commitlogfs"
            )
        found = DiskIdentity(
            pool_id=str(document["pool"]),
            disk_id=str(document["disk"]),
            number=DiskNumber(int(document["number"])),
            segment_size=int(document["segment_size"]),
            members=tuple(
                Member(DiskNumber(int(number)), str(disk_id), str(path))
                for number, disk_id, path in document["members"]
            ),
        )
        _require_sense(found)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PoolError(
            f"{where}: attribute {layout.XATTR_IDENTITY} is damaged ({error}): "
            "restore it from another disk's backup or adopt the folders again"
        ) from error
    return found


def _require_sense(found: DiskIdentity) -> None:
    """Raises ValueError for what no birth ever wrote: sizes are divided by, numbers become inode numbers."""
    if found.segment_size <= 0:
        raise ValueError(f"segment size {found.segment_size}")
    numbers = [member.number for member in found.members]
    if len(set(numbers)) < len(numbers) or not all(1 <= number <= LARGEST_DISK_NUMBER for number in numbers):
        raise ValueError(f"disk numbers {numbers}")
    if not any((member.number, member.disk_id) == (found.number, found.disk_id) for member in found.members):
        raise ValueError(f"disk {found.number} is not among its own members")


def read_identity(dirfd: int, where: str) -> DiskIdentity | None:
    """The identity of a folder, None where it has none. Raises OSError, PoolError."""
    raw = durable.read_xattr(dirfd, layout.XATTR_IDENTITY)
    return None if raw is None else parse_identity(raw, where)


def read_newest(dirfd: int) -> BaseOffset | None:
    """The recorded newest base offset of the pool; None before the first segment. Raises OSError."""
    raw = durable.read_xattr(dirfd, layout.XATTR_NEWEST)
    return BaseOffset(int(raw)) if raw and raw.isdigit() else None


def format_newest(newest: BaseOffset | None) -> bytes:
    return b"" if newest is None else b"%d" % newest


def read_root(dirfd: int, default: RootAttributes) -> RootAttributes:
    """Raises OSError; a damaged value counts as absent, since only permissions hang on it."""
    raw = durable.read_xattr(dirfd, layout.XATTR_ROOT)
    try:
        mode, uid, gid = (raw or b"").split()
        return RootAttributes(int(mode, 8) & 0o777, int(uid), int(gid))
    except ValueError:
        return default


def format_root(root: RootAttributes) -> bytes:
    return b"%o %d %d" % (root.mode, root.uid, root.gid)
