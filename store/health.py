"""Disk errors turned into states: who is passed over, and for how long."""

from commitlogfs.store.disk import Disk, DiskState
from commitlogfs.store.errors import DiskError, DiskFullError, DiskReadOnlyError

HOLD_BACK_FULL_S = 1.0
"""A disk without room is asked again soon: the broker may have deleted something."""
HOLD_BACK_READ_ONLY_S = 10.0
HOLD_BACK_FAILED_S = 30.0
"""ext4 that aborted its journal looks writable to statvfs, so only a new attempt tells."""


def note_error(disk: Disk, error: DiskError, now_s: float) -> None:
    """Remember a failed create: the disk is passed over until `retry_at_s` (monotonic seconds)."""
    match error:
        case DiskFullError():
            hold_back_s = HOLD_BACK_FULL_S
        case DiskReadOnlyError():
            hold_back_s = HOLD_BACK_READ_ONLY_S
        case _:
            hold_back_s = HOLD_BACK_FAILED_S
    disk.last_failure = error
    disk.retry_at_s = now_s + hold_back_s


def note_success(disk: Disk) -> None:
    disk.last_failure = None
    disk.retry_at_s = 0.0


def is_held_back(disk: Disk, now_s: float) -> bool:
    return disk.state is DiskState.RW and now_s < disk.retry_at_s
