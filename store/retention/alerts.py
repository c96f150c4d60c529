"""What an operator has to be told, because deleting does not cure it. Pure."""

from dataclasses import dataclass
from enum import Enum

from commitlogfs.store.disk import DiskState
from commitlogfs.store.retention.facts import Snapshot


class AlertCode(Enum):
    FOREIGN_DATA = "foreign-data"
    """A disk is above `force`, and would be without our segments, too."""
    ALL_FULL = "all-full"
    NO_WRITABLE_DISK = "no-writable-disk"
    DISK_FAILED = "disk-failed"
    """It has no say until a segment can be made there again."""
    HELD_OPEN = "held-open"
    """Removed segments keep a disk at `full`, because somebody has them open."""
    IN_VAIN = "in-vain"
    """There is pressure, but nothing may go, or it would not help, or has not helped."""
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
    """Whether every writable disk says itself that it is at `full`; False if there is none."""
    measured = [(disk.measured, disk.thresholds.full) for disk in snapshot.writable()]
    return bool(measured) and all(usage is not None and usage.is_at_or_above(full) for usage, full in measured)


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
        if disk.state is DiskState.FAILED:
            text = "new segments fail there, and it is tried again now and then: see its last error, repair it"
            alerts.append(Alert(AlertCode.DISK_FAILED, disk.path, text))
    for disk in writable:
        assert disk.measured is not None  # noqa: S101 - narrowing: writable disks answer
        if disk.is_barren:
            text = (
                "the latest segments removed there gave no space back, so no more go for its sake: somebody has "
                "them open on the disk itself (`lsof +L1`), or keeps copies that share their blocks: end that"
            )
            alerts.append(Alert(AlertCode.IN_VAIN, disk.path, text))
        elif disk.number in incurable:
            text = f"{disk.measured.used_percent:.1f} % used, mostly not by segments: free space there"
            alerts.append(Alert(AlertCode.FOREIGN_DATA, disk.path, text))
        if disk.pending_bytes and disk.measured.is_at_or_above(disk.thresholds.full):
            text = f"removed segments of {disk.pending_bytes:,} bytes are still open: end whoever holds them"
            alerts.append(Alert(AlertCode.HELD_OPEN, disk.path, text))
    if all_full(snapshot):
        alerts.append(Alert(AlertCode.ALL_FULL, "", "every disk is full: new segments are refused"))
    return alerts
