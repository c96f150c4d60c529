"""How one disk stands with new segments at one moment: what a decision about a segment rests on. Pure."""

from dataclasses import dataclass

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.eligibility import RefusalReason
from commitlogfs.store.files.usage import DiskUsage


@dataclass(frozen=True, slots=True)
class Standing:
    disk: str
    """Path of the disk."""
    reason: str
    """Why it gets no new segment, as in the status document ("above-force"); "" if it may get one."""
    used_percent: float | None
    """None while the disk does not answer."""
    threshold: int | None
    """Percent that the disk has to be below; None if its fill level is not the reason."""
    available_bytes: int | None
    detail: str = ""
    """Last error of the disk, or why it is cordoned."""


def standing_of(disk: Disk, usage: DiskUsage | None, refusal: RefusalReason | None) -> Standing:
    """The standing of a disk that is refused for this reason, or for none."""
    used = None if usage is None else round(usage.used_percent, 2)
    available = None if usage is None else usage.available_bytes
    reason = "" if refusal is None else refusal.name.lower().replace("_", "-")
    return Standing(disk.path, reason, used, _threshold(disk, usage, refusal), available, _detail(disk, refusal))


def _threshold(disk: Disk, usage: DiskUsage | None, refusal: RefusalReason | None) -> int | None:
    if usage is None:
        return None
    thresholds = disk.thresholds
    if refusal is RefusalReason.ABOVE_FORCE:  # once skipped, a disk has to be below `resume`
        return thresholds.force if usage.is_at_or_above(thresholds.force) else thresholds.resume
    if refusal is RefusalReason.NO_ROOM and usage.is_at_or_above(thresholds.full):
        return thresholds.full
    return None


def _detail(disk: Disk, refusal: RefusalReason | None) -> str:
    if refusal is RefusalReason.CORDONED:
        return disk.cordon.reason if disk.cordon is not None else disk.intended_state.value
    if refusal is RefusalReason.NOT_WRITABLE:
        return disk.intended_state.value
    if refusal in (RefusalReason.IN_BACKOFF, RefusalReason.UNKNOWN_USAGE):
        return disk.last_error
    return ""
