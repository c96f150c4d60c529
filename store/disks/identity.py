"""Identity of a disk: pool, number, members. It is in extended attributes of the disk's directory.

user.commitlogfs.identity   JSON, written once by `init` or `adopt` (and when membership changes)
user.commitlogfs.newest     decimal base offset of the newest segment of the whole pool; on every disk, so that
                            a degraded mount knows whether the newest segment is absent
user.commitlogfs.root       "MODE UID GID" of the mounted root directory (mode octal)
user.commitlogfs.birth      mark of an unfinished `init` or `adopt`, which can be repeated
"""

import json
from dataclasses import dataclass
from typing import NewType

from commitlogfs.store import layout
from commitlogfs.store.errors import PoolError
from commitlogfs.store.files import durable
from commitlogfs.store.segment import BaseOffset

DiskNumber = NewType("DiskNumber", int)
"""1, 2, 3 ... in the order given to `init` or `adopt`; never reused within a pool, part of every inode number."""

LARGEST_DISK_NUMBER = 2**12 - 1
"""A disk number has 12 bits of an inode number (fusefs.kernel.inodes). Numbers are never reused, so this is also
the number of disks that a pool can have in its whole life."""


@dataclass(frozen=True, slots=True)
class Member:
    number: DiskNumber
    disk_id: str
    path: str
    """Path of the disk when this was written; for messages only."""


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    pool_id: str
    disk_id: str
    number: DiskNumber
    segment_size: int
    members: tuple[Member, ...]


NEW_ROOT_MODE = 0o750
"""Mode of the mounted directory of a new pool. It keeps other users out, as every file in it holds messages."""


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
    """The identity in the attribute `raw` of the directory `where`.

    Raises PoolError if it is damaged or of another format version.
    """
    try:
        document = json.loads(raw)
        version = document["version"]
        if version != layout.FORMAT_VERSION:
            raise PoolError(
                f"{where}: has format version {version}, and this program supports {layout.FORMAT_VERSION} only; "
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
            f"{where}: attribute {layout.XATTR_IDENTITY} is damaged ({error}); "
            "its segments are not affected; restore it from a backup, or remove it from all disks "
            f"(`setfattr -x {layout.XATTR_IDENTITY} DIR`) and run `commitlogfs adopt`"
        ) from error
    return found


def _require_sense(found: DiskIdentity) -> None:
    """Raises ValueError for values that no `init` or `adopt` writes.

    Other code divides by the segment size and puts disk numbers into inode numbers.
    """
    if found.segment_size <= 0:
        raise ValueError(f"segment size {found.segment_size}")
    numbers = [member.number for member in found.members]
    if len(set(numbers)) < len(numbers) or not all(1 <= number <= LARGEST_DISK_NUMBER for number in numbers):
        raise ValueError(f"disk numbers {numbers}")
    if not any((member.number, member.disk_id) == (found.number, found.disk_id) for member in found.members):
        raise ValueError(f"disk {found.number} is not among its own members")


def read_identity(dirfd: int, where: str) -> DiskIdentity | None:
    """The identity of a directory; None if it has none. Raises OSError, PoolError."""
    raw = durable.read_xattr(dirfd, layout.XATTR_IDENTITY)
    return None if raw is None else parse_identity(raw, where)


def read_newest(dirfd: int) -> BaseOffset | None:
    """Base offset of the pool's newest segment, as this disk records it; None before the first one. Raises
    OSError."""
    raw = durable.read_xattr(dirfd, layout.XATTR_NEWEST)
    return BaseOffset(int(raw)) if raw and raw.isdigit() else None


def format_newest(newest: BaseOffset | None) -> bytes:
    return b"" if newest is None else b"%d" % newest


def read_root(dirfd: int, default: RootAttributes) -> RootAttributes:
    """Attributes of the mounted directory, as this disk records them; `default` if there are none. Raises OSError.

    A damaged value counts as absent, since only permissions depend on it.
    """
    raw = durable.read_xattr(dirfd, layout.XATTR_ROOT)
    try:
        mode, uid, gid = (raw or b"").split()
        return RootAttributes(int(mode, 8) & 0o777, int(uid), int(gid))
    except ValueError:
        return default


def format_root(root: RootAttributes) -> bytes:
    return b"%o %d %d" % (root.mode, root.uid, root.gid)
