"""Opening an existing pool: identity, membership, scan, findings, and the refusal to mount."""

import contextlib
import dataclasses
import errno
import itertools
import os
from collections.abc import Collection, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Final

from commitlogfs.store import _syscalls, layout
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.capacity import compare_size
from commitlogfs.store.disks.directories import DiskSpec, OpenDirectory, compare_directories, open_spec
from commitlogfs.store.disks.disk import Disk, DiskState, is_read_only
from commitlogfs.store.disks.identity import NEW_ROOT_MODE, RootAttributes
from commitlogfs.store.disks.losses import is_accepted
from commitlogfs.store.disks.membership import DiskNumber, Membership
from commitlogfs.store.errors import DirectoryError, HoldsDataError, PoolError, SegmentChangedError
from commitlogfs.store.files import durable, remove, safe_open
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, size_of, unpack
from commitlogfs.store.files.hashing import read_content
from commitlogfs.store.files.locks import take_lock
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.files.write_lease import is_open_elsewhere
from commitlogfs.store.findings import REPAIR_DISK, Finding, FindingCode, Severity
from commitlogfs.store.moves.former import Comparison, Damage, compare, lacks_content, read_record
from commitlogfs.store.moves.mark import is_repair_of, read_mark, remove_mark, source_of
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.inventory import MADE_AHEAD, Inventory, take_inventory
from commitlogfs.store.pool.members import Found, FoundDisk, find_members, missing_members
from commitlogfs.store.pool.scan import DiskScan, scan_directory
from commitlogfs.store.segment import BaseOffset, format_segment_name

DEFAULT_ROOT = RootAttributes(NEW_ROOT_MODE, 0, 0)
"""Used if the record on the disk is damaged: other users are kept out."""

_QUARANTINING = frozenset({FindingCode.DUPLICATE_SEGMENT, FindingCode.WRONG_SIZE})
"""Findings about a segment that exists but cannot be served."""

_NO_FAULT_OF_A_DISK = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errnos that do not come from the disk. All others count as its fault: drives give EIO, ENODATA, EREMOTEIO,
ETIMEDOUT and more, damaged filesystems EUCLEAN."""

_TOLERATED_BY_TAKEOVER: Final = frozenset({FindingCode.NEWEST_SEGMENT_MISSING})
"""A takeover continues without the newest segment: the broker has it mapped, and CommitLog refuses to create names
up to it."""

_IN_USE_PATIENCE_S = 2.0
"""The kernel may close the files of an ended mount a moment after the mount is gone."""
_IN_USE_PAUSE_S = 0.02

_WRITTEN_AHEAD = 3
"""Number of segments that a broker may still write to: the active one and two made ahead."""


class OnMissing(Enum):
    REFUSE = "refuse"
    DEGRADED = "degraded"

    @property
    def limit(self) -> Severity:
        """The lowest severity of a finding that refuses a mount."""
        return Severity.REFUSES_ALWAYS if self is OnMissing.DEGRADED else Severity.REFUSES


class PoolRefusedError(PoolError):
    """The pool is not mounted, because of its findings."""

    def __init__(self, findings: list[Finding], limit: Severity, *, degraded_helps: bool = False) -> None:
        blocking = [finding for finding in findings if finding.severity >= limit]
        self.blocking = sorted(blocking, key=lambda finding: -finding.severity)
        """Findings that refuse the mount, those that nothing can override first."""
        self.degraded_helps = degraded_helps
        """Whether the pool would be mounted with `on_missing = "degraded"`."""
        super().__init__("\n".join(map(str, self.blocking)))


@dataclass(slots=True)
class Pool:
    """An open pool: its disks, their inventory, the findings. `close` closes the descriptors."""

    pool_id: str
    segment_size: int
    membership: Membership
    """The newest list of members. Disks that lag or join do not record it yet."""
    recorded: dict[DiskNumber, int | None]
    """Generation of the list that each disk records; None for a disk that joins."""
    disks: list[Disk]
    inventory: Inventory
    root: RootAttributes
    missing: list[str] = field(default_factory=list)
    """Paths of members that are absent; empty except on a degraded mount."""
    not_read: frozenset[str] = frozenset()
    """Paths of those that are mounted, but could not be read completely."""
    newest_missing: BaseOffset | None = None
    """The newest segment that a missing disk may hold and no present disk does."""

    @property
    def findings(self) -> list[Finding]:
        return self.inventory.findings

    def disk_of(self, segment: Segment) -> Disk:
        return next(disk for disk in self.disks if disk.number == segment.disk)

    def close(self) -> None:
        for disk in self.disks:
            disk.close()


def open_pool(
    specs: tuple[DiskSpec, ...],
    segment_size: int | None,
    *,
    lock: bool = True,
    lock_patience_s: float = 0.0,
    check_in_use: bool = True,
    is_mounted: bool = False,
    opened: Set[tuple[DiskNumber, int]] | None = frozenset(),
    held: Set[str] = frozenset(),
    dying: Collection[int] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> Pool:
    """Open, identify and scan every disk. The findings of the returned pool name every irregularity.

    Without `segment_size`, the pool's own is used. With `lock`, each disk's directory is locked against a second
    daemon; the lock needs no file and works on a read-only disk. `opened` are the opened files of a mount that is
    taken over, as for take_inventory; None beside a running daemon, which alone knows them. A disk that cannot be
    read completely counts as missing, as segments that were not read would be taken for absent. So does one that is
    offline while the pool `is_mounted`, and one whose path is in `held`: it holds a former daemon, and is not
    touched. `dying` are the pids of such daemons, which keep their locks on the other disks.

    Changes nothing. Raises PoolError if no scan is possible: no directory can be read, no disk has an identity
    (NoIdentityError), or memory or descriptors do not suffice.
    """
    with contextlib.ExitStack() as stack:
        directories, findings = _open_directories(specs, held, stack)
        patience_s = lock_patience_s if lock else None
        all_opened = len(directories) == len(specs)
        found, more = _identify(
            directories, segment_size, patience_s, dying, clock, all_opened=all_opened, is_mounted=is_mounted
        )
        findings += more
        contents, more = _read_all([_make_disk(disk) for disk in found.disks], found.segment_size)
        findings += more
        if not contents:
            raise PoolRefusedError(findings, Severity.REFUSES)
        disks = [content.disk for content in contents]
        findings += _read_only_findings(disks)
        for content in contents:
            disk = content.disk
            if disk.state is DiskState.RW:
                findings += compare_size(disk.path, content.usage, disk.thresholds, found.segment_size)
        missing, more = missing_members(found, {disk.number for disk in disks}, specs, findings)
        findings += more
        newest = max((content.newest for content in contents if content.newest is not None), default=None)
        inventory = _inventory_of(contents, found, opened, newest, is_degraded=bool(missing))
        inventory.findings[:0] = findings
        recorded = {disk.member.number: disk.recorded for disk in found.disks}
        root = next((content.root for content in contents if content.root is not None), DEFAULT_ROOT)
        pool = Pool(found.pool_id, found.segment_size, found.membership, recorded, disks, inventory, root, missing)
        pool.not_read = _paths_not_read(found, disks)
        _check_newest(pool, newest, opened)
        if check_in_use:
            _check_in_use(pool, clock)
        stack.pop_all()
    _close_unused(directories, disks)
    return pool


def compare_segment_size(path: str, pools: int, configured: int | None) -> list[Finding]:
    """A finding if the pool's segment size, read from the disk at `path`, is not the configured one (None: not
    set)."""
    if configured in (None, pools):
        return []
    return [
        Finding(
            FindingCode.SEGMENT_SIZE_DIFFERS,
            Severity.REFUSES_ALWAYS,
            path,
            "",
            f"the pool's segments have {pools} bytes, but segment_size in the configuration is {configured}",
            "correct segment_size, and the broker's mappedFileSizeCommitLog",
        )
    ]


def blocking(findings: Iterable[Finding], on_missing: OnMissing, *, takes_over: bool = False) -> list[Finding]:
    """Those that refuse a mount, or a takeover, with this setting."""
    tolerated = _TOLERATED_BY_TAKEOVER if takes_over else frozenset()
    return [one for one in findings if one.severity >= on_missing.limit and one.code not in tolerated]


def require_mountable(pool: Pool, on_missing: OnMissing, *, takes_over: bool = False) -> None:
    """Raises PoolRefusedError if a finding refuses a mount with this setting."""
    found = blocking(pool.findings, on_missing, takes_over=takes_over)
    if found:
        worst = max(finding.severity for finding in found)
        raise PoolRefusedError(found, on_missing.limit, degraded_helps=worst is Severity.REFUSES)


def sweep(pool: Pool, *, dry_run: bool = False) -> list[str]:
    """Clean up for a fresh mount, and return one line for each file. Disk errors are ignored. A `dry_run` changes
    nothing.

    It frees removed segments that were open when the former mount ended, removes second names that an interrupted
    rename has left, and removes the marks of an unfinished `init` or `adopt`.
    """
    for disk in pool.disks:
        if disk.state is DiskState.RW and not dry_run:
            with contextlib.suppress(OSError):
                durable.remove_xattr(disk.dirfd, layout.XATTR_BIRTH)
    return free_retired(pool, dry_run=dry_run) + finish_renames(pool, dry_run=dry_run)


def free_retired(pool: Pool, *, dry_run: bool = False) -> list[str]:
    """Free removed segments, which were open, of a pool that is not mounted; returns one line for each file. Disks
    in trouble are left out, disk errors ignored. A `dry_run` changes nothing."""
    done, verb = [], "would free" if dry_run else "freed"
    for disk in pool.disks:
        if disk.state is not DiskState.RW or disk.is_troubled:
            continue
        with contextlib.suppress(OSError):
            for name, base_offset, attributes in remove.list_retired(disk.dirfd):
                if _is_needed(pool, name, base_offset, attributes):
                    done.append(f"{disk.path}: kept {name.decode()}, which is needed")
                    continue
                if not dry_run:
                    remove.drop_retired(disk.dirfd, name)
                done.append(f"{disk.path}: {verb} removed segment {name.decode()}")
            if not dry_run:
                remove.drop_empty_directory(disk.dirfd)
    return done


def _is_needed(pool: Pool, retired_name: bytes, base_offset: BaseOffset, attributes: PackedAttributes) -> bool:
    """Whether a file that a move has set aside is newer than its segment, or the disk of that is missing or was
    given up: the daemon gives it the segment's name then (fusefs/moves/sources.py). The damaged file of a repaired
    segment is kept as long as the segment is in the log. Both are kept if the segment is in a gap of the log or
    quarantined: they may hold the only content of it."""
    reason = remove.reason_of(retired_name)
    if reason not in (remove.Reason.MOVED, remove.Reason.DAMAGED):
        return False
    segment = pool.inventory.catalog.get(base_offset)
    if segment is None:
        end = base_offset + pool.segment_size
        is_in_gap = any(start <= base_offset < after for start, after in pool.inventory.catalog.gaps())
        if is_in_gap or format_segment_name(base_offset) in pool.inventory.quarantined:
            return True
        return bool(pool.missing) or is_accepted(pool.membership.losses, base_offset, end, pool.segment_size)
    if reason is remove.Reason.DAMAGED:
        return True
    return unpack(attributes).mtime_ns > unpack(segment.attributes).mtime_ns


def reserve_newest(pool: Pool) -> list[str]:
    """Reserve the blocks of adopted segments that a broker will still write to; returns one line for each file.

    A broker makes sparse segments, and a store to a mapped hole of a full disk would be lost. Without space, the
    line says so.
    """
    done = []
    for segment in pool.inventory.catalog.newest(_WRITTEN_AHEAD):
        disk = pool.disk_of(segment)
        if disk.state is not DiskState.RW or segment.size != pool.segment_size:
            continue
        if unpack(segment.attributes).allocated_bytes >= pool.segment_size:
            continue
        name = segment.name.decode()
        try:
            fd = safe_open.open_file(disk.dirfd, segment.path, os.O_RDWR, segment.ino)
            try:
                _syscalls.fallocate(fd, _syscalls.FALLOC_FL_KEEP_SIZE, 0, pool.segment_size)
            finally:
                os.close(fd)
        except OSError as error:
            done.append(f"{disk.path}: {name} is sparse and cannot be reserved ({os.strerror(error.errno or 0)})")
        else:
            done.append(f"{disk.path}: reserved all of {name}")
    return done


def find_retired(pool: Pool) -> list[Segment]:
    """Removed segments that may still be open, for a daemon that takes a mount over. Failing disks are left out."""
    found = []
    for disk in pool.disks:
        with contextlib.suppress(OSError):
            for name, base_offset, attributes in remove.list_retired(disk.dirfd):
                found.append(Segment(base_offset, disk.number, attributes, Role.RETIRED, name))
    return found


def finish_renames(pool: Pool, *, dry_run: bool = False) -> list[str]:
    """Remove the second names that an interrupted rename has left; returns one line for each file. A `dry_run`
    changes nothing."""
    done, verb = [], "would finish" if dry_run else "finished"
    for temporary in pool.inventory.stale_temporaries:
        disk = pool.disk_of(temporary)
        with contextlib.suppress(OSError):
            if not dry_run:
                remove.remove_file(disk.dirfd, temporary.name)
            done.append(f"{disk.path}: {verb} the rename of {temporary.name.decode()}")
    return done


def finish_moves(pool: Pool, *, dry_run: bool = False) -> list[str]:
    """Remove the files from which segments were moved, and set aside those that were repaired, where a crash came
    just before that; returns one line for each file. The pool is not mounted. A file that a process has open stays,
    and so does one that may hold what its copy lacks: the copies are read for that. Disks in trouble are left out,
    disk errors ignored. A `dry_run` changes nothing."""
    done: list[str] = []
    for base, moved in itertools.groupby(pool.inventory.moved, attrgetter("base_offset")):
        copy = pool.inventory.catalog.get(base)
        if copy is None:
            continue
        are_gone = [_finish_move(pool, source, copy, done, dry_run=dry_run) for source in moved]
        if all(are_gone) and not pool.missing and not dry_run:
            with contextlib.suppress(OSError):
                remove_mark(pool.disk_of(copy).dirfd, copy.name, copy.ino)
    return done


def _finish_move(pool: Pool, source: Segment, copy: Segment, done: list[str], *, dry_run: bool) -> bool:
    """Whether the source no longer has its name. `done` gets a line for it."""
    disk = pool.disk_of(source)
    if disk.state is not DiskState.RW or disk.is_troubled:
        return False
    with contextlib.suppress(OSError, SegmentChangedError):
        is_gone, line = _remove_source(pool, source, copy, dry_run=dry_run)
        done.append(f"{disk.path}: {line}")
        return is_gone
    return False


def _remove_source(pool: Pool, source: Segment, copy: Segment, *, dry_run: bool) -> tuple[bool, str]:
    """Whether the source no longer has its name, and a line for it. Raises OSError."""
    disk, where, name = pool.disk_of(source), pool.disk_of(copy), source.name.decode()
    damaged = source_of(disk.number, unpack(source.attributes))
    is_damaged = is_repair_of(where.dirfd, copy.name, copy.ino, damaged)
    may_lack = not is_damaged and _may_lack(disk, source, where, copy)
    if may_lack or is_open_elsewhere(disk.dirfd, source.name):
        return False, f"kept {name}, which is needed"
    if not dry_run:
        if is_damaged:
            remove.retire_file(disk.dirfd, source.name, source.ino, remove.Reason.DAMAGED)
        else:
            remove.remove_file(disk.dirfd, source.name, source.ino)
    if is_damaged:
        return True, f"{'would set' if dry_run else 'set'} aside damaged file {name}"
    return True, f"{'would remove' if dry_run else 'removed'} former file {name}"


def _may_lack(disk: Disk, source: Segment, where: Disk, copy: Segment) -> bool:
    """Whether a copy may lack what its source has (store/moves/former.py). Raises OSError, SegmentChangedError."""
    itself = source_of(disk.number, unpack(source.attributes))
    of_copy, of_source = read_record(where.dirfd, copy.name), read_record(disk.dirfd, source.name)
    if lacks_content(of_copy, of_source, itself):
        return True
    found = compare(of_copy, of_source, None, None)
    if found is Comparison.READ_COPY:
        content = read_content(where.dirfd, copy.name, copy.ino)
        found = compare(of_copy, of_source, content, None)
        if found is Comparison.READ_FORMER:
            former = read_content(disk.dirfd, source.name, source.ino)
            found = compare(of_copy, of_source, content, former)
    return found is not Comparison.NOT_NEEDED


def remove_leftovers(pool: Pool, *, dry_run: bool = False) -> list[str]:
    """Remove the empty files of segments that are elsewhere; returns one line for each file. The pool is not
    mounted. Disks in trouble are left out, disk errors ignored. A `dry_run` changes nothing."""
    done, verb = [], "would remove" if dry_run else "removed"
    for leftover in pool.inventory.leftovers:
        disk, name = pool.disk_of(leftover), leftover.name
        if disk.state is not DiskState.RW or disk.is_troubled:
            continue
        with contextlib.suppress(OSError, HoldsDataError):
            if dry_run or leftovers.remove_leftover(disk.dirfd, name, leftover.ino) is not None:
                done.append(f"{disk.path}: {verb} empty file {name.decode()}")
    return done


def _open_directories(
    specs: tuple[DiskSpec, ...], held: Set[str], stack: contextlib.ExitStack
) -> tuple[list[OpenDirectory], list[Finding]]:
    directories: list[OpenDirectory] = []
    findings: list[Finding] = []
    for spec in specs:
        try:
            if spec.path in held:
                raise DirectoryError(spec.path, "holds a daemon that was killed, or does not answer", REPAIR_DISK)
            directory = open_spec(spec)
        except DirectoryError as error:
            findings.append(
                Finding(FindingCode.DISK_MISSING, Severity.REFUSES, spec.path, "", error.reason, error.remedy)
            )
        else:
            stack.callback(os.close, directory.dirfd)
            directories.append(directory)
    if not directories:
        raise PoolRefusedError(findings, Severity.REFUSES)
    return directories, findings


def _close_unused(directories: list[OpenDirectory], disks: list[Disk]) -> None:
    """Close directories that are not members of the pool, and those of disks that cannot be read."""
    used = {disk.dirfd for disk in disks}
    for directory in directories:
        if directory.dirfd not in used:
            os.close(directory.dirfd)


def _identify(
    directories: list[OpenDirectory],
    segment_size: int | None,
    lock_patience_s: float | None,
    dying: Collection[int],
    clock: Clock,
    *,
    all_opened: bool,
    is_mounted: bool,
) -> tuple[Found, list[Finding]]:
    """The pool's disks, and what is wrong with them.

    Locks the disks, unless `lock_patience_s` is None.
    """
    findings = compare_directories(directories)
    found = find_members(directories, all_opened=all_opened, is_mounted=is_mounted)
    findings += found.findings
    members = [disk.directory for disk in found.disks]
    if members:
        findings += compare_segment_size(members[0].spec.path, found.segment_size, segment_size)
    is_twice = any(finding.code is FindingCode.DISK_TWICE for finding in findings)
    if lock_patience_s is not None and not is_twice:
        findings += _lock_all(members, lock_patience_s, dying, clock)
    return found, findings


def _lock_all(
    members: list[OpenDirectory], patience_s: float, dying: Collection[int], clock: Clock
) -> list[Finding]:
    return [
        Finding(
            FindingCode.POOL_IN_USE,
            Severity.REFUSES_ALWAYS,
            directory.spec.path,
            "",
            "in use by another commitlogfs",
            "the pool is mounted already: see `commitlogfs status`, or unmount it first",
        )
        for directory in members
        if not take_lock(directory.dirfd, patience_s, dying, clock)
    ]


def _paths_not_read(found: Found, read: list[Disk]) -> frozenset[str]:
    return frozenset(one.directory.spec.path for one in found.disks) - {disk.path for disk in read}


def _make_disk(found: FoundDisk) -> Disk:
    directory, member = found.directory, found.member
    disk = Disk(
        number=member.number,
        disk_id=member.disk_id,
        path=directory.spec.path,
        dirfd=directory.dirfd,
        filesystem=directory.filesystem,
        thresholds=directory.spec.thresholds,
        weight=directory.spec.weight,
        device=directory.device,
        ino=directory.ino,
        cordon=member.cordon,
        drain=member.drain,
        is_leaving=member.leaves,
        is_joining=found.recorded is None,
    )
    if directory.spec.readonly or is_read_only(directory.dirfd):
        disk.state = DiskState.RO
    return disk


def _read_only_findings(disks: list[Disk]) -> list[Finding]:
    return [
        Finding(
            FindingCode.DISK_READ_ONLY,
            Severity.NOTE,
            disk.path,
            "",
            "read-only: its segments are served, new ones go elsewhere",
            "nothing to do if intended; else remount it read-write or remove `readonly`",
        )
        for disk in disks
        if disk.state is DiskState.RO
    ]


@dataclass(frozen=True, slots=True)
class _Contents:
    """Content of one disk, as read at the start."""

    disk: Disk
    scan: DiskScan
    newest: BaseOffset | None
    """Newest segment of the pool, as this disk records it."""
    root: RootAttributes | None
    """None if it has no record of them, as a disk that joins."""
    usage: DiskUsage


def _read_all(disks: list[Disk], segment_size: int) -> tuple[list[_Contents], list[Finding]]:
    """Read all disks at once. A disk that cannot be read completely becomes a finding.

    Raises PoolError if that is not the disk's fault.
    """

    def read(disk: Disk) -> _Contents | Finding:
        try:
            return _Contents(
                disk,
                scan_directory(disk.dirfd, segment_size),
                identity.read_newest(disk.dirfd),
                None if disk.is_joining else identity.read_root(disk.dirfd, DEFAULT_ROOT),
                measure_usage(disk.dirfd),
            )
        except OSError as error:
            reason = f"cannot be read completely ({os.strerror(error.errno or 0)})"
            if error.errno in _NO_FAULT_OF_A_DISK:
                raise PoolError(f"{disk.path}: {reason}; free memory, or raise the limit of open files") from error
            return Finding(FindingCode.DISK_MISSING, Severity.REFUSES, disk.path, "", reason, REPAIR_DISK)

    with ThreadPoolExecutor(max_workers=max(1, len(disks))) as executor:
        outcomes = list(executor.map(read, disks))
    contents = [outcome for outcome in outcomes if isinstance(outcome, _Contents)]
    return contents, [outcome for outcome in outcomes if isinstance(outcome, Finding)]


def _inventory_of(
    contents: list[_Contents],
    found: Found,
    opened: Set[tuple[DiskNumber, int]] | None,
    newest: BaseOffset | None,
    *,
    is_degraded: bool,
) -> Inventory:
    """`newest` is the newest segment on record. `is_degraded`: whether a disk is missing."""
    dirfds = {content.disk.number: content.disk.dirfd for content in contents}
    decides = opened is not None
    known = opened or frozenset()
    newest_missing = newest if decides and is_degraded else None
    return take_inventory(
        [(content.disk, content.scan) for content in contents],
        found.segment_size,
        known,
        lambda copy: leftovers.name_holds_nothing(dirfds[copy.disk], copy.name, copy.ino),
        lambda copy: read_mark(dirfds[copy.disk], copy.name, copy.ino),
        lambda copy: _damage_of(dirfds[copy.disk], copy),
        newest_missing,
        is_served=not decides,
        losses=found.membership.losses,
        removed_before=found.membership.removed_before,
        undone_after=_undone_after(contents, newest, found.segment_size) if decides and not is_degraded else None,
        without_data=frozenset() if newest_missing is None else _find_without_data(contents, newest_missing, known),
    )


def _damage_of(dirfd: int, copy: Segment) -> Damage:
    """As ContentRecord.damage. Another copy is better than one that cannot be read."""
    try:
        return read_record(dirfd, copy.name).damage
    except OSError:
        return Damage(copy.size, True, True)


def _find_without_data(
    contents: list[_Contents], before: BaseOffset, opened: Set[tuple[DiskNumber, int]]
) -> frozenset[tuple[DiskNumber, int]]:
    """Files `before` a segment that have a size and no data, by disk and inode. All disks are read at once.

    Those in `opened` are not read: they are served in any case. A running broker has opened nearly all segments, so
    a takeover does not take longer.
    """

    def find(content: _Contents) -> list[tuple[DiskNumber, int]]:
        disk, found = content.disk, []
        for base, attributes in content.scan.segments:
            ino = ino_of(attributes)
            if base >= before or not size_of(attributes) or (disk.number, ino) in opened:
                continue
            if leftovers.lacks_data(disk.dirfd, format_segment_name(base), ino):
                found.append((disk.number, ino))
        return found

    with ThreadPoolExecutor(max_workers=len(contents)) as executor:
        return frozenset(itertools.chain.from_iterable(executor.map(find, contents)))


def _undone_after(contents: list[_Contents], newest: BaseOffset | None, segment_size: int) -> int | None:
    """A power cut may have undone the creation of segments after this one; None if nothing shows that. `newest` is
    the newest segment on record.

    A disk records the newest segment after the name of each that is made on it, and its journal keeps that order.
    So what all of them have recorded was durable. A disk that joins takes no part: no segment was made on it. A
    broker makes MADE_AHEAD segments ahead, so a record that is older by more, also than the newest file, or that is
    not there, shows nothing: its disk did not answer before, and segments with data may have been made since.
    """
    writable = [one for one in contents if one.disk.state is DiskState.RW and not one.disk.is_joining]
    records = [content.newest for content in writable if content.newest is not None]
    if newest is None or not records or len(records) < len(writable):
        return None
    files = (base for one in contents for base, attributes in one.scan.segments if size_of(attributes))
    oldest, latest = min(records), max((newest, *files))
    return oldest if latest - oldest <= MADE_AHEAD * segment_size else None


def _check_newest(pool: Pool, newest: BaseOffset | None, opened: Set[tuple[DiskNumber, int]] | None) -> None:
    """Add a finding if the newest segment is not served: a broker would write a second history of the log.

    `newest` is the newest one on record. While a disk is missing, an empty file counts as a segment only if it is
    in `opened`: it may be a leftover, and the segment with the messages may be on the missing disk.
    """

    last = _last_with_content(pool, opened)
    _forbid_quarantined_after(pool, last)
    if pool.missing:
        gaps = pool.inventory.catalog.gaps()
        pool.newest_missing = BaseOffset(gaps[-1][1] - pool.segment_size) if gaps else None
    if newest is None or (last is not None and newest <= last.base_offset):
        return
    if pool.missing:
        pool.newest_missing = newest
    elif is_accepted(pool.membership.losses, newest, newest + pool.segment_size, pool.segment_size):
        return
    if format_segment_name(newest) not in pool.inventory.quarantined:
        pool.findings.append(_newest_missing_finding(pool, newest, last))


def _last_with_content(pool: Pool, opened: Set[tuple[DiskNumber, int]] | None) -> Segment | None:
    def counts(segment: Segment) -> bool:
        return bool(segment.size) or not pool.missing or opened is None or (segment.disk, segment.ino) in opened

    last: Segment | None = pool.inventory.catalog.last
    while last is not None and not counts(last):
        last = pool.inventory.catalog.predecessor(last.base_offset)
    return last


def _forbid_quarantined_after(pool: Pool, last: Segment | None) -> None:
    """Let a quarantined segment after the `last` served one refuse every mount."""
    for index, finding in enumerate(pool.findings):
        if finding.code in _QUARANTINING and (last is None or finding.file.encode() > last.name):
            pool.findings[index] = dataclasses.replace(
                finding,
                severity=Severity.REFUSES_ALWAYS,
                message=f"{finding.message}, and the log has no newer segment",
            )


def _newest_missing_finding(pool: Pool, newest: BaseOffset, last: Segment | None) -> Finding:
    if pool.missing:
        severity = Severity.REFUSES_ALWAYS
        message = "the newest segment is on a missing disk; a broker would give its log offsets to other messages"
        remedy = f"bring back {' or '.join(pool.missing)}"
    else:
        # This does not refuse the mount: a power cut may undo the creation of the newest segment, which is still
        # empty then, and may bring back the record of segments that a broker has truncated at its recovery.
        first = BaseOffset(0 if last is None else last.base_offset + pool.segment_size)
        several = newest > first
        severity = Severity.WARNING
        others = f", nor are the others from {first:020d} on" if several else ""
        message = f"recorded as the newest segment, but not on any disk{others}"
        remedy = "nothing to do after a power cut; otherwise bring back what was removed"
    name = format_segment_name(newest).decode()
    return Finding(FindingCode.NEWEST_SEGMENT_MISSING, severity, "", name, message, remedy)


def _check_in_use(pool: Pool, clock: Clock) -> None:
    last: Segment | None = pool.inventory.catalog.last
    if last is None:
        return
    disk = pool.disk_of(last)
    deadline = clock.monotonic() + _IN_USE_PATIENCE_S
    while is_in_use := is_open_elsewhere(disk.dirfd, last.path):
        if clock.monotonic() > deadline:
            break
        clock.sleep(_IN_USE_PAUSE_S)
    if is_in_use:
        pool.findings.append(
            Finding(
                FindingCode.SEGMENT_IN_USE,
                Severity.REFUSES_ALWAYS,
                disk.path,
                last.name.decode(),
                "open in another process (perhaps a native broker on these directories)",
                f"stop that process: `fuser -v {disk.path}/{last.name.decode()}` names it",
            )
        )
