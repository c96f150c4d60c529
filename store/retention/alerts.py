"""Alerts: conditions that deleting does not cure and an operator has to know. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlogfs.store.disks.capacity import compare_size, segments_fitting
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.lost_writes import LostWrite
from commitlogfs.store.retention.facts import DiskFacts, Snapshot
from commitlogfs.store.retention.plan import obstacle
from commitlogfs.store.segment import BaseOffset, format_segment_name

_LOSSES_SHOWN: Final = 3


class AlertCode(Enum):
    FOREIGN_DATA = "foreign-data"
    """A disk is above `force`, and would also be without our segments."""
    DISK_TOO_SMALL = "disk-too-small"
    """Not even an empty disk would have room for a segment."""
    ALL_FULL = "all-full"
    NO_WRITABLE_DISK = "no-writable-disk"
    DISK_FAILED = "disk-failed"
    """No segment can be made on a disk, so its fill level does not count; or its segments count as absent."""
    WRITEBACK_LOST = "writeback-lost"
    """A disk lacks what was written to a segment, although reads show it."""
    DISK_UNREADABLE = "disk-unreadable"
    DISK_UNRESPONSIVE = "disk-unresponsive"
    DISK_VANISHED = "disk-vanished"
    """The path of a disk does not lead to it any more."""
    DISK_SLOW = "disk-slow"
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
        alerts += _trouble_alerts(disk)
    for disk in writable:
        assert disk.measured is not None
        alerts += _size_alerts(disk, snapshot.log.segment_size)
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


def _size_alerts(disk: DiskFacts, segment_size: int) -> list[Alert]:
    if disk.measured is None or segments_fitting(disk.measured, disk.thresholds, segment_size):
        return []
    (finding,) = compare_size(disk.path, disk.measured, disk.thresholds, segment_size)
    return [Alert(AlertCode.DISK_TOO_SMALL, disk.path, f"{finding.message}; {finding.remedy}")]


def _trouble_alerts(disk: DiskFacts) -> list[Alert]:
    """Alerts of a disk that is away or does not work."""
    alerts = []
    if disk.is_vanished:
        text = (
            "its path does not lead to it any more, as after `umount -l`: other disks take the new segments; "
            "mount it there again"
        )
        alerts.append(Alert(AlertCode.DISK_VANISHED, disk.path, text))
    alerts += _worst_trouble(disk)
    if disk.lost_writes:
        alerts.append(Alert(AlertCode.WRITEBACK_LOST, disk.path, _describe_lost(disk.lost_writes)))
    return alerts


def _worst_trouble(disk: DiskFacts) -> list[Alert]:
    """The alert for the worst trouble of a disk with its reads, writes and answers."""
    if disk.is_lost:
        text = "none of its segments can be read: they count as absent, and later ones may be removed; repair it"
        return [Alert(AlertCode.DISK_FAILED, disk.path, text)]
    if disk.is_unresponsive:
        text = (
            "a check of it has no answer, and its device ends no requests: other disks take the new segments "
            "until it answers; see `dmesg`, and detach it if it does not recover"
        )
        return [Alert(AlertCode.DISK_UNRESPONSIVE, disk.path, text)]
    if disk.state is DiskState.UNREADABLE:
        text = (
            "checks can read none of its segments: other disks take the new segments until they can; "
            "see `dmesg`, and save what can be read (`disk drain --failing`)"
        )
        return [Alert(AlertCode.DISK_UNREADABLE, disk.path, text)]
    if disk.is_slow and disk.takes_segments:
        text = (
            "its device needs much longer for an operation than its peers: other disks take the new segments "
            "until a probe finds it well; see `dmesg` and `smartctl`, and replace it if it stays slow"
        )
        return [Alert(AlertCode.DISK_SLOW, disk.path, text)]
    if disk.state is DiskState.FAILED:
        text = "segments cannot be made there; see its last error, and repair the disk"
        return [Alert(AlertCode.DISK_FAILED, disk.path, text)]
    return []


def _describe_lost(losses: Sequence[LostWrite]) -> str:
    where = "; ".join(_where(lost) for lost in losses[:_LOSSES_SHOWN])
    more = f" and {len(losses) - _LOSSES_SHOWN:,} other segments" if len(losses) > _LOSSES_SHOWN else ""
    return (
        f"the disk lacks what was written to segment {where}{more}: reads show it only as long as it is in memory; "
        "copy it from the mount; replace the disk, or, if it is well, use `disk uncordon` and `scrub clear`"
    )


def _where(lost: LostWrite) -> str:
    name = format_segment_name(lost.base_offset).decode()
    if not lost.ranges:
        return f"{name} (the disk cannot be asked where)"
    begin, end = lost.ranges[0]
    size = sum(stop - start for start, stop in lost.ranges)
    first = f"log offset {lost.base_offset + begin:,} to {lost.base_offset + end:,}"
    more = f", and in {len(lost.ranges) - 1:,} more ranges" if len(lost.ranges) > 1 else ""
    return f"{name} ({size:,} bytes: {first}{more})"
