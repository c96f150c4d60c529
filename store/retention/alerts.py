"""What an operator has to be told, because deleting does not cure it. Pure."""

from dataclasses import dataclass
from enum import Enum

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.retention.facts import DiskFacts, Snapshot
from commitlogfs.store.retention.plan import obstacle
from commitlogfs.store.segment import BaseOffset, format_segment_name


class AlertCode(Enum):
    FOREIGN_DATA = "foreign-data"
    """A disk is above `force`, and would be without our segments, too."""
    ALL_FULL = "all-full"
    NO_WRITABLE_DISK = "no-writable-disk"
    DISK_FAILED = "disk-failed"
    """It has no say until a segment can be made there again; or its segments are given up."""
    HELD_OPEN = "held-open"
    """Removed segments keep a disk at `full`, because somebody has them open."""
    NOT_RECLAIMING = "not-reclaiming"
    """There is pressure, but nothing may go, or it would not help, or has not helped."""
    STUCK = "stuck"
    """The oldest segment cannot be removed, and so none can."""
    CLOCK_JUMPED = "clock-jumped"
    AGE_UNKNOWN = "age-unknown"


@dataclass(frozen=True, slots=True)
class Alert:
    code: AlertCode
    disk: str
    """Its path; "" where all are meant."""
    text: str
    """What is the matter and what to do, in one line."""


def all_full(snapshot: Snapshot) -> bool:
    """Whether every writable disk says itself that it is at `full`, or has only `min_free` left; False if there is
    none."""
    writable = snapshot.writable()
    return bool(writable) and all(_is_full(disk, snapshot.log.segment_size) for disk in writable)


def _is_full(disk: DiskFacts, segment_size: int) -> bool:
    """By itself, whatever is on its way to being free."""
    if disk.measured is None:
        return False
    thresholds, left = disk.thresholds, disk.measured.available_bytes - segment_size
    return disk.measured.is_at_or_above(thresholds.full) or (
        thresholds.min_free_bytes > 0 and left < thresholds.min_free_bytes
    )


def stuck_alerts(snapshot: Snapshot) -> list[Alert]:
    """What lies in the way of every removal: what has been tried in vain, else what need not be tried."""
    paths = {disk.number: disk.path for disk in snapshot.disks}
    if snapshot.refused is not None:
        refused = snapshot.refused
        return [_stuck(refused.base_offset, paths.get(refused.disk, ""), refused.why)]
    found = obstacle(snapshot)
    return [] if found is None else [_stuck(found[0].base_offset, found[1].path, _why_closed(found[1]))]


def _stuck(base_offset: int, path: str, why: str) -> Alert:
    name = format_segment_name(BaseOffset(base_offset)).decode()
    text = f"segment {name} cannot be removed ({why}), and no later one goes before it: repair or replace that disk"
    return Alert(AlertCode.STUCK, path, text)


def _why_closed(disk: DiskFacts) -> str:
    if disk.measured is None:
        return "its disk does not answer"
    if disk.state is DiskState.RO:
        return "EROFS: its filesystem is read-only"
    return "its disk fails: see its last error"


def disk_alerts(snapshot: Snapshot, incurable: frozenset[int]) -> list[Alert]:
    """About the disks. `incurable`: numbers of those at or above `force` that removing cannot help."""
    alerts = []
    writable = snapshot.writable()
    if not writable:
        alerts.append(
            Alert(
                AlertCode.NO_WRITABLE_DISK, "", "no disk takes segments: see the state of each, add or repair one"
            )
        )
    for disk in snapshot.disks:
        if disk.is_lost:
            text = (
                "none of its segments can be read: they count as absent, and later ones go without them: repair it"
            )
            alerts.append(Alert(AlertCode.DISK_FAILED, disk.path, text))
        elif disk.state is DiskState.FAILED:
            text = "new segments fail there, and it is tried again now and then: see its last error, repair it"
            alerts.append(Alert(AlertCode.DISK_FAILED, disk.path, text))
    for disk in writable:
        assert disk.measured is not None
        if disk.reclaims_nothing:
            text = (
                "the latest segments removed there gave no space back, so no more go for its sake: somebody has "
                "them open on the disk itself (`lsof +L1`), or keeps copies that share their blocks: end that"
            )
            alerts.append(Alert(AlertCode.NOT_RECLAIMING, disk.path, text))
        elif disk.number in incurable:
            text = f"{disk.measured.used_percent:.1f} % used, mostly not by segments: free space there"
            alerts.append(Alert(AlertCode.FOREIGN_DATA, disk.path, text))
        if disk.pending_bytes and _is_full(disk, snapshot.log.segment_size):
            text = f"removed segments of {disk.pending_bytes:,} bytes are still open: end whoever holds them"
            alerts.append(Alert(AlertCode.HELD_OPEN, disk.path, text))
    if all_full(snapshot):
        alerts.append(Alert(AlertCode.ALL_FULL, "", "every disk is full: new segments are refused"))
    return alerts
