"""The rules of forced deletion: which segment is removed next, why, and the alerts. Pure.

`decide` is called again after every removal, with fresh measurements, so that a removal that is not needed any more
does not happen. Segments are removed oldest first.

    FORCE   begins when every writable disk (trigger ALL), or any (ANY), has been at or above `force` for
            force_after; ends when one disk (ALL), or each of those (ANY), is below `resume`
    FULL    begins when a create finds every disk full that answers; ends when a disk takes a segment
    AGE     in mode FILESYSTEM, removes expired segments in the hours of delete_when, or at once above `clean`
    punch   if every disk is full nevertheless, frees the blocks of segments that were removed by force and are
            still open

Nothing is removed for a goal that removals cannot reach, because foreign data or the newest segments use the space.
"""

import itertools
from dataclasses import dataclass, replace
from enum import Enum

from commitlogfs.store.disks.eligibility import has_room, takes_a_segment
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention.alerts import Alert, AlertCode, all_full, disk_alerts, stuck_alerts
from commitlogfs.store.retention.clocks import ClockWatch
from commitlogfs.store.retention.facts import DiskFacts, HeldFacts, SegmentFacts, Snapshot
from commitlogfs.store.retention.plan import Usages, best_case, plan_prefix, removable_prefix
from commitlogfs.store.retention.rules import Mode, RetentionRules, Trigger

_COMPENSATED_SEGMENTS = 2
"""Number of removed segments of one disk that are still open and for which a create may remove others instead."""
_FUTURE_NS = 60 * 10**9
"""A modification time further ahead of the clock is wrong, not just inexact."""


class Rule(Enum):
    FORCE = "force"
    FULL = "full"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class PlannedRemoval:
    """One segment that is to be removed, by which rule and why."""

    segment: SegmentFacts
    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step. Call `decide` again when it is done."""

    planned: tuple[PlannedRemoval, ...] = ()
    """All removals that the goal needs at present (for AGE at most a batch). Only the first one is due now."""
    punch: HeldFacts | None = None
    """Removed segment whose blocks are to be freed; only if nothing is planned."""
    force_in_s: float | None = None
    """Seconds until segments are removed by FORCE; 0.0 while they are, None without pressure."""
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineState:
    """State that one decision hands to the next."""

    clock: ClockWatch | None = None
    pressed_since_s: float | None = None
    forcing: frozenset[DiskNumber] = frozenset()
    """While FORCE removes segments: the disks that were at or above `force` and that removals can relieve."""


def decide(
    rules: RetentionRules, state: EngineState, snapshot: Snapshot, *, for_create: bool = False
) -> tuple[Decision, EngineState]:
    """Decision and new state. With `for_create`, a create waits because no disk takes it: only FULL is planned."""
    clock = state.clock or ClockWatch.begin(snapshot.moment)
    state = replace(state, clock=clock)
    if rules.mode is Mode.OFF:
        return Decision(alerts=tuple(disk_alerts(snapshot, frozenset()))), state
    at_force = frozenset(disk.number for disk in snapshot.writable() if _is_at(disk, disk.thresholds.force))
    curable = _curable(snapshot) if at_force else frozenset()
    state = _follow_pressure(rules, state, snapshot, at_force, curable)
    alerts = disk_alerts(snapshot, at_force - curable)

    if snapshot.refused is not None or state.pressed_since_s is not None or all_full(snapshot):
        alerts += stuck_alerts(snapshot)

    if for_create:
        return Decision(_plan_full(snapshot), None, _force_in_s(rules, state, snapshot), tuple(alerts)), state

    planned: tuple[PlannedRemoval, ...] = ()
    if state.forcing:
        planned, state = _continue_force(rules, state, snapshot, alerts)
    if rules.mode is Mode.FILESYSTEM:
        planned = _expire(rules, clock, snapshot, planned, alerts)
    punch = None if planned or not rules.punch else _choose_punch(rules, snapshot)
    return Decision(planned, punch, _force_in_s(rules, state, snapshot), tuple(alerts)), state


def _continue_force(
    rules: RetentionRules, state: EngineState, snapshot: Snapshot, alerts: list[Alert]
) -> tuple[tuple[PlannedRemoval, ...], EngineState]:
    """Removals by FORCE and the new state. If removals would not help, there are none, and an alert is added."""
    forced = _plan_force(rules, state.forcing, snapshot)
    if forced is None:
        text = (
            "the disks are above `force`, and removals cannot bring them below `resume`: the segments that may be "
            "removed are too few, have other names (hard links), or come after a segment on a disk that hangs; "
            "free space, remove the links (`find DISK -links +1`), or repair that disk"
        )
        alerts.append(Alert(AlertCode.NOT_RECLAIMING, "", text))
    return forced or (), state if forced else replace(state, forcing=frozenset())


def _expire(
    rules: RetentionRules,
    clock: ClockWatch,
    snapshot: Snapshot,
    planned: tuple[PlannedRemoval, ...],
    alerts: list[Alert],
) -> tuple[PlannedRemoval, ...]:
    """Removals by AGE, unless others are `planned`. After a jump of the clock there are none, and an alert is
    added."""
    jump_s = clock.jumped_by(snapshot.moment)
    if jump_s:
        text = (
            f"the wall clock jumped by {jump_s:,.0f} s, so no segment expires; set the clock right, "
            "or if the new time is right, run `commitlogfs restart`"
        )
        alerts.append(Alert(AlertCode.CLOCK_JUMPED, "", text))
        return planned
    return planned or _plan_age(rules, snapshot, alerts)


# --- FORCE ---------------------------------------------------------------------------------------------------


def _follow_pressure(
    rules: RetentionRules,
    state: EngineState,
    snapshot: Snapshot,
    at_force: frozenset[DiskNumber],
    curable: frozenset[DiskNumber],
) -> EngineState:
    now_s = snapshot.moment.steady_s
    pressed = at_force & curable
    if rules.trigger is Trigger.ALL and len(at_force) < len(snapshot.writable()):
        pressed = frozenset()
    if not pressed:
        return replace(state, pressed_since_s=None)
    since_s = now_s if state.pressed_since_s is None else state.pressed_since_s
    held = now_s - since_s >= rules.force_after_s
    return replace(state, pressed_since_s=since_s, forcing=state.forcing | pressed if held else state.forcing)


def _curable(snapshot: Snapshot) -> frozenset[DiskNumber]:
    """The disks that removing segments could bring below `resume`."""
    left = best_case(snapshot)
    return frozenset(
        disk.number for disk in snapshot.writable() if not left[disk.number].is_at_or_above(disk.thresholds.resume)
    )


def _plan_force(
    rules: RetentionRules, forcing: frozenset[DiskNumber], snapshot: Snapshot
) -> tuple[PlannedRemoval, ...] | None:
    """Removals that end the pressure: () if it has ended, None if no removals can end it."""
    resume = {disk.number: disk.thresholds.resume for disk in snapshot.writable()}

    def one_is_below(usages: Usages) -> bool:
        return any(not usage.is_at_or_above(resume[number]) for number, usage in usages.items())

    def each_is_below(usages: Usages) -> bool:
        return not any(number in forcing and u.is_at_or_above(resume[number]) for number, u in usages.items())

    trigger_is_all = rules.trigger is Trigger.ALL
    segments = plan_prefix(snapshot, one_is_below if trigger_is_all else each_is_below)
    if segments is None:
        return None
    if trigger_is_all:
        reason = f"no disk was below force for {rules.force_after_s:g} s; ends when one is below resume"
    else:
        paths = ", ".join(disk.path for disk in snapshot.disks if disk.number in forcing)
        reason = f"above force for {rules.force_after_s:g} s: {paths}; ends when each is below resume"
    return tuple(PlannedRemoval(segment, Rule.FORCE, reason) for segment in segments)


def _force_in_s(rules: RetentionRules, state: EngineState, snapshot: Snapshot) -> float | None:
    if state.forcing:
        return 0.0
    if state.pressed_since_s is None:
        return None
    return max(0.0, rules.force_after_s - (snapshot.moment.steady_s - state.pressed_since_s))


# --- FULL ----------------------------------------------------------------------------------------------------


def _plan_full(snapshot: Snapshot) -> tuple[PlannedRemoval, ...]:
    """Removals after which a disk takes a segment; () if there are none.

    Removed segments that are still open do not help yet, so others may be removed instead of them: but only of a
    few for each disk, as a process that has all segments open would otherwise cost the whole log.
    """
    disks = {disk.number: disk for disk in snapshot.writable()}
    size = snapshot.log.segment_size

    def takes_one(number: DiskNumber, usage: DiskUsage) -> bool:
        disk = disks[number]
        if disk.pending_bytes > _COMPENSATED_SEGMENTS * size:
            return has_room(usage, disk.thresholds, size)
        return takes_a_segment(usage, disk.pending_bytes, disk.thresholds, size)

    def one_takes_a_segment(usages: Usages) -> bool:
        return any(takes_one(number, usage) for number, usage in usages.items())

    reason = "every disk that answers is full and a new segment is requested; ends when a disk takes it"
    return tuple(
        PlannedRemoval(segment, Rule.FULL, reason) for segment in plan_prefix(snapshot, one_takes_a_segment) or ()
    )


# --- AGE -----------------------------------------------------------------------------------------------------


def _plan_age(rules: RetentionRules, snapshot: Snapshot, alerts: list[Alert]) -> tuple[PlannedRemoval, ...]:
    """Expired segments, at most a batch. One whose modification time cannot be right ends the prefix."""
    if rules.reserved_s is None or not (snapshot.moment.hour in rules.delete_when or _above_clean(rules, snapshot)):
        return ()
    latest_ns = snapshot.moment.wall_ns - round(rules.reserved_s * 1e9)
    reason = f"older than {rules.reserved_s / 3600:g} h"
    expired = []
    for segment in itertools.islice(removable_prefix(snapshot), rules.batch):
        trouble = _why_ageless(segment.mtime_ns, snapshot.moment.wall_ns)
        if trouble:
            text = (
                f"segment {segment.base_offset:020d} {trouble}, so no segment expires; set the right time (touch)"
            )
            alerts.append(Alert(AlertCode.AGE_UNKNOWN, "", text))
        if not 0 < segment.mtime_ns <= latest_ns:
            break
        expired.append(PlannedRemoval(segment, Rule.AGE, reason))
    return tuple(expired)


def _why_ageless(mtime_ns: int, wall_ns: int) -> str:
    if mtime_ns <= 0:
        return "has the modification time 1970 or earlier"
    if mtime_ns > wall_ns + _FUTURE_NS:
        return "has a modification time in the future"
    return ""


def _above_clean(rules: RetentionRules, snapshot: Snapshot) -> bool:
    above = [bool(d.usage and d.usage.used_ratio * 100 > d.thresholds.clean) for d in snapshot.writable()]
    return any(above) if rules.trigger is Trigger.ANY else bool(above) and all(above)


# --- punch ---------------------------------------------------------------------------------------------------


def _choose_punch(rules: RetentionRules, snapshot: Snapshot) -> HeldFacts | None:
    """The oldest held segment to punch, if the disks as measured are all full.

    Its grace is over, and punching all such segments of its disk would bring the disk below `full` and leave
    `min_free`.
    """
    if not all_full(snapshot):
        return None
    writable = {disk.number: disk for disk in snapshot.writable()}
    due = sorted(
        (
            held
            for held in snapshot.held
            if held.allocated_bytes and snapshot.moment.steady_s - held.since_s >= rules.grace_s
        ),
        key=lambda held: held.base_offset,
    )
    for candidate in due:
        disk = writable.get(candidate.disk)
        if disk is None or disk.measured is None:
            continue
        gain = sum(held.allocated_bytes for held in due if held.disk == candidate.disk)
        if has_room(disk.measured.with_pending_free(gain), disk.thresholds, snapshot.log.segment_size):
            return candidate
    return None


def is_pressed(snapshot: Snapshot) -> bool:
    """Whether a disk is at or above `force`."""
    return any(_is_at(disk, disk.thresholds.force) for disk in snapshot.writable())


def _is_at(disk: DiskFacts, percent: int) -> bool:
    return disk.usage is not None and disk.usage.is_at_or_above(percent)
