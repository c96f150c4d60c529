"""Which directories are disks of the pool, by the newest list of members that any of them records."""

import time
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from commitlogfs.store.disks.directories import DiskSpec, OpenDirectory, first_entry
from commitlogfs.store.disks.identity import DiskIdentity
from commitlogfs.store.disks.membership import DiskNumber, Member, Membership
from commitlogfs.store.errors import NoIdentityError
from commitlogfs.store.findings import Finding, FindingCode, Severity

_ABSENT = frozenset({FindingCode.DISK_MISSING, FindingCode.DISK_WITHOUT_IDENTITY})
"""Findings about a configured path at which no disk of a pool can be read."""


@dataclass(frozen=True, slots=True)
class FoundDisk:
    """A directory that is a disk of the pool, or that this start of a daemon makes one."""

    directory: OpenDirectory
    member: Member
    """Its entry in the newest list."""
    recorded: int | None
    """Generation of the list that the disk itself records; None if it has no identity yet."""


@dataclass(slots=True)
class Found:
    """Result of `find_members`."""

    pool_id: str
    segment_size: int
    membership: Membership
    """The newest list, with the disks that join."""
    disks: list[FoundDisk] = field(default_factory=list)
    """In order of their numbers."""
    findings: list[Finding] = field(default_factory=list)

    def report(self, code: FindingCode, severity: Severity, path: str, message: str, remedy: str) -> None:
        self.findings.append(Finding(code, severity, path, "", message, remedy))


def find_members(directories: list[OpenDirectory], *, all_opened: bool, is_mounted: bool) -> Found:
    """The disks of the pool to which most of the directories belong, and findings for all other directories.

    A directory that `disk add` has prepared joins: it gets the next number. A leaving disk is dropped if every
    configured directory is known, `all_opened`, and it is none of them. A disk that is offline is left out while
    the pool `is_mounted`, and taken back by a new mount. Changes nothing. Raises NoIdentityError, OSError.
    """
    identities = _identities_of_one_pool(directories)
    newest = max(identities, key=lambda identity: identity.membership.generation)
    found = Found(newest.pool_id, newest.segment_size, newest.membership)
    _compare_lists(found, directories)
    if not is_mounted:
        _take_back_offline(found)
    offline = {member.number for member in found.membership.offline()}
    seen: dict[str, OpenDirectory] = {}
    joining: list[tuple[OpenDirectory, str]] = []
    for directory in directories:
        disk_id = _claimed_id(found, directory)
        if disk_id is None:
            continue
        if disk_id in seen:
            _report_twin(found, directory, seen[disk_id])
            continue
        seen[disk_id] = directory
        member = found.membership.with_id(disk_id)
        if member is not None and member.number in offline:
            continue
        if member is not None:
            known = directory.identity
            found.disks.append(FoundDisk(directory, member, None if known is None else known.membership.generation))
        elif directory.joining is None:
            found.report(
                FindingCode.DISK_REMOVED,
                Severity.REFUSES,
                directory.spec.path,
                "is no member of the pool any longer: it was removed while it was away",
                "remove it from the configuration",
            )
        else:
            joining.append((directory, disk_id))
    for directory, disk_id in joining:
        _join(found, directory, disk_id)
    if all_opened and all(finding.code is not FindingCode.DISK_WITHOUT_IDENTITY for finding in found.findings):
        _drop_those_that_left(found)
    found.disks.sort(key=lambda disk: disk.member.number)
    return found


def _take_back_offline(found: Found) -> None:
    offline = {member.number for member in found.membership.offline()}
    if offline:
        found.membership = found.membership.taken_back(offline)


def _drop_those_that_left(found: Found) -> None:
    """Leaving members, which are empty, that the configuration does not name any more."""
    present = {disk.member.number for disk in found.disks}
    for member in found.membership.members:
        if member.leaves and member.number not in present:
            found.membership = found.membership.without(member.number)
            found.report(
                FindingCode.DISK_LEFT,
                Severity.NOTE,
                member.path,
                f"disk {member.number} has left the pool",
                "nothing to do: the daemon that starts next completes it",
            )


def missing_members(
    found: Found, present: Set[DiskNumber], specs: tuple[DiskSpec, ...], findings: list[Finding]
) -> tuple[list[str], list[Finding]]:
    """Paths of the members that are not `present`, and a finding for each one about whose path `findings` do not
    report yet. A disk that is offline may be unmounted, which is no finding."""
    offline = {member.path: member for member in found.membership.offline()}
    findings[:] = [one for one in findings if one.code not in _ABSENT or one.disk not in offline]
    configured = {spec.path for spec in specs}
    absent = _absent_paths(found, present, findings)
    missing = [member for member in found.membership.members if member.number not in present]
    more = []
    for member in missing:
        if member.path in offline:
            more.append(_offline_finding(member))
        elif member.path not in absent:
            more.append(_missing_finding(member, is_configured=bool(absent) or member.path in configured))
    return [member.path for member in missing], more


def _absent_paths(found: Found, present: Set[DiskNumber], findings: list[Finding]) -> set[str]:
    """Paths of members about which `findings` report that no disk can be read there."""
    unreadable = {disk.member.number for disk in found.disks} - present
    absent = {finding.disk for finding in findings if finding.code in _ABSENT}
    return absent | {member.path for member in found.membership.members if member.number in unreadable}


def _missing_finding(member: Member, *, is_configured: bool) -> Finding:
    if is_configured:
        code, reason = FindingCode.DISK_MISSING, "is missing (this was its last path)"
    else:
        code, reason = FindingCode.DISK_NOT_CONFIGURED, "is not in the configuration (this was its last path)"
    return Finding(
        code,
        Severity.REFUSES,
        member.path,
        "",
        f"disk {member.number} of the pool {reason}",
        "mount it and name it in the configuration",
    )


def _offline_finding(member: Member) -> Finding:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(member.offline_since_s))
    return Finding(
        FindingCode.DISK_OFFLINE,
        Severity.WARNING,
        member.path,
        "",
        f"disk {member.number} is offline since {since}: its segments are not served",
        f"`commitlogfs disk online {member.number}` takes it back when it is mounted there",
    )


def _identities_of_one_pool(directories: list[OpenDirectory]) -> list[DiskIdentity]:
    """Identities of the pool to which most directories belong. Those of directories that are about to join do not
    count: they are records of an attempt that was not completed. Raises NoIdentityError."""
    all_known = [d.identity for d in directories if d.identity is not None]
    counting = [d.identity for d in directories if d.identity is not None and d.joining is None] or all_known
    if not counting:
        paths = ", ".join(directory.spec.path for directory in directories)
        raise NoIdentityError(
            f"{paths}: no disk carries a commitlogfs identity; mount the disks, "
            "or make a pool: `commitlogfs init` for a new one, `commitlogfs adopt` for an existing commitlog"
        )
    pool_id = Counter(identity.pool_id for identity in counting).most_common(1)[0][0]
    return [identity for identity in counting if identity.pool_id == pool_id]


def _compare_lists(found: Found, directories: list[OpenDirectory]) -> None:
    """One generation has one list, unless disks that were never connected at once have each been changed."""
    for directory in directories:
        known = directory.identity
        if known is None or known.pool_id != found.pool_id or directory.joining is not None:
            continue
        if not found.membership.may_follow(known.membership):
            found.report(
                FindingCode.MEMBERS_DIFFER,
                Severity.REFUSES_ALWAYS,
                directory.spec.path,
                f"records other members than another disk{_describe_returned(found.membership, known.membership)}: "
                "the two were changed while each was away from the other",
                "find out with which disks the broker ran last, and remove the others from the configuration "
                "(docs/runbooks/disk-back.md)",
            )


def _describe_returned(newest: Membership, earlier: Membership) -> str:
    """Members that had left the pool by an earlier list, and are in the newest one; empty if there are none."""
    returned = newest.returned_since(earlier) if newest.generation > earlier.generation else ()
    left = ", ".join(f"disk {member.number} ({member.path})" for member in returned)
    return f" ({left}: no longer a member here, but there)" if left else ""


def _claimed_id(found: Found, directory: OpenDirectory) -> str | None:
    """Id of the disk of this pool that the directory is, or is to become; None, with a finding, if it is none."""
    known, joining = directory.identity, directory.joining
    if joining is not None and joining.pool_id == found.pool_id:
        return joining.disk_id
    if known is None:
        found.report(
            FindingCode.DISK_WITHOUT_IDENTITY,
            Severity.REFUSES,
            directory.spec.path,
            "carries no identity (most likely the bare directory of a disk that is not mounted)",
            "mount the disk there; `commitlogfs disk add` adds a new disk to a pool",
        )
        return None
    if known.pool_id != found.pool_id:
        found.report(
            FindingCode.DISK_OF_ANOTHER_POOL,
            Severity.REFUSES_ALWAYS,
            directory.spec.path,
            f"belongs to pool {known.pool_id}, the others to {found.pool_id}",
            "correct the path, or mount the right disk there",
        )
        return None
    return known.disk_id


def _report_twin(found: Found, directory: OpenDirectory, twin: OpenDirectory) -> None:
    if (twin.device, twin.ino) == (directory.device, directory.ino):
        return  # compare_directories reports it
    found.report(
        FindingCode.DISK_TWICE,
        Severity.REFUSES_ALWAYS,
        directory.spec.path,
        f"carries the same identity as {twin.spec.path} (a copy or a clone)",
        "unmount the copy, or correct the path",
    )


def _join(found: Found, directory: OpenDirectory, disk_id: str) -> None:
    path = directory.spec.path
    entry = first_entry(directory.dirfd)
    if entry is not None:
        found.report(
            FindingCode.DISK_NOT_EMPTY,
            Severity.REFUSES,
            path,
            f"was to be added to the pool, but is not empty (it holds {entry!r})",
            "move that away, or remove the disk from the configuration",
        )
        return
    found.membership = found.membership.joined_by(disk_id, path)
    found.disks.append(FoundDisk(directory, found.membership.members[-1], None))
    found.report(
        FindingCode.DISK_JOINS,
        Severity.NOTE,
        path,
        f"becomes disk {found.membership.last_number} of the pool",
        "nothing to do: the daemon that starts next completes it",
    )
