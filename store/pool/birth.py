"""`init` and `adopt`, which make a pool.

1. Check every directory, or refuse.
2. Write each disk's identity with a mark of an unfinished birth (XATTR_BIRTH), and sync it.
3. Remove the mark from every disk.

The mark shows which disks an interrupted command has reached. Without it, the bare directory of an unmounted disk
of a running pool would look like a disk that was not reached, and would become a member in its place. What a crash
leaves at each step: docs/architecture.md.
"""

import contextlib
import errno
import os
import stat
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

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
from commitlogfs.store.disks.identity import DiskIdentity, RootAttributes
from commitlogfs.store.disks.membership import LARGEST_DISK_NUMBER, DiskNumber, Member, Membership
from commitlogfs.store.errors import PoolError, PoolInUseError, SegmentSizeError
from commitlogfs.store.files import durable
from commitlogfs.store.files.locks import take_lock
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.files.write_lease import is_open_elsewhere
from commitlogfs.store.findings import REPAIR_DISK, Finding, FindingCode
from commitlogfs.store.pool.inventory import Inventory, take_inventory
from commitlogfs.store.pool.scan import DiskScan, scan_directory, sizes_present
from commitlogfs.store.segment import BaseOffset, show_name


@dataclass(frozen=True, slots=True)
class BirthPlan:
    """The pool that `init` or `adopt` would make: `--dry-run` shows it, `execute` makes it."""

    pool_id: str
    segment_size: int
    root: RootAttributes
    members: tuple[Member, ...]
    segments: int
    newest: BaseOffset | None
    findings: tuple[Finding, ...]
    replaced: tuple[str, ...]
    """Ids of the empty pools in whose place it would be made."""
    created: tuple[str, ...]
    """Directories that do not exist yet; `execute` makes them with mode 0700."""
    _directories: tuple[OpenDirectory, ...] = field(repr=False, default=())


def is_born(specs: tuple[DiskSpec, ...]) -> bool:
    """Whether any of these directories carries an identity. Raises PoolError, but not for an absent directory."""
    for spec in specs:
        if os.path.lexists(spec.path):
            directory = open_spec(spec)
            os.close(directory.dirfd)
            if directory.identity is not None:
                return True
    return False


def plan_init(
    specs: tuple[DiskSpec, ...], segment_size: int, root: RootAttributes, stack: contextlib.ExitStack
) -> BirthPlan:
    """Plan an empty pool. A directory may be absent if its parent exists, or a disk of a pool that never had a
    segment, and in whose place the new one is made. Changes nothing.

    Descriptors are registered on `stack`; keep it open until `execute`. Raises PoolError, PoolInUseError.
    """
    absent = tuple(spec.path for spec in specs if not os.path.lexists(spec.path))
    usages: dict[str, DiskUsage] = {}
    for path in absent:
        parent = os.path.dirname(os.path.normpath(path))
        if not os.path.isdir(parent):
            raise PoolError(f"{path}: neither it nor {parent} exists; mount the disk or make the directory first")
        above = open_spec(DiskSpec(parent, specs[0].thresholds))
        stack.callback(os.close, above.dirfd)
        refuse_on(compare_directories([above]))
        require_writable(above)
        usages[path] = measure_usage(above.dirfd)
    directories = _open_all(tuple(spec for spec in specs if spec.path not in absent), stack)
    findings = compare_directories(directories)
    refuse_on(findings)
    for directory in directories:
        require_writable(directory)
        usages[directory.spec.path] = measure_usage(directory.dirfd)
        entry = first_entry(directory.dirfd)
        if entry is not None:
            raise PoolError(
                f"{directory.spec.path}: not empty (it holds {entry!r}); "
                "use `adopt` for an existing commitlog, or an empty directory"
            )
    for spec in specs:
        require_room(spec.path, usages[spec.path], spec.thresholds, segment_size)
        findings += compare_size(spec.path, usages[spec.path], spec.thresholds, segment_size)
    replaced = _require_replaceable(specs, directories)
    members, pool_id = _members(specs, () if replaced else directories)
    return BirthPlan(
        pool_id, segment_size, root, members, 0, None, tuple(findings), replaced, absent, tuple(directories)
    )


def plan_adopt(
    specs: tuple[DiskSpec, ...],
    segment_size: int | None,
    root: RootAttributes | None,
    stack: contextlib.ExitStack,
) -> BirthPlan:
    """Plan to take over existing commitlog directories in place. Changes nothing.

    If `segment_size` is None, the size of the files is used; if `root` is None, the attributes of the directory
    with the oldest segment. Descriptors are registered on `stack`. Raises PoolError, SegmentSizeError,
    PoolInUseError.
    """
    directories = _open_all(specs, stack)
    findings = compare_directories(directories)
    refuse_on(findings)
    for directory in directories:
        require_writable(directory)
    _require_unborn(specs, directories)
    members, pool_id = _members(specs, directories)
    sizes = [sizes_present(directory.dirfd) for directory in directories]
    if segment_size is None:
        size = _learn_segment_size(directories, sizes)
    else:
        size = segment_size
        _require_right_size(size, sum(sizes, Counter()))
    for directory in directories:
        usage = measure_usage(directory.dirfd)
        findings += compare_size(directory.spec.path, usage, directory.spec.thresholds, size)
    inventory, scans = _take_inventory(directories, size)
    _refuse_native_mismatch(scans)
    findings += inventory.findings
    refuse_on(findings)
    first, last = inventory.catalog.first, inventory.catalog.last
    if first is None or last is None:
        raise PoolError("no segment in any of the directories; use `init` to make a new pool")
    newest_directory = directories[last.disk - 1]
    if is_open_elsewhere(newest_directory.dirfd, last.path):
        raise PoolInUseError(
            f"{newest_directory.spec.path}/{last.name.decode()}: open in another process; stop the broker first"
        )
    if root is None:
        st = os.fstat(directories[first.disk - 1].dirfd)
        root = RootAttributes(stat.S_IMODE(st.st_mode) & 0o777, st.st_uid, st.st_gid)
    return BirthPlan(
        pool_id,
        size,
        root,
        members,
        len(inventory.catalog),
        last.base_offset,
        tuple(findings),
        (),
        (),
        tuple(directories),
    )


def execute(plan: BirthPlan, specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack) -> list[Finding]:
    """Write every identity, and return the findings about the directories. Raises PoolError."""
    directories = {directory.spec.path: directory for directory in plan._directories}
    for spec in specs:
        if spec.path in plan.created:
            os.mkdir(spec.path, 0o700)
            directory = open_spec(spec)
            stack.callback(os.close, directory.dirfd)
            directories[spec.path] = directory
    for member in plan.members:
        directory = directories[member.path]
        membership = Membership(plan.members, last_number=DiskNumber(len(plan.members)))
        document = DiskIdentity(plan.pool_id, member.disk_id, member.number, plan.segment_size, membership)
        try:
            os.setxattr(directory.dirfd, layout.XATTR_ROOT, identity.format_root(plan.root))
            os.setxattr(directory.dirfd, layout.XATTR_NEWEST, identity.format_newest(plan.newest))
            os.setxattr(directory.dirfd, layout.XATTR_BIRTH, b"unfinished")
            durable.remove_xattr(directory.dirfd, layout.XATTR_SCRUB)  # of a former pool
            durable.write_xattr(directory.dirfd, layout.XATTR_IDENTITY, identity.format_identity(document))
        except OSError as error:
            is_unsupported = error.errno == errno.EOPNOTSUPP
            remedy = "use a filesystem with user extended attributes" if is_unsupported else REPAIR_DISK
            raise PoolError(
                f"{member.path}: the disk's identity cannot be written ({os.strerror(error.errno or 0)}); {remedy}"
            ) from error
    for member in plan.members:
        try:
            for former in (layout.XATTR_SCRUB, layout.XATTR_JOINING):
                durable.remove_xattr(directories[member.path].dirfd, former)
            durable.remove_xattr(directories[member.path].dirfd, layout.XATTR_BIRTH)
        except OSError as error:
            raise PoolError(
                f"{member.path}: an attribute cannot be removed ({os.strerror(error.errno or 0)}); {REPAIR_DISK}"
            ) from error
    return compare_directories([directories[spec.path] for spec in specs])


def _open_all(specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack) -> list[OpenDirectory]:
    if len(specs) > LARGEST_DISK_NUMBER:
        raise PoolError(f"{len(specs)} disks: a pool can have at most {LARGEST_DISK_NUMBER}")
    directories = []
    for spec in specs:
        directory = open_spec(spec)
        stack.callback(os.close, directory.dirfd)
        directories.append(directory)
    for directory in directories:
        # compare_directories reports the same directory twice; its lock would conflict with our own.
        twin = any(
            (f.device, f.ino) == (directory.device, directory.ino) for f in directories if f is not directory
        )
        if not twin and not take_lock(directory.dirfd):
            raise PoolInUseError(f"{directory.spec.path}: in use by a running commitlogfs; unmount it first")
    return directories


def _interrupted(specs: tuple[DiskSpec, ...], directories: Sequence[OpenDirectory]) -> DiskIdentity | None:
    """The identity of a disk that an interrupted command with the same disks has reached; None without one."""
    born = [directory for directory in directories if directory.identity is not None]
    if not born or len(born) == len(specs):
        return None
    known = born[0].identity
    assert known is not None
    paths = tuple(spec.path for spec in specs)
    is_interrupted = all(
        directory.identity is not None
        and durable.read_xattr(directory.dirfd, layout.XATTR_BIRTH) is not None
        and directory.identity.pool_id == known.pool_id
        and tuple(member.path for member in directory.identity.membership.members) == paths
        for directory in born
    )
    return known if is_interrupted else None


def _require_unborn(specs: tuple[DiskSpec, ...], directories: Sequence[OpenDirectory]) -> None:
    """Raises PoolError for a disk of a pool, unless the same command was interrupted."""
    for directory in directories:
        if directory.identity is not None and _interrupted(specs, directories) is None:
            raise _is_a_disk(directory.spec.path, directory.identity, "")


def _require_replaceable(specs: tuple[DiskSpec, ...], directories: Sequence[OpenDirectory]) -> tuple[str, ...]:
    """Ids of the pools of these directories, which never had a segment; none if the same command was interrupted.

    Raises PoolError for all others, and for one of whose disks nothing is known: it may not be mounted.
    """
    if _interrupted(specs, directories) is not None:
        return ()
    replaced: dict[str, None] = {}
    bare = {directory.spec.path for directory in directories if directory.identity is None}
    for directory in directories:
        known, path = directory.identity, directory.spec.path
        if known is None:
            continue
        had = identity.read_newest(directory.dirfd) is not None or known.membership.losses
        if had or os.path.lexists(os.path.join(path, os.fsdecode(layout.RETIRED_DIRECTORY))):
            raise _is_a_disk(path, known, ", which has had segments")
        is_unfinished = durable.read_xattr(directory.dirfd, layout.XATTR_BIRTH) is not None
        for member in () if is_unfinished else known.membership.members:
            if member.path in bare:
                raise _is_a_disk(path, known, f", and its disk {member.number} ({member.path}) may not be mounted")
        replaced[known.pool_id] = None
    return tuple(replaced)


def _is_a_disk(path: str, known: DiskIdentity, more: str) -> PoolError:
    return PoolError(
        f"{path}: already a disk of pool {known.pool_id}{more}; mount that pool, or end it: `commitlogfs destroy`"
    )


def _members(specs: tuple[DiskSpec, ...], directories: Sequence[OpenDirectory]) -> tuple[tuple[Member, ...], str]:
    """Members and pool id of the new pool; those of an interrupted command with the same disks, if there was
    one."""
    known = _interrupted(specs, directories)
    if known is not None:
        return known.membership.members, known.pool_id
    members = tuple(
        Member(DiskNumber(number), str(uuid.uuid4()), spec.path) for number, spec in enumerate(specs, start=1)
    )
    return members, str(uuid.uuid4())


def _take_inventory(
    directories: list[OpenDirectory], segment_size: int
) -> tuple[Inventory, list[tuple[Disk, DiskScan]]]:
    scans = []
    for number, directory in enumerate(directories, start=1):
        disk = Disk(
            DiskNumber(number),
            "",
            directory.spec.path,
            directory.dirfd,
            directory.filesystem,
            directory.spec.thresholds,
        )
        try:
            scans.append((disk, scan_directory(directory.dirfd, segment_size)))
        except OSError as error:
            raise PoolError(
                f"{directory.spec.path}: cannot be read ({os.strerror(error.errno or 0)}); {REPAIR_DISK}"
            ) from error
    return take_inventory(scans, segment_size), scans


def _refuse_native_mismatch(scans: list[tuple[Disk, DiskScan]]) -> None:
    """Raises PoolError for a directory with alien files: a broker would not load it as a commitlog."""
    for disk, scan in scans:
        if scan.aliens:
            name = show_name(min(scan.aliens))
            raise PoolError(
                f"{disk.path}/{name}: {FindingCode.ALIEN_FILE.value}: not a segment of this commitlog; "
                "move it out of the directory, or give the right --segment-size"
            )


def _require_right_size(given: int, sizes: Counter[int]) -> None:
    """Raises SegmentSizeError if most segments have another size; they would be reported as damaged otherwise."""
    if not sizes:
        return
    found, number = sizes.most_common(1)[0]
    if found != given and number > sizes[given]:
        raise SegmentSizeError(given, found, number, sizes.total())


def _learn_segment_size(directories: list[OpenDirectory], sizes: list[Counter[int]]) -> int:
    found: dict[int, str] = {}
    for directory, present in zip(directories, sizes, strict=True):
        for size in present:
            found.setdefault(size, directory.spec.path)
    if not found:
        raise PoolError("no segment in any of the directories; use `init` to make a new pool")
    if len(found) > 1:
        described = ", ".join(f"{size} in {path}" for size, path in sorted(found.items()))
        raise PoolError(f"segments of different sizes ({described}); give the right one with --segment-size")
    return next(iter(found))
