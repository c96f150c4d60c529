"""The start-up check without mounting. Changes nothing."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.errors import PoolError
from commitlogfs.store.files.locks import lock_holder
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.moves.unreadable import UnreadableRanges
from commitlogfs.store.pool.open import OnMissing, Pool, find_retired, open_pool
from commitlogfs.store.pool.other_files import is_set_aside
from commitlogfs.store.scrub.finding import damage_finding, unread_finding
from commitlogfs.store.scrub.recorded import find_recorded
from commitlogfs.store.segment import BaseOffset, format_segment_name


@dataclass(frozen=True, slots=True)
class DiskInspection:
    number: int
    disk_id: str
    path: str
    filesystem: str
    state: str
    segments: int
    last_error: str = ""
    """The disk's last error, as the running daemon reports it."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Result of the check. `daemon` is the pid of the process that serves the pool."""

    pool_id: str
    segment_size: int
    daemon: int | None
    segments: int
    first_offset: int | None
    last_offset: int | None
    disks: tuple[DiskInspection, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]
    on_missing: OnMissing
    alerts: tuple[dict[str, Any], ...] = ()
    """Alerts of the running daemon: `code`, `disk`, `text`, as in the status document."""

    @property
    def mountable(self) -> bool:
        """False if a mount would be refused."""
        return self.worst < self.on_missing.limit

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    @property
    def is_in_trouble(self) -> bool:
        """Whether the running daemon reports trouble, which the directories themselves do not show."""
        failed = {DiskState.FAILED, DiskState.OFFLINE, DiskState.UNREADABLE, DiskState.UNRESPONSIVE}
        bad = {state.value for state in (*failed, DiskState.VANISHED)}
        return bool(self.alerts) or any(disk.state in bad or disk.last_error for disk in self.disks)


_RANGES_SHOWN: Final = 5


def inspect_pool(
    specs: tuple[DiskSpec, ...],
    segment_size: int | None,
    on_missing: OnMissing,
    name: str,
    *,
    is_thorough: bool = False,
) -> Inspection:
    """Check a pool; if thorough, also for what is worth a finding, but does not concern a mount. Raises
    RefusedError if it cannot even be scanned."""
    daemon = next((pid for spec in specs if (pid := lock_holder(spec.path)) is not None), None)
    with _opened(specs, segment_size, name, alone=daemon is None) as pool:
        if daemon is not None and any(finding.severity >= Severity.WARNING for finding in pool.findings):
            # The daemon makes and removes segments during the scan, so only findings of two scans count.
            with _opened(specs, segment_size, name, alone=False) as again:
                pool.findings[:] = [finding for finding in pool.findings if finding in again.findings]
        if is_thorough:
            pool.findings.extend(_damage_findings(pool))
            pool.findings.extend(_set_aside_findings(pool))
        return _describe(pool, daemon, on_missing)


def _damage_findings(pool: Pool) -> Iterator[Finding]:
    """Segments with a verdict, and those that were moved away from a failing disk and lack what could not be read
    there."""
    for disk in pool.disks:
        segments = {segment.name: segment for segment in pool.inventory.catalog.on_disk(disk.number)}
        found, unread = find_recorded(disk.dirfd, segments)
        for one in found:
            base = segments[one.name].base_offset
            if one.verdict is not None:
                yield damage_finding(disk.path, base, one.verdict)
            if one.unreadable.ranges:
                yield _unreadable_finding(disk.path, base, one.unreadable)
        if unread:
            yield unread_finding(disk.path, unread[0], len(unread))


def _unreadable_finding(disk: str, base: BaseOffset, unreadable: UnreadableRanges) -> Finding:
    ranges = [f"{base + begin} to {base + end}" for begin, end in unreadable.ranges]
    shown = ", ".join(ranges[:_RANGES_SHOWN])
    more = f" and {len(ranges) - _RANGES_SHOWN} more ranges" if len(ranges) > _RANGES_SHOWN else ""
    return Finding(
        FindingCode.UNREADABLE_RANGE,
        Severity.WARNING,
        disk,
        format_segment_name(base).decode(),
        f"log offsets {shown}{more} could not be read on its former disk, and are zeros",
        "consumers skip the messages there; a slave or a backup may have them",
    )


def _set_aside_findings(pool: Pool) -> Iterator[Finding]:
    """Damaged files of repaired segments."""
    for file in sorted(filter(is_set_aside, find_retired(pool)), key=lambda file: file.base_offset):
        yield Finding(
            FindingCode.SET_ASIDE,
            Severity.NOTE,
            pool.disk_of(file).path,
            file.path.decode(),
            "damaged file of a segment that was repaired",
            "`commitlogfs scrub clear` removes it while the pool is mounted; delete it before a native broker of "
            "RocketMQ 4.9 uses the disks",
        )


def with_status(inspection: Inspection, document: dict[str, Any]) -> Inspection:
    """The inspection with disk states, alerts and the findings about the broker from the daemon's status document.
    That of another pool is ignored."""
    if document["pool"] != inspection.pool_id:
        return inspection
    known = {disk["id"]: disk for disk in document["disks"]}
    disks = tuple(
        replace(disk, state=known[disk.disk_id]["state"], last_error=known[disk.disk_id]["last_error"])
        if disk.disk_id in known
        else disk
        for disk in inspection.disks
    )
    about_broker = tuple(
        Finding(FindingCode.BROKER_SIZE_DIFFERS, Severity.WARNING, "", "", found["message"], found["remedy"])
        for found in document["findings"]
        if found["code"] == FindingCode.BROKER_SIZE_DIFFERS.value
    )
    alerts = tuple(document["retention"]["alerts"])
    return replace(inspection, disks=disks, alerts=alerts, findings=(*inspection.findings, *about_broker))


def with_use_elsewhere(inspection: Inspection, mountpoint: str) -> Inspection:
    """The inspection with a finding if the daemon that holds the disks does not serve `mountpoint`."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is not None and mountinfo.is_commitlogfs(entry):
        return inspection
    finding = Finding(
        FindingCode.POOL_IN_USE,
        Severity.REFUSES_ALWAYS,
        "",
        "",
        f"daemon {inspection.daemon} serves this pool, but not at {mountpoint}",
        "`commitlogfs status` lists the mounts; unmount the other one first",
    )
    return replace(inspection, findings=(finding, *inspection.findings))


def with_dead_mount(inspection: Inspection, mountpoint: str) -> Inspection:
    """The inspection of a pool with a dead mount at `mountpoint`, through which the kernel keeps segments open."""
    dead = Finding(
        FindingCode.SEGMENT_IN_USE,
        Severity.WARNING,
        "",
        "",
        f"{mountpoint}: the mount is dead, and its segments are open through it",
        "`commitlogfs mount` replaces it, or names the processes that use it: stop these first",
    )
    others = tuple(finding for finding in inspection.findings if finding.code is not FindingCode.SEGMENT_IN_USE)
    if len(others) == len(inspection.findings):
        return inspection
    return replace(inspection, findings=(dead, *others))


@contextlib.contextmanager
def _opened(specs: tuple[DiskSpec, ...], segment_size: int | None, name: str, *, alone: bool) -> Iterator[Pool]:
    try:
        pool = open_pool(
            specs,
            segment_size,
            lock=False,
            check_in_use=alone,
            is_mounted=not alone,
            opened=frozenset() if alone else None,
        )
    except PoolError as error:
        lines = str(error).splitlines()
        reasons = lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
        raise RefusedError(f"{name}: the pool cannot be checked: {reasons}") from error
    try:
        yield pool
    finally:
        pool.close()


def _describe(pool: Pool, daemon: int | None, on_missing: OnMissing) -> Inspection:
    catalog = pool.inventory.catalog
    counts = dict.fromkeys((disk.number for disk in pool.disks), 0)
    for segment in catalog:
        counts[segment.disk] += 1
    return Inspection(
        pool_id=pool.pool_id,
        segment_size=pool.segment_size,
        daemon=daemon,
        segments=len(catalog),
        first_offset=None if catalog.first is None else catalog.first.base_offset,
        last_offset=None if catalog.last is None else catalog.last.base_offset,
        disks=tuple(
            DiskInspection(
                disk.number, disk.disk_id, disk.path, disk.filesystem.name, disk.state.value, counts[disk.number]
            )
            for disk in pool.disks
        ),
        missing=tuple(pool.missing),
        findings=tuple(pool.findings),
        on_missing=on_missing,
    )
