"""States of a disk in trouble, from its errors.

    in backoff    a create has failed: the disk is tried last for some seconds
    suspected     a create, a sync or a check has failed for another reason than space; the fault may pass. The
                  disk's fill level still counts, but no segment is removed from it, nor any after its oldest
    unresponsive  a check has no answer: the disk is suspected, and tried last until it answers
    failing       an attempt to make a segment has failed again, or had no answer for `suspect_s`. The fill level
                  does not count
    lost          no probe could read a segment of it for `lost_after_s`. Its segments count as absent
    unreadable    checks can read none of its segments. It is tried last, and its fill level does not count;
                  segments are removed from it as from any disk, as long as that works
    slow          its device needs much longer for an operation than its peers. It is tried after all disks that
                  are well; nothing else changes

A create or a probe that succeeds, or that fails only for lack of space, ends suspected, failing and lost. A
successful create also ends the backoff, the answer to a check ends unresponsive and what began with it, and only
checks that can read again end unreadable. Only a probe ends slow. The times are in HealthTiming.
"""

from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskFullError, DiskReadOnlyError
from commitlogfs.store.slowness.policy import Comparison, Slowness
from commitlogfs.store.timing import HealthTiming


def record_error(disk: Disk, error: DiskError, now_s: float, timing: HealthTiming) -> None:
    """Record a failed create or sync: the disk is in backoff until `retry_at_s` (monotonic seconds)."""
    match error:
        case DiskFullError():
            backoff_s = timing.full_s
        case DiskReadOnlyError():
            backoff_s = timing.read_only_s
        case _:
            backoff_s = timing.failed_s
    disk.last_failure = error
    disk.retry_at_s = now_s + backoff_s
    if isinstance(error, DiskFullError):
        _end_suspicion(disk)
    elif disk.suspected_since_s is None:
        disk.suspected_since_s = now_s


def record_success(disk: Disk) -> None:
    """Record a successful create, which ends all trouble."""
    disk.last_failure = None
    disk.retry_at_s = 0.0
    disk.is_unresponsive = False
    _end_suspicion(disk)


def record_attempt(disk: Disk, error: DiskError | None, now_s: float) -> None:
    """Record the result of a probe that tried to make a segment; `error` is None if it could.

    `last_failure` and the backoff stay, so that the status still shows what had failed.
    """
    if error is None or isinstance(error, DiskFullError):
        _end_suspicion(disk)
        return
    if disk.suspected_since_s is None:
        disk.suspected_since_s = now_s
    if disk.last_failure is None:
        disk.last_failure = error
    disk.is_failing = True


def restore_trouble(
    disk: Disk,
    *,
    is_failing: bool,
    is_read_only: bool,
    is_unresponsive: bool,
    since_s: float,
    now_s: float,
    timing: HealthTiming,
) -> None:
    """Restore the trouble that a former daemon had recorded. The disk is in backoff."""
    disk.is_failing = is_failing
    disk.is_unresponsive = is_unresponsive
    disk.is_read_only = is_read_only
    disk.suspected_since_s = since_s
    disk.retry_at_s = now_s + timing.failed_s
    disk.last_failure = DiskFailedError(disk.path, "it failed before this daemon was started")


def record_no_answer(disk: Disk, now_s: float, timing: HealthTiming) -> None:
    """Record a probe without an answer. That confirms a suspicion only after `suspect_s`, and never a loss."""
    disk.unreadable_since_s = None
    if disk.suspected_since_s is not None and now_s - disk.suspected_since_s >= timing.suspect_s:
        disk.is_failing = True


def record_silence(disk: Disk, since_s: float, now_s: float, timing: HealthTiming) -> None:
    """Record a check that has no answer since `since_s`, and is proven to hang. Repeat it as long as that lasts."""
    disk.is_unresponsive = True
    disk.last_failure = DiskFailedError(disk.path, f"it has not answered for {now_s - since_s:.0f} s")
    if disk.suspected_since_s is None:
        disk.suspected_since_s = since_s
    record_no_answer(disk, now_s, timing)


def record_answer(disk: Disk) -> None:
    """Record the answer to a check of a disk that was unresponsive."""
    record_success(disk)


def record_unreadable(disk: Disk, reason: str) -> None:
    """Record why checks can read no segment of a disk, or with "" that they can again."""
    disk.unreadable_reason = reason


def record_slow(disk: Disk, comparison: Comparison, now_s: float, probe_after_s: float) -> None:
    """Record that the device of a disk is slow, or was still slow in a probe. The next probe is due after
    `probe_after_s`."""
    since_s = disk.slowness.since_s if disk.slowness is not None and disk.is_slow else now_s
    disk.slowness = Slowness(comparison, since_s, now_s + probe_after_s)


def record_noted_slowness(disk: Disk, comparison: Comparison | None, now_s: float) -> None:
    """Record that a disk seems to be slow, and cannot be compared; None if it does not seem so. Does not change a
    slow disk."""
    if not disk.is_slow:
        since_s = now_s if disk.slowness is None else disk.slowness.since_s
        disk.slowness = None if comparison is None else Slowness(comparison, since_s, None)


def record_not_slow(disk: Disk) -> None:
    """Record a probe in which the disk was not slow any more."""
    disk.slowness = None


def record_readability(disk: Disk, *, is_readable: bool, now_s: float) -> None:
    """Record a probe that tried to read segments; `is_readable` if it could read one."""
    if is_readable:
        disk.unreadable_since_s = None
    elif disk.unreadable_since_s is None:
        disk.unreadable_since_s = now_s


def is_lost(disk: Disk, now_s: float, timing: HealthTiming) -> bool:
    """Whether the disk's segments count as absent."""
    return disk.unreadable_since_s is not None and now_s - disk.unreadable_since_s >= timing.lost_after_s


def _end_suspicion(disk: Disk) -> None:
    disk.suspected_since_s = None
    disk.is_failing = False
    disk.unreadable_since_s = None


def is_in_backoff(disk: Disk, now_s: float) -> bool:
    """Whether the disk is tried last: it failed a create a moment ago, does not answer, or cannot be read."""
    is_bad = disk.is_unresponsive or disk.is_unreadable
    return disk.state is DiskState.RW and (is_bad or now_s < disk.retry_at_s)
