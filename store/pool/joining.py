"""How a directory becomes a disk of a pool that is mounted.

1. `prepare` marks the directory with the pool, and with the id that the disk will have. Nothing else changes.
2. The configuration names the directory.
3. The next daemon finds the mark there, gives the disk a number, and makes the next generation of the list of
   members. The other disks record it first, then the new disk gets its identity, and last it loses its mark.
   Only then it gets segments.

A crash before step 2 leaves a mark that nothing reads. A crash after it is completed by the next start: the mark
tells a new disk from the bare directory of a disk that is not mounted. All functions block.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.capacity import compare_size, require_room
from commitlogfs.store.disks.directories import (
    DiskSpec,
    OpenDirectory,
    compare_directories,
    first_entry,
    open_spec,
    refuse_on,
    require_writable,
)
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.identity import DiskIdentity, Joining, RootAttributes
from commitlogfs.store.disks.membership import LARGEST_DISK_NUMBER, Membership
from commitlogfs.store.errors import PoolError
from commitlogfs.store.files import durable
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.findings import REPAIR_DISK
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class JoiningPlan:
    """A directory that can become a disk of the pool."""

    path: str
    number: int
    """The number that the disk will have, unless another one joins before."""
    filesystem: str
    usage: DiskUsage
    is_new: bool
    """Whether the directory does not exist yet; `prepare` makes it."""
    warnings: tuple[str, ...] = ()


def plan_joining(
    path: str, pool_id: str, segment_size: int, membership: Membership, disks: Sequence[Disk]
) -> JoiningPlan:
    """Check whether the directory at `path` can become a disk. It may be absent if its parent exists. Changes
    nothing. Raises PoolError."""
    if membership.last_number >= LARGEST_DISK_NUMBER:
        raise PoolError(f"{path}: the pool has used all {LARGEST_DISK_NUMBER} disk numbers; make a new pool")
    following = membership.joined_by(str(uuid.uuid4()), path)
    own = following.members[-1]
    is_new = not os.path.lexists(path)
    looked_at = os.path.dirname(path) if is_new else path
    if is_new and not os.path.isdir(looked_at):
        raise PoolError(f"{path}: neither it nor {looked_at} exists; mount the disk first")
    with _opened(looked_at) as directory:
        findings = compare_directories([directory])
        refuse_on(findings)
        if not is_new:
            _require_unused(directory, pool_id, membership)
        _require_free_path(path, directory, membership)
        _require_filesystem_of_its_own(path, directory.device, disks)
        spaces = [disk.filesystem.attribute_bytes for disk in disks]
        spaces.append(directory.filesystem.attribute_bytes - identity.JOINING_BYTES)
        own_identity = DiskIdentity(pool_id, own.disk_id, own.number, segment_size, following)
        identity.require_recordable(own_identity, min(spaces))
        require_writable(directory)
        usage = measure_usage(directory.dirfd)
        require_room(path, usage, Thresholds(), segment_size)
        findings += compare_size(path, usage, Thresholds(), segment_size)
        return JoiningPlan(path, own.number, directory.filesystem.name, usage, is_new, tuple(map(str, findings)))


def prepare(plan: JoiningPlan, pool_id: str) -> None:
    """Mark the directory durably; make it (mode 0700) if it is new. Raises PoolError."""
    try:
        if plan.is_new:
            os.mkdir(plan.path, 0o700)
        with _opened(plan.path) as directory:
            if directory.joining is not None:
                return  # some disks may record this id already
            mark = Joining(pool_id, str(uuid.uuid4()))
            durable.remove_xattr(directory.dirfd, layout.XATTR_SCRUB)  # of a former pool
            durable.write_xattr(directory.dirfd, layout.XATTR_JOINING, identity.format_joining(mark))
    except OSError as error:
        raise PoolError(
            f"{plan.path}: cannot be prepared ({os.strerror(error.errno or 0)}); {REPAIR_DISK}"
        ) from error


def forget(path: str, pool_id: str, membership: Membership, *, dry_run: bool = False) -> None:
    """Remove the records of the pool from a directory that is not, or not any more, among its members.

    Raises PoolError if it has none, or is a member.
    """
    try:
        with _opened(path) as directory:
            known, joining = directory.identity, directory.joining
            ids = {known.disk_id} if known is not None and known.pool_id == pool_id else set()
            ids |= {joining.disk_id} if joining is not None and joining.pool_id == pool_id else set()
            if not ids:
                raise PoolError(f"{path}: records nothing of this pool; see `commitlogfs disk list` for its disks")
            if any(membership.with_id(disk_id) is not None for disk_id in ids):
                raise PoolError(f"{path}: is a disk of this pool, which the daemon does not serve at present")
            entry = None if known is None else first_entry(directory.dirfd)
            if entry is not None:
                raise PoolError(
                    f"{path}: records this pool and is not empty (it holds {entry!r}); `restore --from` takes "
                    "segments from it; move its content away, and repeat the command"
                )
            for name in () if dry_run else layout.DISK_RECORDS:
                durable.remove_xattr(directory.dirfd, name)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise PoolError(f"{path}: its record of the pool cannot be removed ({reason}); {REPAIR_DISK}") from error


def complete(dirfd: int, own: DiskIdentity, root: RootAttributes, newest: BaseOffset | None) -> None:
    """Step 3 on the new disk itself. Raises OSError."""
    os.setxattr(dirfd, layout.XATTR_ROOT, identity.format_root(root))
    os.setxattr(dirfd, layout.XATTR_NEWEST, identity.format_newest(newest))
    identity.write_identity(dirfd, own)
    durable.remove_xattr(dirfd, layout.XATTR_JOINING)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[OpenDirectory]:
    """The open directory. Raises PoolError."""
    directory = open_spec(DiskSpec(path, Thresholds()))
    try:
        yield directory
    finally:
        os.close(directory.dirfd)


def _require_unused(directory: OpenDirectory, pool_id: str, membership: Membership) -> None:
    """An empty disk that has left this pool may join it again."""
    path, known, joining = directory.spec.path, directory.identity, directory.joining
    if joining is not None and joining.pool_id != pool_id:
        raise PoolError(
            f"{path}: is about to be added to pool {joining.pool_id}; choose another one, or remove the mark: "
            f"`commitlogfs destroy --disks {path}`"
        )
    if joining is None and known is not None and membership.with_id(known.disk_id) is not None:
        raise PoolError(f"{path}: is disk {known.number} of this pool already; see `commitlogfs disk list`")
    if joining is None and known is not None and known.pool_id != pool_id:
        raise PoolError(
            f"{path}: is a disk of pool {known.pool_id}; if that pool is given up, move its segments away, then: "
            f"`commitlogfs destroy --degraded --disks {path}`"
        )
    entry = first_entry(directory.dirfd)
    if entry is not None:
        raise PoolError(f"{path}: not empty (it holds {entry!r}); give an empty directory")


def _require_free_path(path: str, directory: OpenDirectory, membership: Membership) -> None:
    """The configuration names disks by their paths: two disks with one path would be one entry."""
    known, joining = directory.identity, directory.joining
    own_ids = {record.disk_id for record in (known, joining) if record is not None}
    for member in membership.members:
        if member.path == path and member.disk_id not in own_ids and not member.leaves:
            raise PoolError(
                f"{path}: is the path of disk {member.number} of this pool; mount the new disk elsewhere, or give "
                f"that one up first: `commitlogfs disk remove --lost {member.number}`"
            )


def _require_filesystem_of_its_own(path: str, device: int, disks: Sequence[Disk]) -> None:
    """A pool whose disks share a filesystem already is for tests, and may grow as it is."""
    devices = [disk.device for disk in disks]
    if len(set(devices)) < len(devices):
        return
    for disk, other in zip(disks, devices, strict=True):
        if device == other:
            raise PoolError(
                f"{path}: on the same filesystem as {disk.path}, so it adds neither space nor safety; "
                "mount the new disk there first"
            )
    if device == os.stat("/").st_dev:
        raise PoolError(f"{path}: on the root filesystem; mount the new disk there first")
