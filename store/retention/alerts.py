"""Alerts: conditions that deleting does not cure and an operator has to know. Pure."""

from dataclasses import dataclass
from enum import Enum

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.retention.facts import DiskFacts, Snapshot
from commitlogfs.store.retention.plan import obstacle
from commitlogfs.store.segment import BaseOffset, format_segment_name


class AlertCode(Enum):
    FOREIGN_DATA = "foreign-data"
    """A disk is above `force`, and would also be without our segments."""
    ALL_FULL = "all-full"
    NO_WRITABLE_DISK = "no-writable-disk"
    DISK_FAILED = "disk-failed"
    """No segment can be made on a disk, so its fill level does not count; or its segments count as absent."""
    HELD_OPEN = "held-open"
    """Removed segments keep a disk at `full`, because processes have them open."""
    NOT_RECLAIMING = "not-reclaiming"
    """Removals have freed no space, or what may be removed would not relieve the pressure."""
    STUCK = "stuck"
    """The oldest segment cannot be removed, so no segment can."""
    CLOCK_JUMPED = "clock-jumped"
    AGE_UNKNOWN = "age-unknown"


@dataclass(frozen=True, slots=True)
class Alert:
    code: AlertCode
    disk: str
    """Path of the disk; "" if the alert concerns all of them."""
    text: str
    """The fact and what to do, in one line."""


def all_full(snapshot: Snapshot) -> bool:
    """Whether every writable disk, as measured, is at `full` or down to `min_free`; False if no disk is
    writable."""
    writable = snapshot.writable()
    return bool(writable) and all(_is_full(disk, snapshot.log.segment_size) for disk in writable)


def _is_full(disk: DiskFacts, segment_size: int) -> bool:
    """Whether the disk as measured is full: removed segments that are still open count as used."""
    if disk.measured is None:
        return False
    thresholds, left = disk.thresholds, disk.measured.available_bytes - segment_size
    return disk.measured.is_at_or_above(thresholds.full) or (
        thresholds.min_free_bytes > 0 and left < thresholds.min_free_bytes
    )


def stuck_alerts(snapshot: Snapshot) -> list[Alert]:
    """The alert for what prevents every removal: a failed removal, else a disk where removals would fail."""
    paths = {disk.number: disk.path for disk in snapshot.disks}
    if snapshot.refused is not None:
        refused = snapshot.refused
        return [_stuck(refused.base_offset, paths.get(refused.disk, ""), refused.why)]
    found = obstacle(snapshot)
    return [] if found is None else [_stuck(found[0].base_offset, found[1].path, _why_closed(found[1]))]


def _stuck(base_offset: int, path: str, why: str) -> Alert:
    name = format_segment_name(BaseOffset(base_offset)).decode()
    text = f"segment {name} cannot be removed ({why}), so no later one is; clear `chattr +i`, or repair its disk"
    return Alert(AlertCode.STUCK, path, text)


def _why_closed(disk: DiskFacts) -> str:
    if disk.measured is None:
        return "its disk does not answer"
    if disk.state is DiskState.RO:
        return "EROFS: its filesystem is read-only"
    return "its disk fails: see the disk's last error"


def disk_alerts(snapshot: Snapshot, incurable: frozenset[int]) -> list[Alert]:
    """Alerts of the disks. `incurable` are the disks at or above `force` that removing segments cannot relieve."""
    alerts = []
    writable = snapshot.writable()
    if not writable:
        alerts.append(
            Alert(
                AlertCode.NO_WRITABLE_DISK, "", "no disk takes segments; see their states, and repair or add a disk"
            )
        )
    for disk in snapshot.disks:
        if disk.is_lost:
            text = (
                "none of its segments can be read: they count as absent, and later ones may be removed; repair it"
            )
            alerts.append(Alert(AlertCode.DISK_FAILED, disk.path, text))
        elif disk.state is DiskState.FAILED:
            text = "segments cannot be made there; see its last error, and repair the disk"
            alerts.append(Alert(AlertCode.DISK_FAILED, disk.path, text))
    for disk in writable:
        assert disk.measured is not None
        if disk.reclaims_nothing:
            text = (
                "the latest removals there freed no space, so no more segments are removed for this disk; "
                "end processes that have them open (`lsof +L1`), or remove copies that share their blocks"
            )
            alerts.append(Alert(AlertCode.NOT_RECLAIMING, disk.path, text))
        elif disk.number in incurable:
            text = f"{disk.measured.used_percent:.1f} % used, mostly not by segments; free space there"
            alerts.append(Alert(AlertCode.FOREIGN_DATA, disk.path, text))
        if disk.pending_bytes and _is_full(disk, snapshot.log.segment_size):
            text = (
                f"removed segments of {disk.pending_bytes:,} bytes are still open; "
                "end the processes that have them open, or restart the broker"
            )
            alerts.append(Alert(AlertCode.HELD_OPEN, disk.path, text))
    if all_full(snapshot):
        alerts.append(Alert(AlertCode.ALL_FULL, "", "every disk is full, so new segments are refused; free space"))
    return alerts
