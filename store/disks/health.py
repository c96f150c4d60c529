"""Disk errors turned into states: who is passed over, and for how long, who has failed, and who is lost.

    suspected   a create, or a sync, has failed for another reason than space: it may be a hiccup. The disk's fill
                level keeps its say, but nothing is removed there, nor beyond its oldest segment
    failing     an attempt to make a segment has failed again, or not been answered for SUSPECT_S: no say
    lost        no segment of it can be read, at any look for LOST_AFTER_S: what lies there is absent

An attempt that succeeds, or that only lacks room, ends all of these.
"""

from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskFullError, DiskReadOnlyError

HOLD_BACK_FULL_S = 1.0
"""A disk without room is asked again soon: the broker may have deleted something."""
HOLD_BACK_READ_ONLY_S = 10.0
HOLD_BACK_FAILED_S = 30.0
"""ext4 that aborted its journal looks writable to statvfs, so only a new attempt tells."""
SUSPECT_S = 60.0
"""How long a disk that does not answer at all keeps its say after a failure."""
LOST_AFTER_S = 300.0
"""A path to a disk that is switched over, or a controller that restarts, is back by then."""


def record_error(disk: Disk, error: DiskError, now_s: float) -> None:
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
    if isinstance(error, DiskFullError):
        _trust(disk)
    elif disk.suspected_since_s is None:
        disk.suspected_since_s = now_s


def record_success(disk: Disk) -> None:
    disk.last_failure = None
    disk.retry_at_s = 0.0
    _trust(disk)


def record_attempt(disk: Disk, error: DiskError | None, now_s: float) -> None:
    """A segment could, or could not, be made by way of trial. It is still told what had failed, and a disk that was
    passed over stays so for its time."""
    if error is None or isinstance(error, DiskFullError):
        _trust(disk)
        return
    if disk.suspected_since_s is None:
        disk.suspected_since_s = now_s
    if disk.last_failure is None:
        disk.last_failure = error
    disk.is_failing = True


def resume_trouble(disk: Disk, *, is_failing: bool, is_read_only: bool, since_s: float, now_s: float) -> None:
    """What a former daemon has known of a disk: it is tried last, until an attempt succeeds."""
    disk.is_failing = is_failing
    disk.is_read_only = is_read_only
    disk.suspected_since_s = since_s
    disk.retry_at_s = now_s + HOLD_BACK_FAILED_S
    disk.last_failure = DiskFailedError(disk.path, "has failed before this daemon was started")


def record_silence(disk: Disk, now_s: float) -> None:
    """It has not answered to a look: that proves nothing at once, and never that it is lost."""
    disk.unreadable_since_s = None
    if disk.suspected_since_s is not None and now_s - disk.suspected_since_s >= SUSPECT_S:
        disk.is_failing = True


def record_look(disk: Disk, *, is_readable: bool, now_s: float) -> None:
    """Whether any of its segments could be read."""
    if is_readable:
        disk.unreadable_since_s = None
    elif disk.unreadable_since_s is None:
        disk.unreadable_since_s = now_s


def is_lost(disk: Disk, now_s: float) -> bool:
    return disk.unreadable_since_s is not None and now_s - disk.unreadable_since_s >= LOST_AFTER_S


def _trust(disk: Disk) -> None:
    disk.suspected_since_s = None
    disk.is_failing = False
    disk.unreadable_since_s = None


def is_held_back(disk: Disk, now_s: float) -> bool:
    return disk.state is DiskState.RW and now_s < disk.retry_at_s
