"""Opening an existing pool: identity, membership, scan, findings, and the refusal to mount."""

import contextlib
import dataclasses
import errno
import os
import time
from collections import Counter
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from commitlogfs.store import _syscalls, layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import Disk, DiskState, is_read_only
from commitlogfs.store.disks.identity import NEW_ROOT_MODE, DiskNumber, RootAttributes
from commitlogfs.store.disks.membership import DiskSpec, OpenFolder, compare_folders, open_spec
from commitlogfs.store.errors import FolderError, NoIdentityError, PoolError
from commitlogfs.store.files import durable, remove, safe_open
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.files.locks import take_lock
from commitlogfs.store.files.write_lease import is_open_elsewhere
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.inventory import Inventory, take_inventory
from commitlogfs.store.pool.scan import DiskScan, scan_folder
from commitlogfs.store.segment import BaseOffset, format_segment_name

DEFAULT_ROOT = RootAttributes(NEW_ROOT_MODE, 0, 0)
"""Where the record is damaged: closed rather than open."""

_ABSENT = frozenset({FindingCode.DISK_MISSING, FindingCode.DISK_WITHOUT_IDENTITY})
"""Findings about a configured path at which no disk of any pool can be read."""
_QUARANTINING = frozenset({FindingCode.DUPLICATE_SEGMENT, FindingCode.WRONG_SIZE})
"""Findings about a segment that exists but cannot be served."""

_NO_FAULT_OF_A_DISK = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Any other error is: drives give EIO, ENODATA, EREMOTEIO, ETIMEDOUT and more, damaged filesystems EUCLEAN."""

_IN_USE_PATIENCE_S = 2.0
"""The kernel may close the files of a mount that has ended a moment after it has gone."""
_IN_USE_PAUSE_S = 0.02

_WRITTEN_AHEAD = 3
"""The segment in use and the two that a broker makes ahead of it."""


class OnMissing(Enum):
    REFUSE = "refuse"
    DEGRADED = "degraded"


class PoolRefusedError(PoolError):
    """The pool is not mounted."""

    def __init__(self, findings: list[Finding], limit: Severity, *, degraded_helps: bool = False) -> None:
        blocking = [finding for finding in findings if finding.severity >= limit]
        self.blocking = sorted(blocking, key=lambda finding: -finding.severity)
        """Why, the ones that nothing can override first."""
        self.degraded_helps = degraded_helps
        """Whether it would be mounted with `on_missing = "degraded"`."""
        super().__init__("\n".join(map(str, self.blocking)))


@dataclass(slots=True)
class Pool:
    """An open pool: disks, what lies on them, what was found. `close` gives the descriptors back."""

    pool_id: str
    segment_size: int
    disks: list[Disk]
    inventory: Inventory
    root: RootAttributes
    missing: list[str] = field(default_factory=list)
    """Paths of members that are absent: not empty only on a degraded mount."""
    newest_missing: BaseOffset | None = None
    """The newest segment that a missing disk may hold: no disk that is there has it."""

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
    opened: Set[tuple[DiskNumber, int]] | None = frozenset(),
) -> Pool:
    """Open, identify and scan every disk; everything wrong is in the returned pool's findings.

    `segment_size` None takes the pool's own. With `lock`, each disk's folder is locked against a
    second daemon, which needs no file there and works on a read-only disk. `opened` are
    files of a mount that is gone on with, as for take_inventory; None beside a running daemon, which alone knows.
    A disk that cannot be read completely is missing: what it did not show could be taken for absent.
    Nothing is changed. Raises PoolError where not even a scan is possible: no folder can be read, no
    identity anywhere (NoIdentityError), identities of different pools, or no memory or descriptors for the scan.
    """
    with contextlib.ExitStack() as stack:
        folders, findings = _open_folders(specs, stack)
        first, candidates, more = _identify(specs, folders, segment_size, lock_patience_s if lock else None)
        findings += more
        contents, more = _read_all(candidates, first.segment_size)
        findings += more
        if not contents:
            raise PoolRefusedError(findings, Severity.REFUSES)
        disks = [found.disk for found in contents]
        findings += _read_only_findings(disks)
        unreadable = {disk.number for disk in candidates} - {disk.number for disk in disks}
        missing, more = _missing_members(first, disks, specs, _paths_without_disk(first, findings, unreadable))
        findings += more
        newest = max((found.newest for found in contents if found.newest is not None), default=None)
        newest_missing = newest if missing and opened is not None else None
        inventory = _inventory_of(contents, first.segment_size, opened or frozenset(), newest_missing)
        inventory.findings[:0] = findings
        pool = Pool(first.pool_id, first.segment_size, disks, inventory, contents[0].root, missing)
        _check_newest(pool, newest, opened)
        if check_in_use:
            _check_in_use(pool)
        stack.pop_all()
    _close_unused(folders, disks)
    return pool


def compare_segment_size(path: str, pools: int, configured: int | None) -> list[Finding]:
    """What the disk at `path` says of the pool's segment size, beside the configuration's; None: that is silent."""
    if configured in (None, pools):
        return []
    return [
        Finding(
            FindingCode.SEGMENT_SIZE_DIFFERS,
            Severity.REFUSES_ALWAYS,
            path,
            "",
            f"the pool's segments have {pools} bytes, the configuration says {configured}",
            "correct segment_size (and the broker's mappedFileSizeCommitLog)",
        )
    ]


def require_mountable(pool: Pool, on_missing: OnMissing, *, takes_over: bool = False) -> None:
    """Raises PoolRefusedError if a finding forbids to mount under this setting.

    A takeover continues without the newest segment: the broker has it mapped, and CommitLog makes no segment up to
    it a second time.
    """
    limit = Severity.REFUSES_ALWAYS if on_missing is OnMissing.DEGRADED else Severity.REFUSES
    tolerated = {FindingCode.NEWEST_SEGMENT_MISSING} if takes_over else set()
    judged = [finding for finding in pool.findings if finding.code not in tolerated]
    worst = max((finding.severity for finding in judged), default=Severity.NOTE)
    if worst >= limit:
        raise PoolRefusedError(judged, limit, degraded_helps=worst is Severity.REFUSES)


def sweep(pool: Pool) -> list[str]:
    """What a fresh mount tidies up: segments that were removed but still open when the former mount ended,
    second names left by an interrupted rename, a birth's mark of being unfinished (it is not: the pool is mounted).
    Returns one line per file. Disk errors are left alone."""
    done = []
    for disk in pool.disks:
        if disk.state is not DiskState.RW:
            continue
        with contextlib.suppress(OSError):
            durable.remove_xattr(disk.dirfd, layout.XATTR_BIRTH)
            for name, _, _ in remove.list_retired(disk.dirfd):
                remove.drop_retired(disk.dirfd, name)
                done.append(f"{disk.path}: freed removed segment {name.decode()}")
            remove.drop_empty_folder(disk.dirfd)
    return done + finish_renames(pool)


def reserve_newest(pool: Pool) -> list[str]:
    """Reserve what a broker will still write to in segments that were adopted: it makes them sparse, and a store to
    a mapped hole of a full disk would be lost. One line per file; without room nothing is said but that."""
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
    """For a daemon that goes on with a mount: the removed segments that somebody may still have open. A disk that
    fails has none."""
    found = []
    for disk in pool.disks:
        with contextlib.suppress(OSError):
            for name, base_offset, attributes in remove.list_retired(disk.dirfd):
                found.append(Segment(base_offset, disk.number, attributes, Role.RETIRED, name))
    return found


def finish_renames(pool: Pool) -> list[str]:
    """Second names that an interrupted rename has left are removed. One line per file."""
    done = []
    for temporary in pool.inventory.stale_temporaries:
        disk = pool.disk_of(temporary)
        with contextlib.suppress(OSError):
            remove.remove_file(disk.dirfd, temporary.name)
            done.append(f"{disk.path}: finished the rename of {temporary.name.decode()}")
    return done


def _open_folders(
    specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack
) -> tuple[list[OpenFolder], list[Finding]]:
    folders: list[OpenFolder] = []
    findings: list[Finding] = []
    for spec in specs:
        try:
            folder = open_spec(spec)
        except FolderError as error:
            findings.append(
                Finding(FindingCode.DISK_MISSING, Severity.REFUSES, spec.path, "", error.reason, error.remedy)
            )
        else:
            stack.callback(os.close, folder.dirfd)
            folders.append(folder)
    if not folders:
        raise PoolRefusedError(findings, Severity.REFUSES)
    return folders, findings


def _close_unused(folders: list[OpenFolder], disks: list[Disk]) -> None:
    """Close directories that are not members of the pool, and those of disks that cannot be read."""
    used = {disk.dirfd for disk in disks}
    for folder in folders:
        if folder.dirfd not in used:
            os.close(folder.dirfd)


def _identify(
    specs: tuple[DiskSpec, ...], folders: list[OpenFolder], segment_size: int | None, lock_patience_s: float | None
) -> tuple[identity.DiskIdentity, list[Disk], list[Finding]]:
    """The pool's record, its disks by number, and what is wrong with them.

    Locks the disks, unless `lock_patience_s` is None.
    """
    findings = compare_folders(folders)
    members, identities, more = _match_identities(specs, folders)
    findings += more
    first = identities[0]
    findings += compare_segment_size(members[0].spec.path, first.segment_size, segment_size)
    is_twice = any(finding.code is FindingCode.DISK_TWICE for finding in findings)
    if lock_patience_s is not None and not is_twice:
        findings += _lock_all(members, lock_patience_s)
    disks = [_make_disk(folder, found) for folder, found in zip(members, identities, strict=True)]
    return first, sorted(disks, key=lambda disk: disk.number), findings


def _match_identities(
    specs: tuple[DiskSpec, ...], folders: list[OpenFolder]
) -> tuple[list[OpenFolder], list[identity.DiskIdentity], list[Finding]]:
    """The folders that belong to the pool most of them name, with their identities, and the others as findings."""
    pools = Counter(folder.identity.pool_id for folder in folders if folder.identity is not None)
    if not pools:
        paths = ", ".join(folder.spec.path for folder in folders)
        raise NoIdentityError(
            f"{paths}: no disk carries a commitlogfs identity: are the disks mounted? "
            "A new pool is made by `commitlogfs init`, an existing commitlog is taken over by `commitlogfs adopt`"
        )
    pool_id = pools.most_common(1)[0][0]
    members: list[OpenFolder] = []
    identities: list[identity.DiskIdentity] = []
    findings: list[Finding] = []
    for folder in folders:
        found = folder.identity
        if found is None:
            findings.append(
                Finding(
                    FindingCode.DISK_WITHOUT_IDENTITY,
                    Severity.REFUSES,
                    folder.spec.path,
                    "",
                    "carries no identity: most likely the bare folder of a disk that is not mounted",
                    "mount the disk there",
                )
            )
        elif found.pool_id != pool_id:
            findings.append(
                Finding(
                    FindingCode.DISK_OF_ANOTHER_POOL,
                    Severity.REFUSES_ALWAYS,
                    folder.spec.path,
                    "",
                    f"belongs to pool {found.pool_id}, the others to {pool_id}",
                    "correct the path, or mount the right disk there",
                )
            )
        elif any(other.disk_id == found.disk_id for other in identities):
            twin = members[[other.disk_id for other in identities].index(found.disk_id)]
            if (twin.device, twin.ino) == (folder.device, folder.ino):
                continue  # compare_folders has told it
            findings.append(
                Finding(
                    FindingCode.DISK_TWICE,
                    Severity.REFUSES_ALWAYS,
                    folder.spec.path,
                    "",
                    f"carries the same identity as {twin.spec.path} (a copy or clone?)",
                    "unmount the copy, or correct the path",
                )
            )
        else:
            members.append(folder)
            identities.append(found)
    return members, identities, findings


def _lock_all(members: list[OpenFolder], patience_s: float) -> list[Finding]:
    return [
        Finding(
            FindingCode.POOL_IN_USE,
            Severity.REFUSES_ALWAYS,
            folder.spec.path,
            "",
            "in use by another commitlogfs",
            "it is mounted already: see `commitlogfs status`, or unmount it first",
        )
        for folder in members
        if not take_lock(folder.dirfd, patience_s)
    ]


def _make_disk(folder: OpenFolder, found: identity.DiskIdentity) -> Disk:
    disk = Disk(
        number=found.number,
        disk_id=found.disk_id,
        path=folder.spec.path,
        dirfd=folder.dirfd,
        filesystem=folder.filesystem,
        thresholds=folder.spec.thresholds,
        weight=folder.spec.weight,
    )
    if folder.spec.readonly or is_read_only(folder.dirfd):
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


def _paths_without_disk(
    known: identity.DiskIdentity, findings: list[Finding], unreadable: set[DiskNumber]
) -> set[str]:
    """Configured paths for which a finding says already that no disk can be read there."""
    absent = {finding.disk for finding in findings if finding.code in _ABSENT}
    return absent | {member.path for member in known.members if member.number in unreadable}


def _missing_members(
    known: identity.DiskIdentity, disks: list[Disk], specs: tuple[DiskSpec, ...], absent: set[str]
) -> tuple[list[str], list[Finding]]:
    """Paths of the members that no folder turned out to be; a finding for each not yet told in `absent`."""
    present = {disk.disk_id for disk in disks}
    configured = {spec.path for spec in specs}
    missing = [member for member in known.members if member.disk_id not in present]
    findings = []
    for member in missing:
        if member.path in absent:
            continue
        if absent or member.path in configured:
            code, reason = FindingCode.DISK_MISSING, "is missing (last seen here)"
        else:
            code, reason = FindingCode.DISK_NOT_CONFIGURED, "is not in the configuration (last seen here)"
        findings.append(
            Finding(
                code,
                Severity.REFUSES,
                member.path,
                "",
                f"disk {member.number} of the pool {reason}",
                "mount it and name it in the configuration",
            )
        )
    return [member.path for member in missing], findings


@dataclass(frozen=True, slots=True)
class _Contents:
    """What is read of one disk."""

    disk: Disk
    scan: DiskScan
    newest: BaseOffset | None
    """The newest segment of the pool, as this disk records it."""
    root: RootAttributes


def _read_all(disks: list[Disk], segment_size: int) -> tuple[list[_Contents], list[Finding]]:
    """All disks at once, since each has its own spindle; a finding for each that cannot be read completely. Raises
    PoolError where that is not the disk's fault."""

    def read(disk: Disk) -> _Contents | Finding:
        try:
            return _Contents(
                disk,
                scan_folder(disk.dirfd, segment_size),
                identity.read_newest(disk.dirfd),
                identity.read_root(disk.dirfd, DEFAULT_ROOT),
            )
        except OSError as error:
            reason = f"cannot be read completely ({os.strerror(error.errno or 0)})"
            if error.errno in _NO_FAULT_OF_A_DISK:
                raise PoolError(f"{disk.path}: {reason}: check the disk") from error
            return Finding(FindingCode.DISK_MISSING, Severity.REFUSES, disk.path, "", reason, "check the disk")

    with ThreadPoolExecutor(max_workers=max(1, len(disks))) as executor:
        outcomes = list(executor.map(read, disks))
    contents = [outcome for outcome in outcomes if isinstance(outcome, _Contents)]
    return contents, [outcome for outcome in outcomes if isinstance(outcome, Finding)]


def _inventory_of(
    contents: list[_Contents],
    segment_size: int,
    opened: Set[tuple[DiskNumber, int]],
    newest_missing: BaseOffset | None,
) -> Inventory:
    dirfds = {found.disk.number: found.disk.dirfd for found in contents}
    return take_inventory(
        [(found.disk, found.scan) for found in contents],
        segment_size,
        opened,
        lambda copy: leftovers.name_holds_nothing(dirfds[copy.disk], copy.name, copy.ino),
        newest_missing,
    )


def _check_newest(pool: Pool, newest: BaseOffset | None, opened: Set[tuple[DiskNumber, int]] | None) -> None:
    """Refused while the newest segment is known to lie where it cannot be served: two histories would follow.

    `newest` is the newest one on record. While a disk is missing, a file without size stands for no segment, unless
    it is one of `opened`: a disk that failed may have kept it, and the segment with the messages may lie on the
    missing one.
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
    """A segment that cannot be served and lies after the `last` served one refuses every mount."""
    for index, finding in enumerate(pool.findings):
        if finding.code in _QUARANTINING and (last is None or finding.file.encode() > last.name):
            pool.findings[index] = dataclasses.replace(
                finding,
                severity=Severity.REFUSES_ALWAYS,
                message=f"{finding.message}, and the log has no newer one to go on from",
            )


def _newest_missing_finding(pool: Pool, newest: BaseOffset, last: Segment | None) -> Finding:
    if pool.missing:
        severity = Severity.REFUSES_ALWAYS
        message = "the newest segment lies on a missing disk, so the log would grow a second history"
        remedy = f"bring back {' or '.join(pool.missing)}"
    else:
        # No reason to refuse: a power cut may undo the creation of the newest segment, which is still empty then,
        # and may bring back the record of segments that a broker has truncated at its recovery.
        first = BaseOffset(0 if last is None else last.base_offset + pool.segment_size)
        several = newest > first
        severity = Severity.WARNING
        message = f"recorded as newest, but on no disk{f', as all from {first:020d} on' if several else ''}"
        remedy = "nothing to do after a power cut; else find out who removed what, and bring it back"
    name = format_segment_name(newest).decode()
    return Finding(FindingCode.NEWEST_SEGMENT_MISSING, severity, "", name, message, remedy)


def _check_in_use(pool: Pool) -> None:
    last: Segment | None = pool.inventory.catalog.last
    if last is None:
        return
    disk = pool.disk_of(last)
    deadline = time.monotonic() + _IN_USE_PATIENCE_S
    while is_in_use := is_open_elsewhere(disk.dirfd, last.path):
        if time.monotonic() > deadline:
            break
        time.sleep(_IN_USE_PAUSE_S)
    if is_in_use:
        pool.findings.append(
            Finding(
                FindingCode.SEGMENT_IN_USE,
                Severity.REFUSES_ALWAYS,
                disk.path,
                last.name.decode(),
                "open in another process (a native broker on these folders?)",
                f"stop it first: fuser -v {disk.path}/{last.name.decode()}",
            )
        )
