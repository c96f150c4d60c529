"""Which disks may take the next segment: skipping of full disks with hysteresis, and the fall-back. Pure.

A disk at or above its `force` threshold is skipped until it is below `resume`. If no disk is left, all writable
disks below `full` are eligible, as in RocketMQ (MultiPathMappedFileQueue).
"""

from dataclasses import dataclass
from enum import IntEnum

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds


class RefusalReason(IntEnum):
    """Why a disk is passed over, weakest first. Only the strongest reason of a disk is reported."""

    ABOVE_FORCE = 1
    NO_ROOM = 2
    SLOW = 3
    IN_BACKOFF = 4
    NOT_WRITABLE = 5
    CORDONED = 6
    UNKNOWN_USAGE = 7


_CLOSED = frozenset({DiskState.CORDONED, DiskState.DRAINING, DiskState.LEAVING, DiskState.OFFLINE})
"""States by the operator's decision."""


@dataclass(frozen=True, slots=True)
class DiskView:
    """State of one disk from which its eligibility follows. `usage` is None while the disk does not answer."""

    number: DiskNumber
    state: DiskState
    usage: DiskUsage | None
    """Usage in which removed but still open segments count as free."""
    thresholds: Thresholds
    in_backoff: bool = False
    pending_bytes: int = 0
    """Bytes of these removed but still open segments, which are not available yet."""
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Eligibility:
    eligible: tuple[DiskNumber, ...]
    refusals: dict[DiskNumber, RefusalReason]
    skipped: frozenset[DiskNumber]
    """Disks skipped for their fill level: the state that hysteresis needs at the next evaluation."""
    fallback: bool
    """Whether every writable disk is skipped, so that those below `full` are eligible nevertheless."""
    in_backoff: tuple[DiskNumber, ...] = ()
    """Disks that failed a moment ago and may be well again. They are tried when all others have failed."""
    above_force: tuple[DiskNumber, ...] = ()
    """Disks that are skipped for their fill level but have room. They are tried when all eligible ones have
    failed."""
    slow: tuple[DiskNumber, ...] = ()
    """Slow disks. They are tried before those in backoff, and after all others."""


def has_room(usage: DiskUsage, thresholds: Thresholds, segment_size: int) -> bool:
    """Whether a segment fits below `full`, and leaves `min_free`."""
    left = usage.available_bytes - segment_size
    return not usage.is_at_or_above(thresholds.full) and left >= thresholds.min_free_bytes


def takes_a_segment(usage: DiskUsage, pending_bytes: int, thresholds: Thresholds, segment_size: int) -> bool:
    """Whether a segment fits now, while `pending_bytes` are not free yet although `usage` counts them as free.

    Such a disk is fuller than its percentage says. It keeps room for at least one more segment.
    """
    if not has_room(usage, thresholds, segment_size):
        return False
    left = usage.available_bytes - pending_bytes - segment_size
    return not pending_bytes or left >= max(segment_size, thresholds.min_free_bytes)


def next_skipped(view: DiskView, skipped: frozenset[DiskNumber]) -> bool:
    """Whether this disk is skipped, given the disks that were skipped before."""
    if view.usage is None:
        return view.number in skipped
    if view.usage.is_at_or_above(view.thresholds.force):
        return True
    return view.number in skipped and view.usage.is_at_or_above(view.thresholds.resume)


def evaluate(views: tuple[DiskView, ...], segment_size: int, skipped: frozenset[DiskNumber]) -> Eligibility:
    """Eligibility of all disks. `skipped` are those that the evaluation before has skipped."""
    now_skipped = frozenset(view.number for view in views if next_skipped(view, skipped))
    refusals: dict[DiskNumber, RefusalReason] = {}
    eligible: list[DiskNumber] = []
    above_force: list[DiskNumber] = []
    for view in views:
        reason = _hard_refusal(view, segment_size)
        if reason is not None:
            refusals[view.number] = reason
        elif view.number in now_skipped:
            refusals[view.number] = RefusalReason.ABOVE_FORCE
            above_force.append(view.number)
        else:
            eligible.append(view.number)
    in_backoff = tuple(number for number, reason in refusals.items() if reason is RefusalReason.IN_BACKOFF)
    slow = tuple(number for number, reason in refusals.items() if reason is RefusalReason.SLOW)
    if eligible or not above_force:
        return Eligibility(
            tuple(eligible),
            refusals,
            now_skipped,
            fallback=False,
            in_backoff=in_backoff,
            above_force=tuple(above_force),
            slow=slow,
        )
    for number in above_force:
        del refusals[number]
    return Eligibility(tuple(above_force), refusals, now_skipped, fallback=True, in_backoff=in_backoff, slow=slow)


def _hard_refusal(view: DiskView, segment_size: int) -> RefusalReason | None:
    """Reason to pass a disk over that no fall-back overrides; None if there is none."""
    if view.state in _CLOSED:
        return RefusalReason.CORDONED
    if view.state is not DiskState.RW:
        return RefusalReason.NOT_WRITABLE
    if view.usage is None:
        return RefusalReason.UNKNOWN_USAGE
    if not takes_a_segment(view.usage, view.pending_bytes, view.thresholds, segment_size):
        return RefusalReason.NO_ROOM
    if view.in_backoff:
        return RefusalReason.IN_BACKOFF
    return RefusalReason.SLOW if view.is_slow else None
