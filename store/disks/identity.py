"""Identity of a disk: pool, number, members. It is in extended attributes of the disk's directory.

user.commitlogfs.identity   JSON, written by `init` or `adopt`, and when the members of the pool change; `destroy`
                            marks it before it removes anything
user.commitlogfs.joining    JSON, on a directory that `disk add` has prepared, until it is a disk of the pool
user.commitlogfs.newest     decimal base offset of the newest segment of the whole pool; on every disk, so that
                            a degraded mount knows whether the newest segment is absent
user.commitlogfs.root       "MODE UID GID" of the mounted root directory (mode octal)
user.commitlogfs.birth      mark of an unfinished `init` or `adopt`, which can be repeated
user.commitlogfs.scrub      how far the scrub of the disk is (store/scrub/progress.py)
"""

import errno
import json
from dataclasses import dataclass
from typing import Any

from commitlogfs.store import layout
from commitlogfs.store.disks.losses import Loss, Run
from commitlogfs.store.disks.membership import (
    LARGEST_DISK_NUMBER,
    Cordon,
    DiskNumber,
    Drain,
    DrainMode,
    Member,
    Membership,
    Rebalance,
    RebalanceMode,
)
from commitlogfs.store.errors import PoolError
from commitlogfs.store.files import durable
from commitlogfs.store.segment import BaseOffset


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    pool_id: str
    disk_id: str
    number: DiskNumber
    segment_size: int
    membership: Membership
    is_being_destroyed: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """Mark of a directory that is to become a disk: of which pool, and under which id."""

    pool_id: str
    disk_id: str


LARGEST_IDENTITY_BYTES = 3600
_OTHER_ATTRIBUTES_BYTES = 176
"""Space for header, names and the values of all other attributes in a block of ext4 (fs/ext4/xattr.h)."""

JOINING_BYTES = 136
"""Space for the mark of a directory that joins, which it still has when it gets its identity."""

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
        "version": layout.DESTROYED_VERSION if identity.is_being_destroyed else layout.FORMAT_VERSION,
        "pool": identity.pool_id,
        "disk": identity.disk_id,
        "number": identity.number,
        "segment_size": identity.segment_size,
        "members": [[m.number, m.disk_id, m.path] for m in identity.membership.members],
    }
    if identity.membership.generation:
        document |= _decisions(identity.membership)
    return _compact(document)


def _decisions(membership: Membership) -> dict[str, Any]:
    """Fields that former versions ignore. Those that came last are left out if empty: room is scarce."""
    members = membership.members
    decisions = {
        "generation": membership.generation,
        "last_number": membership.last_number,
        "cordons": [[m.number, m.cordon.since_s, m.cordon.reason] for m in members if m.cordon is not None],
        "drains": [
            [m.number, m.drain.since_s, m.drain.mode.value, m.drain.rate] for m in members if m.drain is not None
        ],
        "leaving": [m.number for m in members if m.leaves],
        "losses": [
            [loss.number, loss.path, loss.since_s, [[r.first, r.length, r.stride, r.count] for r in loss.runs]]
            for loss in membership.losses
        ],
    }
    rebalance = membership.rebalance
    later = {
        "rebalance": None if rebalance is None else [rebalance.since_s, rebalance.mode.value, rebalance.rate],
        "offline": [[m.number, m.offline_since_s] for m in membership.offline()],
        "again": [[m.number, m.again_since] for m in members if m.again_since],
        "removed_before": membership.removed_before,
    }
    return decisions | {name: value for name, value in later.items() if value}


def require_recordable(identity: DiskIdentity, attribute_bytes: int) -> None:
    """`attribute_bytes` is the smallest space for the attributes of a directory among the disks (FilesystemKind).
    Raises PoolError if the identity does not fit."""
    size, most = len(format_identity(identity)), _most_bytes(attribute_bytes)
    if size > most:
        larger = "" if most == LARGEST_IDENTITY_BYTES else ", or ext4 with blocks of 4 KiB (`mkfs.ext4 -b 4096`)"
        raise PoolError(
            f"the list of members would have {size:,} bytes, and a disk can record {most:,}; "
            f"use shorter paths, or give shorter reasons to cordons{larger}"
        )


def is_recordable(identity: DiskIdentity, attribute_bytes: int) -> bool:
    """Whether `require_recordable` accepts it."""
    return len(format_identity(identity)) <= _most_bytes(attribute_bytes)


def has_room_beside(identity: DiskIdentity, attribute_bytes: int, further_bytes: int) -> bool:
    """Whether a directory that records this identity has room for another attribute, which is less important."""
    return len(format_identity(identity)) + _OTHER_ATTRIBUTES_BYTES + further_bytes <= attribute_bytes


def _most_bytes(attribute_bytes: int) -> int:
    return min(LARGEST_IDENTITY_BYTES, attribute_bytes - _OTHER_ATTRIBUTES_BYTES)


def _compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def parse_identity(raw: bytes, where: str, *, may_be_destroyed: bool = False) -> DiskIdentity:
    """The identity in the attribute `raw` of the directory `where`.

    Raises PoolError if it is damaged, of another format version, or, unless it `may_be_destroyed`, being destroyed.
    """
    try:
        document = json.loads(raw)
        version = document["version"]
        is_being_destroyed = version == layout.DESTROYED_VERSION
        if is_being_destroyed and not may_be_destroyed:
            raise PoolError(f"{where}: is being destroyed; `commitlogfs destroy` completes that")
        if version != layout.FORMAT_VERSION and not is_being_destroyed:
            raise PoolError(
                f"{where}: has format version {version}, and this program supports {layout.FORMAT_VERSION} only; "
                "use the newer commitlogfs"
            )
        found = DiskIdentity(
            pool_id=str(document["pool"]),
            disk_id=str(document["disk"]),
            number=DiskNumber(int(document["number"])),
            segment_size=int(document["segment_size"]),
            membership=_parse_membership(document),
            is_being_destroyed=is_being_destroyed,
        )
        _require_sense(found)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PoolError(
            f"{where}: attribute {layout.XATTR_IDENTITY} is damaged ({error}); "
            "its segments are not affected; restore it from a backup, or remove it from all disks "
            f"(`setfattr -x {layout.XATTR_IDENTITY} DIR`) and run `commitlogfs adopt`"
        ) from error
    return found


def _parse_membership(document: dict[str, Any]) -> Membership:
    """Former versions read the members and ignore the other fields, which came later."""
    cordons = {
        int(number): Cordon(int(since_s), str(reason)) for number, since_s, reason in document.get("cordons", ())
    }
    drains = {
        int(number): Drain(int(since_s), DrainMode(mode), int(rate))
        for number, since_s, mode, rate in document.get("drains", ())
    }
    offline = {int(number): int(since_s) for number, since_s in document.get("offline", ())}
    again = {int(number): int(generation) for number, generation in document.get("again", ())}
    leaving = {int(number) for number in document.get("leaving", ())}
    members = tuple(
        Member(
            DiskNumber(int(number)),
            str(disk_id),
            str(path),
            cordons.get(int(number)),
            int(number) in leaving,
            drains.get(int(number)),
            offline.get(int(number)),
            again.get(int(number), 0),
        )
        for number, disk_id, path in document["members"]
    )
    losses = tuple(
        Loss(int(number), str(path), int(since_s), tuple(Run(*map(int, run)) for run in runs))
        for number, path, since_s, runs in document.get("losses", ())
    )
    rebalance = None
    if document.get("rebalance") is not None:
        since_s, mode, rate = document["rebalance"]
        rebalance = Rebalance(int(since_s), RebalanceMode(mode), int(rate))
    highest = max((member.number for member in members), default=0)
    last = max(highest, int(document.get("last_number", 0)))
    removed_before = int(document.get("removed_before", 0))
    return Membership(
        members, int(document.get("generation", 0)), DiskNumber(last), losses, rebalance, removed_before
    )


def _require_sense(found: DiskIdentity) -> None:
    """Raises ValueError for values that no `init` or `adopt` writes.

    Other code divides by the segment size and puts disk numbers into inode numbers.
    """
    if found.segment_size <= 0:
        raise ValueError(f"segment size {found.segment_size}")
    members = found.membership.members
    numbers = [member.number for member in members]
    if len(set(numbers)) < len(numbers) or not all(1 <= number <= LARGEST_DISK_NUMBER for number in numbers):
        raise ValueError(f"disk numbers {numbers}")
    if found.membership.generation < 0 or found.membership.last_number > LARGEST_DISK_NUMBER:
        raise ValueError(f"generation {found.membership.generation}, last number {found.membership.last_number}")
    if not all(run.length > 0 and run.stride > 0 for loss in found.membership.losses for run in loss.runs):
        raise ValueError("a run of lost segments without length")
    if not any((member.number, member.disk_id) == (found.number, found.disk_id) for member in members):
        raise ValueError(f"disk {found.number} is not among its own members")


def read_identity(dirfd: int, where: str, *, may_be_destroyed: bool = False) -> DiskIdentity | None:
    """The identity of a directory; None if it has none. Raises OSError, PoolError as `parse_identity`."""
    raw = durable.read_xattr(dirfd, layout.XATTR_IDENTITY)
    return None if raw is None else parse_identity(raw, where, may_be_destroyed=may_be_destroyed)


def write_identity(dirfd: int, identity: DiskIdentity) -> None:
    """It takes the room of the scrub's progress if it needs that. Raises OSError."""
    value = format_identity(identity)
    try:
        durable.write_xattr(dirfd, layout.XATTR_IDENTITY, value)
    except OSError as error:
        if error.errno != errno.ENOSPC or durable.read_xattr(dirfd, layout.XATTR_SCRUB) is None:
            raise
        durable.remove_xattr(dirfd, layout.XATTR_SCRUB)
        durable.write_xattr(dirfd, layout.XATTR_IDENTITY, value)


def format_joining(joining: Joining) -> bytes:
    return _compact({"pool": joining.pool_id, "disk": joining.disk_id})


def read_joining(dirfd: int) -> Joining | None:
    """The mark of a directory that is to become a disk; None if it has none, or a damaged one. Raises OSError."""
    raw = durable.read_xattr(dirfd, layout.XATTR_JOINING)
    try:
        document = json.loads(raw or b"")
        return Joining(str(document["pool"]), str(document["disk"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


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
