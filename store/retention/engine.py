"""The rules of forced deletion: what goes next, why, and what an operator has to know. Pure.

`decide` is asked again after every removal, with fresh measurements: what has become needless is not removed.

    FORCE   no disk below `force` (trigger ALL), or one that is not (ANY), for force_after: oldest segments go until
            one disk (ALL), or each that was not (ANY), is below `resume`
    FULL    a create finds every disk full: oldest segments go until a disk takes a segment
    AGE     mode FILESYSTEM: expired segments go, in the hours of delete_when, or at once above `clean`
    punch   every disk is full in spite of all that: blocks of what was removed by force and is still open

Nothing is removed for a goal that removing cannot reach: pressure of foreign data, or of what must stay.
"""

import itertools
from dataclasses import dataclass, replace
from enum import Enum

from commitlogfs.store.disks.eligibility import has_room, takes_a_segment
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention.alerts import Alert, AlertCode, all_full, disk_alerts, stuck_alerts
from commitlogfs.store.retention.clocks import ClockWatch
from commitlogfs.store.retention.facts import DiskFacts, HeldFacts, SegmentFacts, Snapshot
from commitlogfs.store.retention.plan import Usages, best_case, plan_prefix, removable_prefix
from commitlogfs.store.retention.rules import Mode, RetentionRules, Trigger

_MADE_UP_FOR = 2
"""Segments on one disk that are removed and held open, for which others go when a create needs room."""
_FUTURE_NS = 60 * 10**9
"""A time of change further ahead of the clock is a mistake, not an inexact clock."""


class Rule(Enum):
    FORCE = "force"
    FULL = "full"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Removal:
    """One segment that is to go."""

    segment: SegmentFacts
    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now; ask again when it is done."""

    planned: tuple[Removal, ...] = ()
    """All that have to go for the goal as things stand (for AGE no more than a batch): the first of them now."""
    punch: HeldFacts | None = None
    """Free the blocks of this one, if nothing is planned."""
    force_in_s: float | None = None
    """Until the pressure has held long enough; None without pressure, 0.0 from then on."""
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineState:
    """What has to be remembered from one decision to the next."""

    clock: ClockWatch | None = None
    pressed_since_s: float | None = None
    forcing: frozenset[DiskNumber] = frozenset()
    """While segments go by FORCE: the disks that were at or above `force` meanwhile and can be cured."""


def decide(
    rules: RetentionRules, state: EngineState, snapshot: Snapshot, *, for_create: bool = False
) -> tuple[Decision, EngineState]:
    """`for_create`: a create has found no disk, and waits: only what lets it go on is planned."""
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

    planned: tuple[Removal, ...] = ()
    if state.forcing:
        planned, state = _continue_force(rules, state, snapshot, alerts)
    if rules.mode is Mode.FILESYSTEM:
        planned = _expire(rules, clock, snapshot, planned, alerts)
    punch = None if planned or not rules.punch else _choose_punch(rules, snapshot)
    return Decision(planned, punch, _force_in_s(rules, state, snapshot), tuple(alerts)), state


def _continue_force(
    rules: RetentionRules, state: EngineState, snapshot: Snapshot, alerts: list[Alert]
) -> tuple[tuple[Removal, ...], EngineState]:
    """What goes next by FORCE; nothing, and an alert, where it would not help."""
    forced = _plan_force(rules, state.forcing, snapshot)
    if forced is None:
        text = (
            "the pressure is not relieved: what could go would not be enough, has other names "
            "(hard links: `find -links +1`), or lies on a disk that hangs"
        )
        alerts.append(Alert(AlertCode.NOT_RECLAIMING, "", text))
    return forced or (), state if forced else replace(state, forcing=frozenset())


def _expire(
    rules: RetentionRules,
    clock: ClockWatch,
    snapshot: Snapshot,
    planned: tuple[Removal, ...],
    alerts: list[Alert],
) -> tuple[Removal, ...]:
    """What goes by AGE, unless something is `planned` already; nothing, and an alert, after a jump of the clock."""
    jump_s = clock.jumped_by(snapshot.moment)
    if jump_s:
        text = f"the clock jumped by {jump_s:,.0f} s: nothing expires: set it right, then `commitlogfs restart`"
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
) -> tuple[Removal, ...] | None:
    """() when enough has gone; None if it would be in vain."""
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
        reason = f"no disk below force for {rules.force_after_s:g} s: until one is below resume"
    else:
        paths = ", ".join(disk.path for disk in snapshot.disks if disk.number in forcing)
        reason = f"above force for {rules.force_after_s:g} s: until below resume: {paths}"
    return tuple(Removal(segment, Rule.FORCE, reason) for segment in segments)


def _force_in_s(rules: RetentionRules, state: EngineState, snapshot: Snapshot) -> float | None:
    if state.forcing:
        return 0.0
    if state.pressed_since_s is None:
        return None
    return max(0.0, rules.force_after_s - (snapshot.moment.steady_s - state.pressed_since_s))


# --- FULL ----------------------------------------------------------------------------------------------------


def _plan_full(snapshot: Snapshot) -> tuple[Removal, ...]:
    """A disk that only waits for removed segments to be let go takes none yet: a few that are held by somebody are
    made up for, but not any number, or a reader of everything would cost the log."""
    disks = {disk.number: disk for disk in snapshot.writable()}
    size = snapshot.log.segment_size

    def takes_one(number: DiskNumber, usage: DiskUsage) -> bool:
        disk = disks[number]
        if disk.pending_bytes > _MADE_UP_FOR * size:
            return has_room(usage, disk.thresholds, size)
        return takes_a_segment(usage, disk.pending_bytes, disk.thresholds, size)

    def one_takes_a_segment(usages: Usages) -> bool:
        return any(takes_one(number, usage) for number, usage in usages.items())

    reason = "every disk is full and a new segment is asked for: until one takes it"
    return tuple(
        Removal(segment, Rule.FULL, reason) for segment in plan_prefix(snapshot, one_takes_a_segment) or ()
    )


# --- AGE -----------------------------------------------------------------------------------------------------


def _plan_age(rules: RetentionRules, snapshot: Snapshot, alerts: list[Alert]) -> tuple[Removal, ...]:
    """A segment without a believable age, from before 1970 or the future, is not expired, and ends the prefix."""
    if rules.reserved_s is None or not (snapshot.moment.hour in rules.delete_when or _above_clean(rules, snapshot)):
        return ()
    latest_ns = snapshot.moment.wall_ns - round(rules.reserved_s * 1e9)
    reason = f"older than {rules.reserved_s / 3600:g} h"
    expired = []
    for segment in itertools.islice(removable_prefix(snapshot), rules.batch):
        trouble = _why_ageless(segment.mtime_ns, snapshot.moment.wall_ns)
        if trouble:
            text = f"segment {segment.base_offset:020d} {trouble}: set it (touch), or nothing expires"
            alerts.append(Alert(AlertCode.AGE_UNKNOWN, "", text))
        if not 0 < segment.mtime_ns <= latest_ns:
            break
        expired.append(Removal(segment, Rule.AGE, reason))
    return tuple(expired)


def _why_ageless(mtime_ns: int, wall_ns: int) -> str:
    if mtime_ns <= 0:
        return "has no time of last change"
    if mtime_ns > wall_ns + _FUTURE_NS:
        return "was last changed in the future"
    return ""


def _above_clean(rules: RetentionRules, snapshot: Snapshot) -> bool:
    above = [bool(d.usage and d.usage.used_ratio * 100 > d.thresholds.clean) for d in snapshot.writable()]
    return any(above) if rules.trigger is Trigger.ANY else bool(above) and all(above)


# --- punch ---------------------------------------------------------------------------------------------------


def _choose_punch(rules: RetentionRules, snapshot: Snapshot) -> HeldFacts | None:
    """Only when the disks say themselves that they are all full: the oldest whose grace is over, on a disk that
    those with it could bring below `full`, and above `min_free`."""
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
