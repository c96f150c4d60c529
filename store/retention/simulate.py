"""Simulation of forced deletion and of a broker's cleaning: how long will a log last on given disks? Pure.

Placement, eligibility, the rules and the figures of statfs are the daemon's own code, with a simulated clock that
begins at midnight, 1 January 1970, with an empty log. Bytes come in at a constant rate, or at one that swings over
the day. Two segments are made before the first byte, and one more whenever one is full, as a broker does. There are
four kinds of events; at equal times they happen in this order: a disk is added or begins to drain; a segment is
full; the broker cleans; the filesystem cleans. The pauses between two removals, and readers that keep removed
segments open, are not simulated: they change no decision.

Evaluations whose result is known already are left out (SimulatedPool explains bands):

    at rest    if a cycle without pressure removes nothing, neither does any other cycle with the same bands, the
               same answer to "is the oldest segment expired?", and the same kind of hour
    underway   segments that FORCE has planned are removed whatever is created meanwhile: more segments never
               shorten a plan

With `stepped`, nothing is left out: the rules are evaluated in every cycle and after each removal, as in the
daemon. The result is the same.
"""

import bisect
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from commitlogfs.store.disks.capacity import KEPT_SEGMENTS
from commitlogfs.store.disks.forecast import Removals, seconds_until_expired
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.moves.targets import Target, expiry_of
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.retention.engine import Decision, EngineState, Rule, decide
from commitlogfs.store.retention.facts import Moment
from commitlogfs.store.retention.rules import Mode, RetentionRules, Trigger
from commitlogfs.store.retention.simulated_broker import (
    FIRST_RUN_S,
    INTERVAL_S,
    BrokerRules,
    Pressure,
    evaluate_pressure,
)
from commitlogfs.store.retention.simulated_pool import REMEMBERED, Bands, PlannedDisk, SimulatedPool
from commitlogfs.store.retention.simulated_report import Actor, SimulationReport, Tally
from commitlogfs.store.retention.statfs import compose

_NS: Final = 10**9
_HOUR_NS: Final = 3600 * _NS
_DAY_NS: Final = 24 * _HOUR_NS
_RADIAN_NS: Final = _DAY_NS / (2 * math.pi)
_MADE_BEFORE: Final = 2
"""The segment written and the one made ahead."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Input of a simulation. Raises ValueError for values that cannot be simulated."""

    disks: tuple[PlannedDisk, ...]
    ingest_bytes_per_s: int
    segment_size: int = 1 << 30
    placement: str = "round-robin"
    """A key of POLICIES."""
    rules: RetentionRules = field(default_factory=RetentionRules)
    broker: BrokerRules = field(default_factory=BrokerRules)
    """The broker's settings. It cleans in the modes COOPERATIVE and OFF only."""
    daily_wave: float = 0.0
    """Part by which the rate is lower at midnight and higher at noon than `ingest_bytes_per_s`, its mean."""

    def __post_init__(self) -> None:
        if not self.disks:
            raise ValueError("no disk is given; at least one is required")
        if self.ingest_bytes_per_s <= 0 or self.segment_size <= 0:
            raise ValueError("rate and segment size must be above 0")
        if not 0 <= self.daily_wave < 1:
            raise ValueError("the daily wave must be at least 0 and below 1")
        self._require_writable_disks()
        for disk in self.disks:
            if not 0 <= disk.foreign_bytes <= disk.size_bytes or disk.size_bytes <= 0:
                raise ValueError(
                    f"{disk.path}: {disk.foreign_bytes:,} bytes of other data do not fit on "
                    f"{disk.size_bytes:,} bytes"
                )

    def _require_writable_disks(self) -> None:
        times = {0, *(disk.drains_s for disk in self.disks if disk.drains_s is not None)}
        for disk in self.disks:
            if disk.added_s < 0 or (disk.drains_s is not None and disk.drains_s < disk.added_s):
                raise ValueError(f"{disk.path}: drains before it is added")
        for time_s in sorted(times):
            if not any(d.added_s <= time_s and (d.drains_s is None or d.drains_s > time_s) for d in self.disks):
                days = time_s / (24 * 3600)
                raise ValueError(
                    f"after {days:.1f} d every disk drains; leave at least one disk that takes new segments"
                )

    @property
    def last_change_s(self) -> int:
        """Time of the last change of the disks; 0 without one."""
        return max(max(disk.added_s, disk.drains_s or 0) for disk in self.disks)


def simulate(
    scenario: Scenario,
    duration_s: int,
    *,
    stepped: bool = False,
    on_day: Callable[[int], None] = lambda day: None,
) -> SimulationReport:
    """Report of a simulation. `on_day` is called with the number of each simulated day that has ended: 1, 2 ..."""
    return _Simulation(scenario, stepped=stepped).run(duration_s * _NS, on_day)


class _Cycles:
    """Times of the cycles of the broker or of the filesystem: a fixed grid, without the points that are left
    out."""

    def __init__(self, first_ns: int, interval_ns: int) -> None:
        self.next_ns = first_ns
        self._first_ns = first_ns
        self._interval_ns = interval_ns
        self._last_ns = first_ns - 1

    def step(self) -> None:
        self._last_ns = self.next_ns
        self.next_ns += self._interval_ns

    def rest_until(self, time_ns: int) -> None:
        self.next_ns = max(self.next_ns, self._at_or_after(time_ns))

    def wake_at(self, time_ns: int) -> None:
        """Leave out no point of the grid from `time_ns` on, because something has changed."""
        self.next_ns = min(self.next_ns, self._at_or_after(max(time_ns, self._last_ns + 1)))

    def _at_or_after(self, time_ns: int) -> int:
        points = max(0, -((self._first_ns - time_ns) // self._interval_ns))
        return self._first_ns + points * self._interval_ns


class _DiskChange(NamedTuple):
    """A disk is added or, with `drains`, begins to drain."""

    at_ns: int
    drains: bool
    number: DiskNumber


def _changes(disks: tuple[PlannedDisk, ...]) -> deque[_DiskChange]:
    """In the order in which they happen; of those at one time, additions first."""
    found = []
    for number, disk in enumerate(disks, start=1):
        if disk.added_s:
            found.append(_DiskChange(disk.added_s * _NS, False, DiskNumber(number)))
        if disk.drains_s is not None:
            found.append(_DiskChange(disk.drains_s * _NS, True, DiskNumber(number)))
    return deque(sorted(found))


class _Simulation:
    def __init__(self, scenario: Scenario, *, stepped: bool) -> None:
        self._scenario = scenario
        self._rules = scenario.rules
        self._stepped = stepped
        limits = scenario.broker.thresholds
        self._pool = SimulatedPool(
            scenario.disks,
            scenario.segment_size,
            POLICIES[scenario.placement],
            frozenset({limits.clean, limits.force, limits.full}),
            remember=not stepped,
        )
        self._tally = Tally(scenario.rules.trigger)
        self._pressure: Callable[[Bands], Pressure] = (
            self._broker_pressure if stepped else lru_cache(REMEMBERED)(self._broker_pressure)
        )
        self._removals = Removals()
        self._now_ns = 0
        self._state = EngineState()
        self._at_rest: set[Hashable] = set()
        self._underway = 0
        """Number of the oldest segments that FORCE is known to remove."""
        self._underway_at_force: tuple[DiskNumber, ...] = ()
        self._refused = -1
        """Index of the last segment that was refused."""
        self._broker_is_full = False
        self._changes = _changes(scenario.disks)
        self._full_at_ns: int | None = None
        """Time when the active segment is full; None while messages are refused."""
        self._left_ns = 0
        """Time that filling it still takes once messages are accepted again, at the mean rate."""
        self._refused_since_ns = 0

    # --- the course of events ------------------------------------------------------------------------------

    def run(self, end_ns: int, on_day: Callable[[int], None]) -> SimulationReport:
        never = end_ns + 1
        ours = _Cycles(never if self._rules.mode is Mode.OFF else 0, round(self._rules.interval_s * _NS))
        brokers = _Cycles(never if self._rules.mode is Mode.FILESYSTEM else FIRST_RUN_S * _NS, INTERVAL_S * _NS)
        self._left_ns = self._filling_ns()
        self._tally.record_levels(self._pool, 0)
        self._create_missing()
        self._start_or_stop()
        day = 1
        while True:
            full_at_ns = never if self._full_at_ns is None else self._full_at_ns
            changes_ns = self._changes[0].at_ns if self._changes else never
            self._now_ns = min(changes_ns, full_at_ns, brokers.next_ns, ours.next_ns, end_ns)
            while day * _DAY_NS <= self._now_ns:
                on_day(day)
                day += 1
            if self._now_ns == end_ns:
                break
            if changes_ns == self._now_ns:
                changed, wake = self._change_disks(), ((brokers, 0), (ours, 0))
            elif full_at_ns == self._now_ns:
                changed, wake = self._seal(), ((brokers, 0), (ours, 0))
            elif brokers.next_ns == self._now_ns:
                changed, wake = self._step_broker(brokers), ((brokers, 1), (ours, 0))
            else:
                changed, wake = self._step_filesystem(ours), ((brokers, 1), (ours, 1))
            if changed:
                for cycles, later_ns in wake:
                    cycles.wake_at(self._now_ns + later_ns)
        if self._full_at_ns is None:
            self._tally.refused_ns += end_ns - self._refused_since_ns
        return self._tally.report(self._pool, end_ns)

    def _step_broker(self, brokers: _Cycles) -> bool:
        brokers.step()
        changed = self._broker_cycle()
        if not changed and not self._stepped:
            brokers.rest_until(self._next_change_ns(self._scenario.broker.reserved_s))
        return changed

    def _step_filesystem(self, ours: _Cycles) -> bool:
        ours.step()
        changed = self._our_cycle()
        if not changed and not self._stepped and self._is_calm():
            ours.rest_until(self._next_change_ns(self._rules.reserved_s))
        return changed

    def _next_change_ns(self, reserved_s: float | None) -> int:
        """The earliest time at which a cycle at rest may have another result, if nothing is removed before."""
        times = [self._now_ns // _HOUR_NS * _HOUR_NS + _HOUR_NS]
        if self._full_at_ns is not None:
            times.append(self._full_at_ns)
        if reserved_s is not None and self._pool.log.sealed:
            expires_ns = self._pool.log.sealed[0].mtime_ns + round(reserved_s * _NS)
            if expires_ns > self._now_ns:
                times.append(expires_ns)
        return min(times)

    # --- the disks -----------------------------------------------------------------------------------------

    def _change_disks(self) -> bool:
        change, forecast_s = self._changes.popleft(), None
        if change.drains:
            forecast_s = self._forecast_s(change.number)
            self._pool.drain(change.number)
        else:
            self._pool.join(change.number)
        self._tally.record_change(change.number, self._pool, self._now_ns, forecast_s)
        self._tally.record_levels(self._pool, self._now_ns)
        self._underway = 0  # planned for other disks
        self._create_missing()
        self._start_or_stop()
        return True

    def _forecast_s(self, number: DiskNumber) -> float | None:
        """Seconds until a disk that drains from now on is empty, as the daemon forecasts it."""
        pool, log, now_s = self._pool, self._pool.log, self._now_ns / _NS
        newest = log.newest_on(number)
        if newest is None:
            return 0.0
        others = [other for other in pool.writable() if other != number]
        targets = [Target(other, pool.usage(other), pool.disks[other - 1].thresholds) for other in others]
        newer = log.created - 1 - newest.base_offset // log.segment_size
        held = sum(log.count_on(other) for other in others)
        sealed = list(log.sealed)
        history = self._removals.history(
            len(sealed), lambda index: (sealed[index].mtime_ns / _NS, sealed[index].base_offset + log.segment_size)
        )
        wave = 1 - self._scenario.daily_wave * math.cos(self._now_ns % _DAY_NS / _RADIAN_NS)
        ingest = self._scenario.ingest_bytes_per_s * wave
        facts = expiry_of(targets, log.segment_size, held, newer, now_s, newest.mtime_ns / _NS, ingest)
        return seconds_until_expired(facts, history, self._removals)

    # --- the writer ----------------------------------------------------------------------------------------

    def _seal(self) -> bool:
        """Seal the full active segment. Returns whether segments were removed to create the next one."""
        self._pool.log.seal(self._now_ns)
        self._full_at_ns = None
        self._refused_since_ns = self._now_ns
        self._left_ns = self._filling_ns()
        removed = self._create_missing()
        self._start_or_stop()
        return removed

    def _filling_ns(self) -> int:
        """Time that filling the active segment takes, rounded so that errors do not add up."""
        size, rate = self._scenario.segment_size, self._scenario.ingest_bytes_per_s
        index = self._pool.log.created - len(self._pool.log.unsealed)
        return (index + 1) * size * _NS // rate - index * size * _NS // rate

    def _nominal_ns(self, time_ns: int) -> int:
        """Time in which the mean rate brings as many bytes as the rate brings until `time_ns`."""
        wave = self._scenario.daily_wave
        return time_ns - round(wave * _RADIAN_NS * math.sin(time_ns % _DAY_NS / _RADIAN_NS)) if wave else time_ns

    def _real_ns(self, nominal_ns: int) -> int:
        """The inverse of `_nominal_ns`."""
        if not self._scenario.daily_wave:
            return nominal_ns
        around = range(nominal_ns - round(_RADIAN_NS), nominal_ns + round(_RADIAN_NS))
        return around[bisect.bisect_left(around, nominal_ns, key=self._nominal_ns)]

    def _start_or_stop(self) -> None:
        takes_messages = bool(self._pool.log.unsealed) and not self._broker_is_full
        if takes_messages and self._full_at_ns is None:
            self._full_at_ns = self._real_ns(self._nominal_ns(self._now_ns) + self._left_ns)
            self._tally.refused_ns += self._now_ns - self._refused_since_ns
        elif not takes_messages and self._full_at_ns is not None:
            self._left_ns = self._nominal_ns(self._full_at_ns) - self._nominal_ns(self._now_ns)
            self._full_at_ns = None
            self._refused_since_ns = self._now_ns

    def _create_missing(self) -> bool:
        """Create the segments that the broker makes ahead. Returns whether segments were removed for that."""
        log = self._pool.log
        removed = False
        while len(log.unsealed) < _MADE_BEFORE:
            bands = self._pool.bands
            if not self._pool.create(self._now_ns):
                removed = self._reclaim_for_create() or removed
                if not self._pool.create(self._now_ns):
                    if self._refused != log.created:
                        self._refused = log.created
                        self._tally.refused_creates += 1
                    break
            self._tally.record_created(len(log), self._now_ns)
            if self._pool.bands != bands:
                self._tally.record_levels(self._pool, self._now_ns)
        return removed

    # --- who removes ---------------------------------------------------------------------------------------

    def _broker_cycle(self) -> bool:
        """Run the broker's cycle. Returns whether it changed anything."""
        broker, log = self._scenario.broker, self._pool.log
        pressure = self._pressure(self._pool.bands)
        was_full = self._broker_is_full
        self._broker_is_full = pressure.fills or (was_full and not pressure.clears)
        count = min(broker.batch, len(log.sealed) - (not log.unsealed))  # never the last
        if not pressure.forces:
            may_expire = pressure.cleans or self._hour() in broker.delete_when
            count = self._count_expired(broker.reserved_s, count) if may_expire else 0
        if count > 0:
            self._remove(count, Actor.BROKER, Rule.FORCE if pressure.forces else Rule.AGE)
            self._create_missing()
        self._start_or_stop()
        return count > 0 or self._broker_is_full != was_full

    def _broker_pressure(self, bands: Bands) -> Pressure:
        """Pressure that the broker sees. `bands` are the present ones, the key under which the result is cached."""
        figures = compose(self._pool.shares(), self._rules.trigger, self._rules.mode)
        return evaluate_pressure(figures, self._scenario.broker.thresholds)

    def _count_expired(self, reserved_s: int, most: int) -> int:
        latest_ns = self._now_ns - reserved_s * _NS
        oldest = itertools.islice(self._pool.log.sealed, max(0, most))
        return sum(1 for _ in itertools.takewhile(lambda segment: segment.mtime_ns <= latest_ns, oldest))

    def _our_cycle(self) -> bool:
        """Run the filesystem's cycle. Returns whether it removed segments."""
        key = self._key()
        if self._is_calm() and key in self._at_rest:
            return False
        left = self._rules.batch
        while left:
            count, rule = self._choose(left)
            if not count:
                break
            self._remove(count, Actor.FILESYSTEM, rule)
            left -= count
        if left < self._rules.batch:
            self._create_missing()
            self._start_or_stop()
            return True
        if self._is_calm() and not self._stepped:
            if len(self._at_rest) >= REMEMBERED:
                self._at_rest.clear()
            self._at_rest.add(key)
        return False

    def _choose(self, most: int) -> tuple[int, Rule]:
        """Number of the oldest segments to remove now, at most `most`, and the rule."""
        if self._underway and self._plan_holds():
            return min(most, self._underway), Rule.FORCE
        self._underway = 0
        planned = self._decide().planned
        if not planned:
            return 0, Rule.FORCE
        rule = planned[0].rule
        # Pressure, other than an hour, may end with the first removal, and the rest of the plan with it.
        if self._stepped or (rule is Rule.AGE and self._hour() not in self._rules.delete_when):
            return 1, rule
        if rule is Rule.FORCE and not self._pool.is_shallow and self._has_settled():
            self._underway = len(planned)
            self._underway_at_force = self._pool.disks_at("force")
        return min(most, len(planned)), rule

    def _has_settled(self) -> bool:
        """Whether the state of the rules stays the same while the same disks are at `force`.

        With trigger ALL that state is only whether segments are being removed.
        """
        since_s = self._state.pressed_since_s
        has_held = since_s is None or self._now_ns / _NS - since_s >= self._rules.force_after_s
        return self._rules.trigger is Trigger.ALL or has_held

    def _plan_holds(self) -> bool:
        return self._rules.trigger is Trigger.ALL or self._underway_at_force == self._pool.disks_at("force")

    def _reclaim_for_create(self) -> bool:
        """Remove segments for a create that found no disk. Returns whether segments were removed."""
        if self._rules.mode is Mode.OFF:
            return False
        removed = False
        while planned := self._decide(for_create=True).planned:
            self._remove(1 if self._stepped else len(planned), Actor.FILESYSTEM, planned[0].rule)
            removed = True
        return removed

    def _remove(self, count: int, actor: Actor, rule: Rule) -> None:
        removed = [self._pool.remove_oldest() for _ in range(count)]
        self._tally.record_removals(removed, actor, rule, self._pool, self._now_ns)
        if self._changes:
            for segment in removed:
                end_offset = segment.base_offset + self._scenario.segment_size
                self._removals.record(segment.mtime_ns / _NS, self._now_ns / _NS, end_offset)
        self._underway = max(0, self._underway - count)

    # --- what the rules are asked --------------------------------------------------------------------------

    def _decide(self, *, for_create: bool = False) -> Decision:
        moment = Moment(self._now_ns, self._now_ns / _NS, self._hour())
        snapshot = self._pool.snapshot(moment)
        decision, self._state = decide(self._rules, self._state, snapshot, for_create=for_create)
        return decision

    def _hour(self) -> int:
        return self._now_ns // _HOUR_NS % 24

    def _is_calm(self) -> bool:
        return self._state.pressed_since_s is None and not self._state.forcing

    def _key(self) -> Hashable:
        """Everything on which it depends whether a cycle without pressure removes segments."""
        log, reserved_s = self._pool.log, self._rules.reserved_s
        kept = tuple(segment.disk for segment in log.newest(KEPT_SEGMENTS)) if self._pool.is_shallow else ()
        is_expired = bool(
            reserved_s is not None
            and log.sealed
            and log.sealed[0].mtime_ns <= self._now_ns - round(reserved_s * _NS)
        )
        return self._pool.bands, kept, len(log) > KEPT_SEGMENTS, is_expired, self._hour() in self._rules.delete_when
