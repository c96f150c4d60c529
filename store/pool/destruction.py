"""`destroy`, which ends a pool: all that `init` and its daemons have made on its disks is removed.

1. Check every disk, or refuse.
2. Mark the identity of every disk, and sync it. No version of commitlogfs serves a disk with the mark, nor mounts
   the others beside it.
3. On each disk, remove the files of the pool, then its records, and the identity last.

The mark shows which disks the same command has to continue with after a crash. Files that no pool makes stay. What
a crash leaves at each step: docs/architecture.md.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.directories import (
    DiskSpec,
    OpenDirectory,
    compare_directories,
    open_spec,
    refuse_on,
    require_writable,
)
from commitlogfs.store.disks.membership import Member
from commitlogfs.store.errors import DirectoryError, NoIdentityError, PoolError, PoolInUseError
from commitlogfs.store.files import durable, remove, safe_open
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.files.locks import take_lock
from commitlogfs.store.files.write_lease import is_open_elsewhere
from commitlogfs.store.findings import REPAIR_DISK
from commitlogfs.store.pool.scan import scan_directory
from commitlogfs.store.segment import format_segment_name, show_name

_KEPT_BY_A_MOUNT = frozenset({remove.Reason.MOVED, remove.Reason.DAMAGED})
"""Files that a mount sets aside and may still need; all others that it sets aside have left the log for good."""


@dataclass(frozen=True, slots=True)
class DiskContent:
    """Content of one disk, by whose it is."""

    path: str
    number: int | None
    """None for a directory that `disk add` has prepared."""
    segments: tuple[bytes, ...] = ()
    """Names of segments, and of copies in progress."""
    segment_bytes: int = 0
    set_aside: tuple[bytes, ...] = ()
    """Names in the directory of removed segments."""
    needed: int = 0
    """How many of those may be the only file of their segment."""
    others: tuple[str, ...] = ()
    """Names of files that are not of the pool."""

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "path": self.path,
            "segments": len(self.segments),
            "segment_bytes": self.segment_bytes,
            "set_aside": len(self.set_aside),
            "unknown": list(self.others),
        }


@dataclass(frozen=True, slots=True)
class DestructionPlan:
    """The pool that `destroy` would end: `--dry-run` shows it, `mark` and `strip` end it."""

    pool_id: str
    disks: tuple[DiskContent, ...]
    missing: tuple[Member, ...]
    """Members that are not there; they go on recording the pool."""
    _directories: tuple[OpenDirectory, ...] = field(repr=False, compare=False, default=())


def plan_destruction(
    specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack, *, with_segments: bool, degraded: bool
) -> DestructionPlan:
    """Check the pool of these disks, which nobody uses. Changes nothing.

    Descriptors are registered on `stack`; keep it open until `strip`. Raises NoIdentityError if no directory
    records a pool; PoolError, PoolInUseError.
    """
    opened = list(_open_present(specs, stack))
    refuse_on(compare_directories(opened))
    ours = [one for one in opened if _pool_ids(one)]
    if not ours:
        raise NoIdentityError(f"no pool on {', '.join(spec.path for spec in specs)}, or its disks are not mounted")
    pool_id = _only_pool(ours)
    missing = _missing(ours, {one.spec.path for one in opened if not _pool_ids(one)})
    if missing and not degraded:
        paths = ", ".join(f"{member.path} (disk {member.number})" for member in missing)
        raise PoolError(
            f"{paths}: missing; bring it back, or add --degraded, which destroys the pool without what is missing"
        )
    for directory in ours:
        require_writable(directory)
        if not take_lock(directory.dirfd):
            raise PoolInUseError(f"{directory.spec.path}: in use by a running commitlogfs; unmount it first")
    disks = tuple(map(_content_of, ours))
    _refuse_data(disks, with_segments=with_segments)
    return DestructionPlan(pool_id, disks, tuple(missing), tuple(ours))


def mark(plan: DestructionPlan) -> None:
    """Step 2. Raises PoolError."""
    for directory in plan._directories:
        known = directory.identity
        if known is not None and not known.is_being_destroyed:
            with _reporting(directory.spec.path):
                identity.write_identity(directory.dirfd, replace(known, is_being_destroyed=True))


def strip(plan: DestructionPlan) -> None:
    """Step 3. Raises PoolError; the same command continues then."""
    for directory, disk in zip(plan._directories, plan.disks, strict=True):
        with _reporting(disk.path):
            for name in disk.segments:
                _unlink(directory.dirfd, name)
            _unlink_set_aside(directory.dirfd, disk.set_aside)
            durable.sync_dir(directory.dirfd)
            for record in layout.DISK_RECORDS:
                durable.remove_xattr(directory.dirfd, record)


def _open_present(specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack) -> Iterator[OpenDirectory]:
    for spec in specs:
        with contextlib.suppress(DirectoryError):  # reported as missing, if it is a member
            directory = open_spec(spec, may_be_destroyed=True)
            stack.callback(os.close, directory.dirfd)
            yield directory


def _pool_ids(directory: OpenDirectory) -> set[str]:
    records = (directory.identity, directory.joining)
    return {record.pool_id for record in records if record is not None}


def _only_pool(ours: Sequence[OpenDirectory]) -> str:
    """Raises PoolError if the directories record several pools, or two are copies of one disk."""
    first = ours[0].spec.path
    pool_id = min(_pool_ids(ours[0]))
    seen: dict[str, str] = {}
    for one in ours:
        if _pool_ids(one) != {pool_id}:
            raise PoolError(
                f"{one.spec.path}: records another pool than {first}; name the disks of one pool only, with --disks"
            )
        if one.identity is not None:
            twin = seen.setdefault(one.identity.disk_id, one.spec.path)
            if twin != one.spec.path:
                raise PoolError(f"{one.spec.path}: is a copy of {twin}; name the disks of one pool, with --disks")
    return pool_id


def _missing(ours: Sequence[OpenDirectory], bare: set[str]) -> list[Member]:
    """Members that are not there. `bare` are the directories without a record: once all disks have the mark,
    `destroy` may have come to the end of some of them."""
    identities = [one.identity for one in ours if one.identity is not None]
    if not identities:
        return []
    newest = max(identities, key=lambda one: one.membership.generation)
    present = {one.disk_id for one in identities}
    done = bare if all(one.is_being_destroyed for one in identities) else set()
    members = newest.membership.members
    return [member for member in members if member.disk_id not in present and member.path not in done]


def _content_of(directory: OpenDirectory) -> DiskContent:
    """Raises PoolError."""
    path, dirfd, known = directory.spec.path, directory.dirfd, directory.identity
    with _reporting(path, "cannot be read"):
        if known is None:
            return DiskContent(path, None, others=tuple(sorted(set(os.listdir(dirfd)) - {"lost+found"})))
        scan = scan_directory(dirfd, known.segment_size)
        retired = remove.list_retired(dirfd)
        names = [(format_segment_name(base), attributes) for base, attributes in scan.segments]
        names += [(name, attributes) for name, _, attributes in scan.temporaries]
        _require_unused(directory, max((name for name, _ in names), default=None))
        others = [*scan.aliens, *(name for name, _ in scan.irregular), *remove.list_unknown(dirfd)]
        return DiskContent(
            path,
            known.number,
            tuple(sorted(name for name, _ in names)),
            sum(unpack(attributes).allocated_bytes for _, attributes in names),
            tuple(sorted(name for name, _, _ in retired)),
            sum(remove.reason_of(name) in _KEPT_BY_A_MOUNT for name, _, _ in retired),
            tuple(sorted(map(show_name, others))),
        )


def _require_unused(directory: OpenDirectory, newest: bytes | None) -> None:
    if newest is not None and is_open_elsewhere(directory.dirfd, newest):
        raise PoolInUseError(
            f"{directory.spec.path}/{newest.decode()}: open in another process; stop the broker first"
        )


def _refuse_data(disks: Sequence[DiskContent], *, with_segments: bool) -> None:
    """Raises PoolError for what holds messages, unless it is to be removed, too."""
    for disk in () if with_segments else disks:
        if disk.segments:
            raise PoolError(
                f"{disk.path}: holds segments ({len(disk.segments):,}, from {disk.segments[0].decode()}); move "
                "them away, or add --with-segments, which removes the messages for good"
            )
        if disk.needed:
            raise PoolError(
                f"{disk.path}/{layout.RETIRED_DIRECTORY.decode()}: holds files that were set aside "
                f"({disk.needed:,}), which may be the only ones of their segments; move them away, or add "
                "--with-segments, which removes them for good"
            )


def _unlink(dirfd: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)


def _unlink_set_aside(dirfd: int, names: Sequence[bytes]) -> None:
    with contextlib.suppress(FileNotFoundError):
        directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
        try:
            for name in names:
                _unlink(directory, name)
            durable.sync_dir(directory)
        finally:
            os.close(directory)
    remove.drop_empty_directory(dirfd)


@contextlib.contextmanager
def _reporting(path: str, fact: str = "cannot be destroyed") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise PoolError(f"{path}: {fact} ({reason}); {REPAIR_DISK}, and repeat the command") from error
