"""Forced deletion over random histories: what must never happen does not."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.simulated_disks import SIZE, SimulatedDisk, World, with_free

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.retention import (
    KEPT_SEGMENTS,
    EngineState,
    Mode,
    PlannedRemoval,
    RetentionRules,
    Rule,
    Snapshot,
    Trigger,
    decide,
)

MOST_HISTORIES = 100
STEPS = 40

triggers = st.sampled_from(Trigger)
rules = st.one_of(
    st.builds(RetentionRules, trigger=triggers, force_after_s=st.sampled_from([0.0, 30.0]), punch=st.booleans()),
    st.builds(
        RetentionRules,
        mode=st.just(Mode.FILESYSTEM),
        trigger=triggers,
        reserved_s=st.sampled_from([60.0, 3600.0]),
        delete_when=st.sampled_from([frozenset({4}), frozenset(range(24))]),
    ),
    st.just(RetentionRules(mode=Mode.OFF)),
)
states = st.sampled_from([*DiskState, *[DiskState.RW] * 8])
disks = st.builds(SimulatedDisk, st.integers(5, 40), st.integers(0, 12))


def is_prefix(planned: tuple[PlannedRemoval, ...], snapshot: Snapshot) -> bool:
    """The oldest existing segments; those on a lost disk are skipped. No other segment is skipped, whatever the
    states of the disks: it may be served, and removing a later one would leave a gap."""
    gone = {disk.number for disk in snapshot.disks if disk.is_lost}
    expected = [segment for segment in snapshot.log if segment.disk not in gone]
    return [removal.segment for removal in planned] == expected[: len(planned)]


def can_go(planned: tuple[PlannedRemoval, ...], snapshot: Snapshot) -> bool:
    """None lies on a disk that is known not to let go of it."""
    closed = {
        disk.number
        for disk in snapshot.disks
        if disk.is_troubled or disk.measured is None or disk.state in (DiskState.FAILED, DiskState.OFFLINE)
    }
    return not closed & {removal.segment.disk for removal in planned}


class Histories(RuleBasedStateMachine):
    """A writer, foreign data, readers and disks in trouble, and the engine in their midst."""

    @initialize(rules=rules, disks=st.lists(disks, min_size=1, max_size=4), fill=st.integers(0, 100))
    def begin(self, rules: RetentionRules, disks: list[SimulatedDisk], fill: int) -> None:
        self.rules: RetentionRules = rules  # type: ignore[assignment]  # of the base class: a list of methods
        self.state = EngineState()
        self.world = World(disks, [])
        self.write(fill, 0)

    @rule(count=st.integers(1, 12), start=st.integers(0, 3))
    def write(self, count: int, start: int) -> None:
        """Wherever there is room."""
        for index in range(count):
            order = [(start + index + k) % len(self.world.disks) + 1 for k in range(len(self.world.disks))]
            fitting = [n for n in order if self.world.used(n) < self.world.disks[n - 1].size]
            if fitting:
                self.world.log.append(fitting[0])

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0, 4000.0]), hour=st.integers(0, 23))
    def pass_time(self, seconds: float, hour: int) -> None:
        self.world.pass_time(seconds, hour=hour)

    @rule(jump=st.sampled_from([-1e6, 1e6, 5.0]))
    def jump(self, jump: float) -> None:
        self.world.pass_time(0, wall_jump_s=jump)

    @rule(number=st.integers(1, 4), foreign=st.integers(0, 40))
    def change_foreign_data(self, number: int, foreign: int) -> None:
        number = min(number, len(self.world.disks))
        disk = self.world.disks[number - 1]
        disk.foreign = min(foreign, disk.size - (self.world.used(number) - disk.foreign))

    @rule(number=st.integers(1, 4), state=states, answers=st.sampled_from([True, True, True, False]))
    def change_state(self, number: int, state: DiskState, answers: bool) -> None:
        disk = self.world.disks[min(number, len(self.world.disks)) - 1]
        disk.state, disk.answers = state, answers

    @rule(number=st.integers(1, 4), troubled=st.booleans(), lost=st.booleans(), not_reclaiming=st.booleans())
    def change_health(self, number: int, troubled: bool, lost: bool, not_reclaiming: bool) -> None:
        disk = self.world.disks[min(number, len(self.world.disks)) - 1]
        disk.is_troubled, disk.is_lost, disk.reclaims_nothing = troubled, lost, not_reclaiming

    @rule()
    def close_all(self) -> None:
        self.world.held.clear()
        self.world.punched.clear()

    @precondition(lambda self: len(self.world.log) > KEPT_SEGMENTS)
    @rule()
    def delete_as_a_broker(self) -> None:
        self.world.remove_oldest()

    @rule(is_open=st.booleans(), for_create=st.booleans(), limit=st.integers(1, 10))
    def cycle(self, is_open: bool, for_create: bool, limit: int) -> None:
        before = len(self.world.log)
        for _ in range(limit):
            snapshot = self.world.snapshot()
            decision, state = decide(self.rules, self.state, snapshot, for_create=for_create)
            assert (decision, state) == decide(self.rules, self.state, snapshot, for_create=for_create)
            self.state = state
            self.check(decision.planned, snapshot)
            if not decision.planned:
                if decision.punch is not None:
                    assert self.rules.punch
                    self.world.punched.add(decision.punch.base_offset // SIZE)
                    assert all(d.measured and d.measured.is_at_or_above(90) for d in snapshot.writable())
                break
            if decision.planned[0].segment.base_offset != self.world.first * SIZE:
                break  # on a lost disk lies something older, which this world cannot pass over
            self.world.remove_oldest(is_open=is_open)
        assert len(self.world.log) >= min(before, KEPT_SEGMENTS)

    def check(self, planned: tuple[PlannedRemoval, ...], snapshot: Snapshot) -> None:
        assert is_prefix(planned, snapshot)
        assert can_go(planned, snapshot)
        assert len(planned) <= max(0, len(snapshot.log) - KEPT_SEGMENTS)
        if not planned:
            return
        assert self.rules.mode is not Mode.OFF
        (which,) = {removal.rule for removal in planned}
        assert all(removal.reason for removal in planned)
        if which is Rule.AGE:
            assert self.rules.mode is Mode.FILESYSTEM
            assert len(planned) <= self.rules.batch
            return
        # Not one more than needed, and enough.
        assert not self.is_reached(which, planned[:-1], snapshot)
        assert self.is_reached(which, planned, snapshot)

    def is_reached(self, which: Rule, planned: tuple[PlannedRemoval, ...], snapshot: Snapshot) -> bool:
        left = {}
        for disk in snapshot.writable():
            freed = sum(
                removal.segment.allocated_bytes
                for removal in planned
                if removal.segment.disk == disk.number and not disk.reclaims_nothing
            )
            assert disk.usage is not None
            left[disk.number] = (disk.usage.with_pending_free(freed), disk.thresholds)
        if which is Rule.FULL:
            pending = {disk.number: disk.pending_bytes for disk in snapshot.disks}
            return any(
                u.available_bytes >= SIZE
                and not u.is_at_or_above(t.full)
                and (not 0 < pending[n] <= 2 * SIZE or u.available_bytes - pending[n] >= 2 * SIZE)
                for n, (u, t) in left.items()
            )
        if self.rules.trigger is Trigger.ALL:
            return any(not u.is_at_or_above(t.resume) for u, t in left.values())
        return all(not left[n][0].is_at_or_above(left[n][1].resume) for n in self.state.forcing if n in left)

    @invariant()
    def a_cycle_ends(self) -> None:
        """Without a limit, and with everything at its worst."""
        if not hasattr(self, "rules"):
            return
        world, state = self.world, self.state
        log, first, held = list(world.log), world.first, dict(world.held)
        for _ in range(len(log) + 1):
            decision, state = decide(self.rules, state, world.snapshot(), for_create=True)
            if not decision.planned or decision.planned[0].segment.base_offset != world.first * SIZE:
                break
            world.remove_oldest(is_open=True)
        else:
            raise AssertionError("more removals than segments")
        world.log, world.first, world.held = log, first, held


TestHistories: Any = Histories.TestCase
TestHistories.settings = settings(max_examples=MOST_HISTORIES, stateful_step_count=STEPS)


def filled(sizes: list[int], fill: float) -> World:
    """Disks that segments alone fill, round robin."""
    world = World([SimulatedDisk(size) for size in sizes], [])
    for index in range(round(sum(sizes) * fill)):
        number = index % len(sizes) + 1
        if world.used(number) < sizes[number - 1]:
            world.log.append(number)
    return world


sizes = st.lists(st.integers(5, 40), min_size=1, max_size=3)


@given(trigger=triggers, sizes=sizes, fill=st.floats(0.8, 1.0))
def test_force_removes_exactly_as_much_as_is_needed(trigger: Trigger, sizes: list[int], fill: float) -> None:
    world = filled(sizes, fill)
    rules = RetentionRules(trigger=trigger)
    pressed = EngineState(pressed_since_s=world.now.steady_s - 1000)
    was_above = {n for n, size in enumerate(sizes, 1) if world.used(n) * 100 >= 85 * size}
    decision, state = decide(rules, pressed, world.snapshot())
    left = {n: world.used(n) for n in range(1, len(sizes) + 1)}

    def is_reached() -> bool:
        below = {n for n, size in enumerate(sizes, 1) if left[n] * 100 < 83 * size}
        return bool(below) if trigger is Trigger.ALL else was_above <= below

    for index, removal in enumerate(decision.planned):
        assert removal.rule is Rule.FORCE
        assert not is_reached(), index
        left[removal.segment.disk] -= 1
    if decision.planned:
        assert is_reached()
        assert state.forcing
    else:
        met = len(was_above) == len(sizes) if trigger is Trigger.ALL else bool(was_above)
        assert not met or len(world.log) <= 2 * KEPT_SEGMENTS or is_reached()


@given(
    rules=rules,
    sizes=sizes,
    fill=st.floats(0.3, 1.0),
    more=st.integers(1, 20),
    which=st.integers(1, 3),
    for_create=st.booleans(),
)
def test_more_free_space_never_deletes_more(
    rules: RetentionRules, sizes: list[int], fill: float, more: int, which: int, for_create: bool
) -> None:
    """If only segments fill the disks; with foreign data, more space may make a removal useful that was not."""
    world = filled(sizes, fill)
    assume(len(world.log) > 2 * KEPT_SEGMENTS)
    snapshot = world.snapshot()
    state = EngineState(pressed_since_s=snapshot.moment.steady_s - 1000)
    planned = len(decide(rules, state, snapshot, for_create=for_create)[0].planned)
    roomier = with_free(snapshot, min(which, len(sizes)), more * SIZE)
    assert len(decide(rules, state, roomier, for_create=for_create)[0].planned) <= planned
