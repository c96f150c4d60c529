"""Forced deletion by the rules alone: when it begins, what goes, and when it ends."""

from collections.abc import Callable
from typing import Any

import pytest
from support.simulated_disks import SIZE, SimulatedDisk, World, striped

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.eligibility import DiskView, evaluate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention import (
    AlertCode,
    Decision,
    EngineState,
    Mode,
    RefusedFacts,
    RetentionRules,
    Rule,
    Trigger,
    decide,
)
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds

COOPERATIVE = RetentionRules()
ANY = RetentionRules(trigger=Trigger.ANY)
BY_AGE = RetentionRules(mode=Mode.FILESYSTEM, reserved_s=72 * 3600, delete_when=frozenset({4}))
HOUR = 3600.0


class Engine:
    """The rules at work on a world."""

    def __init__(self, rules: RetentionRules, world: World) -> None:
        self.rules = rules
        self.world = world
        self.state = EngineState()

    def decide(self, *, for_create: bool = False) -> Decision:
        decision, self.state = decide(self.rules, self.state, self.world.snapshot(), for_create=for_create)
        return decision

    def planned(self, *, for_create: bool = False) -> list[int]:
        return [removal.segment.base_offset // SIZE for removal in self.decide(for_create=for_create).planned]

    def after(self, seconds: float, **options: Any) -> "Engine":
        self.world.pass_time(seconds, **options)
        return self

    def carry_out(self, limit: int = 1000, *, is_open: bool = False, for_create: bool = False) -> list[int]:
        """Remove until nothing is planned; the indexes of what went."""
        gone: list[int] = []
        while len(gone) < limit:
            planned = self.planned(for_create=for_create)
            if not planned:
                return gone
            assert planned[0] == self.world.first
            gone.append(self.world.first)
            self.world.remove_oldest(is_open=is_open)
        raise AssertionError("no end")

    def alerts(self) -> dict[AlertCode, str]:
        return {alert.code: alert.disk for alert in self.decide().alerts}


def two_disks(used_1: int, used_2: int, *, foreign: tuple[int, int] = (0, 0)) -> World:
    """Disks of 100 segments each; our own segments are striped as evenly as the figures allow."""
    counts = [used_1 - foreign[0], used_2 - foreign[1]]
    log = []
    while sum(counts):
        for number in (1, 2):
            if counts[number - 1]:
                counts[number - 1] -= 1
                log.append(number)
    return World([SimulatedDisk(100, foreign[0]), SimulatedDisk(100, foreign[1])], log)


def test_nothing_below_force():
    engine = Engine(COOPERATIVE, two_disks(84, 84))
    assert engine.planned() == []
    assert engine.after(1000).planned() == []
    assert engine.decide().force_in_s is None


def test_the_pressure_must_have_held_for_force_after():
    engine = Engine(COOPERATIVE, two_disks(85, 85))
    assert engine.planned() == []
    assert engine.decide().force_in_s == 30
    assert engine.after(29.9).planned() == []
    assert engine.after(0.1).planned() == [0, 1, 2, 3, 4]  # disk 1: 85 -> 82 with 0, 2, 4
    assert engine.decide().force_in_s == 0


def test_a_broker_that_deletes_in_time_is_left_alone():
    engine = Engine(COOPERATIVE, two_disks(85, 85))
    for _ in range(20):
        assert engine.after(20).planned() == []
        removed = [engine.world.remove_oldest(), engine.world.remove_oldest()]
        assert engine.planned() == []
        engine.world.log += removed


def test_all_means_that_one_disk_below_force_is_enough():
    engine = Engine(COOPERATIVE, two_disks(95, 84))
    engine.planned()
    assert engine.after(100).planned() == []
    assert Engine(ANY, engine.world).planned() == []


def test_any_means_that_one_disk_at_force_is_too_much():
    engine = Engine(ANY, two_disks(86, 40))
    engine.planned()
    gone = engine.after(30).carry_out()
    assert engine.world.used(1) == 82
    assert len(gone) == 7  # four of disk 1, and what lay between


def test_any_brings_down_only_those_that_were_at_force():
    world = World([SimulatedDisk(100), SimulatedDisk(100)], [1] * 86 + [2] * 84)
    engine = Engine(ANY, world)
    engine.planned()
    assert engine.after(30).carry_out() == [0, 1, 2, 3]


def test_removal_ends_below_resume_and_begins_again_only_at_force():
    engine = Engine(COOPERATIVE, two_disks(86, 86))
    engine.planned()
    engine.after(30).carry_out()
    assert min(engine.world.used(1), engine.world.used(2)) == 82
    engine.world.log += striped(2, 2) * 1  # 83, 84: between resume and force
    assert engine.after(1000).planned() == []
    assert engine.after(1000).planned() == []


@pytest.mark.parametrize("rules", [COOPERATIVE, ANY], ids=["all", "any"])
def test_the_newest_three_stay(rules):
    """Whatever it takes: here the goal cannot be reached without them, so nothing goes."""
    world = World([SimulatedDisk(4)], [1, 1, 1, 1])
    engine = Engine(rules, world)
    engine.planned()
    assert engine.after(30).carry_out() == [0]  # 4 of 4 used -> 3 of 4, below 83 %
    world = World([SimulatedDisk(3, foreign=0)], [1, 1, 1])
    engine = Engine(rules, world)
    engine.planned()
    assert engine.after(30).planned() == []
    assert AlertCode.FOREIGN_DATA in engine.alerts()


def test_the_newest_three_stay_though_only_they_would_free_space():
    world = World([SimulatedDisk(100)], [1] * 85)
    world.linked = set(range(82))
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned() == []
    world.linked = set(range(79))
    assert engine.planned() == list(range(82))


def test_foreign_data_on_one_disk_does_not_empty_the_log():
    world = two_disks(95, 60, foreign=(90, 0))
    for rules in (COOPERATIVE, ANY):
        engine = Engine(rules, world)
        engine.planned()
        assert engine.after(1000).planned() == []
        assert engine.alerts() == {AlertCode.FOREIGN_DATA: "/data1"}


def test_any_cures_what_it_can():
    """Disk 1 is beyond cure, disk 2 is not."""
    engine = Engine(ANY, two_disks(95, 90, foreign=(90, 0)))
    engine.planned()
    engine.after(30).carry_out()
    assert engine.world.used(2) == 82
    assert engine.alerts() == {AlertCode.FOREIGN_DATA: "/data1"}


def test_foreign_data_everywhere_deletes_nothing():
    for rules in (COOPERATIVE, ANY):
        engine = Engine(rules, two_disks(98, 98, foreign=(95, 95)))
        engine.planned()
        assert engine.after(1000).planned() == []
        assert engine.planned(for_create=True) == []
        assert AlertCode.ALL_FULL in engine.alerts()


def test_a_create_that_finds_all_disks_full_does_not_wait():
    engine = Engine(COOPERATIVE, two_disks(91, 92))
    assert engine.planned() == []
    gone = engine.carry_out(for_create=True)
    assert engine.world.used(1) == 89
    assert gone == [0, 1, 2]
    assert {removal.rule for removal in engine.decide(for_create=True).planned} == set()


def test_a_create_needs_room_for_a_segment_and_min_free():
    disk = SimulatedDisk(100, thresholds=Thresholds(min_free_bytes=20 * SIZE))
    engine = Engine(COOPERATIVE, World([disk], [1] * 84))
    engine.carry_out(for_create=True)
    assert engine.world.used(1) == 79


def min_free_and_held(count: int) -> Engine:
    """80 of 100 used where 20 are to stay free; `count` of them are removed, and held open."""
    disk = SimulatedDisk(100, thresholds=Thresholds(min_free_bytes=20 * SIZE))
    world = World([disk], [1] * 80)
    for _ in range(count):
        world.remove_oldest(is_open=True)
    return Engine(COOPERATIVE, world)


def test_a_create_that_waits_for_a_reader_of_a_few_gets_room_elsewhere():
    for count in (1, 2):
        engine = min_free_and_held(count)
        assert engine.carry_out(for_create=True) == [count]
        view = DiskView(DiskNumber(1), DiskState.RW, *seen(engine))
        assert evaluate((view,), SIZE, frozenset()).eligible == (1,), "and the create has it"


def test_a_create_that_waits_for_a_reader_of_everything_costs_no_more_than_a_few():
    engine = min_free_and_held(1)
    assert engine.carry_out(for_create=True, is_open=True) == [1, 2]
    assert {AlertCode.HELD_OPEN, AlertCode.ALL_FULL} <= set(engine.alerts())


def seen(engine: Engine) -> tuple[DiskUsage | None, Thresholds, bool, int]:
    (disk,) = engine.world.snapshot().disks
    return disk.usage, disk.thresholds, False, disk.pending_bytes


def test_removed_but_open_segments_count_as_free_and_start_no_cascade():
    engine = Engine(COOPERATIVE, two_disks(86, 86))
    engine.planned()
    gone = engine.after(30).carry_out(is_open=True)
    assert len(gone) == 7
    assert engine.world.used(1) == 86  # nothing is free yet
    assert engine.after(1000).planned() == []
    assert engine.planned(for_create=True) == []


def test_a_disk_that_hangs_ends_the_prefix():
    """Removing later segments would leave a gap, so none is removed; an alert reports it."""
    world = two_disks(90, 90)
    world.disks[0].answers = False
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned() == []
    assert AlertCode.NOT_RECLAIMING in engine.alerts()


def test_segments_of_a_lost_disk_are_absent_already():
    world = two_disks(90, 90)
    world.disks[0].state = DiskState.FAILED
    world.disks[0].is_lost = True
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned() == [1, 3, 5, 7, 9, 11, 13, 15]
    (told,) = [alert for alert in engine.decide().alerts if alert.code is AlertCode.DISK_FAILED]
    assert (told.disk, "absent" in told.text) == ("/data1", True)


@pytest.mark.parametrize("for_create", [False, True], ids=["force", "full"])
@pytest.mark.parametrize(("state", "is_troubled"), [(DiskState.FAILED, False), (DiskState.RO, True)])
def test_a_disk_that_fails_or_is_read_only_ends_the_prefix(state, is_troubled, for_create):
    """Its segments are served, so that later ones must not go before them."""
    world = two_disks(92, 92)
    world.disks[0].state, world.disks[0].is_troubled = state, is_troubled
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned(for_create=for_create) == []
    assert engine.alerts()[AlertCode.STUCK] == "/data1"


def test_a_suspected_disk_keeps_its_say():
    """A hiccup of a disk with much room is no reason to empty a small one."""
    world = two_disks(90, 40)
    world.disks[1].is_troubled = True
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned() == []


def test_a_removal_that_failed_is_told_and_tried_again():
    world = two_disks(90, 90)
    world.refused = RefusedFacts(BaseOffset(0), DiskNumber(1), "EPERM: not permitted")
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned()[0] == 0
    (told,) = [alert for alert in engine.decide().alerts if alert.code is AlertCode.STUCK]
    assert (told.disk, "EPERM" in told.text, "0" * 20 in told.text) == ("/data1", True, True)


@pytest.mark.parametrize("for_create", [False, True], ids=["force", "full"])
def test_nothing_goes_for_a_disk_where_removals_give_nothing(for_create):
    world = two_disks(92, 92)
    for disk in world.disks:
        disk.reclaims_nothing = True
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned(for_create=for_create) == []
    assert [(alert.code, alert.disk) for alert in engine.decide().alerts[:2]] == [
        (AlertCode.NOT_RECLAIMING, "/data1"),
        (AlertCode.NOT_RECLAIMING, "/data2"),
    ]
    world.disks[1].reclaims_nothing = False
    engine.planned()
    engine.after(30)
    # Three, or ten, of disk 2, and what lies between.
    assert engine.planned(for_create=for_create) == list(range(6 if for_create else 20))


def test_segments_that_free_nothing_are_not_counted_on():
    """The older half has other names, so it only goes where the rest is enough."""
    world = two_disks(90, 90)
    world.linked = set(range(90))
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert len(engine.after(30).planned()) == 90 + 15
    world.linked = set(range(180))
    assert engine.planned() == []
    assert AlertCode.NOT_RECLAIMING in engine.alerts()


def test_a_cordoned_disk_has_no_say_but_its_segments_go():
    world = two_disks(90, 90)
    world.disks[0].state = DiskState.RO
    engine = Engine(COOPERATIVE, world)
    engine.planned()
    assert engine.after(30).planned() == list(range(16))


def test_no_writable_disk_is_reported():
    world = two_disks(90, 90)
    for disk in world.disks:
        disk.state = DiskState.RO
    assert Engine(COOPERATIVE, world).alerts() == {AlertCode.NO_WRITABLE_DISK: ""}


def test_a_disk_too_small_for_a_segment_is_reported():
    world = World([SimulatedDisk(1), SimulatedDisk(100)], [2])
    assert Engine(COOPERATIVE, world).alerts() == {AlertCode.DISK_TOO_SMALL: "/data1"}


def test_off_deletes_nothing():
    engine = Engine(RetentionRules(mode=Mode.OFF), two_disks(95, 95))
    engine.planned()
    assert engine.after(1000).planned() == []
    assert engine.planned(for_create=True) == []
    assert AlertCode.ALL_FULL in engine.alerts()


# --- age -----------------------------------------------------------------------------------------------------


def aged(*hours: float) -> World:
    """One disk, half empty, with segments of these ages and three young ones."""
    ages = {index: hour * HOUR if hour > 0 else hour for index, hour in enumerate(hours)}
    return World([SimulatedDisk(100)], [1] * (len(hours) + 3), ages_s=ages)


def test_expired_segments_go_in_the_hour_for_it():
    engine = Engine(BY_AGE, aged(100, 90, 80, 50, 40))
    assert engine.planned() == []
    engine.world.pass_time(0, hour=4)
    assert engine.carry_out() == [0, 1, 2]
    assert {removal.rule for removal in Engine(BY_AGE, aged(100)).after(0, hour=4).decide().planned} == {Rule.AGE}


def test_expired_segments_go_at_once_above_clean():
    world = aged(100, 90, 50)
    world.disks[0].size = 7  # 6 of 7 used: 86 %
    engine = Engine(BY_AGE, world)
    assert engine.carry_out() == [0]  # 5 of 7: 71 %, so the next waits for its hour


def test_only_a_prefix_expires():
    assert Engine(BY_AGE, aged(100, 10, 100)).after(0, hour=4).planned() == [0]
    assert Engine(BY_AGE, aged(10, 100, 100)).after(0, hour=4).planned() == []


def test_the_newest_three_do_not_expire():
    world = World([SimulatedDisk(100)], [1] * 5, ages_s=dict.fromkeys(range(5), 100 * HOUR))
    assert Engine(BY_AGE, world).after(0, hour=4).carry_out() == [0, 1]


@pytest.mark.parametrize("age", [-1, -5 * HOUR], ids=["no mtime", "no mtime either"])
def test_without_a_believable_age_nothing_expires(age):
    engine = Engine(BY_AGE, aged(age, 100, 100)).after(0, hour=4)
    assert engine.planned() == []
    assert AlertCode.AGE_UNKNOWN in engine.alerts()


def test_an_mtime_in_the_future_is_not_expired():
    world = aged(100, 100)
    world.pass_time(-200 * HOUR)
    engine = Engine(BY_AGE, world).after(0, hour=4)
    assert engine.planned() == []
    assert AlertCode.AGE_UNKNOWN in engine.alerts()


def test_no_more_than_a_batch_is_checked():
    assert Engine(BY_AGE, aged(*[100] * 50)).after(0, hour=4).planned() == list(range(10))


@pytest.mark.parametrize("jump_s", [400 * 24 * HOUR, -61.0, 61.0])
def test_while_the_clocks_disagree_nothing_expires(jump_s):
    engine = Engine(BY_AGE, aged(100, 50, 50))
    engine.planned()
    engine.after(10, hour=4, wall_jump_s=jump_s)
    assert engine.planned() == []
    assert AlertCode.CLOCK_JUMPED in engine.alerts()
    engine.after(10, wall_jump_s=-jump_s)
    assert engine.planned() == [0]
    assert AlertCode.CLOCK_JUMPED not in engine.alerts()


def test_summer_time_repeats_or_leaves_out_an_hour_and_nothing_else():
    engine = Engine(BY_AGE, aged(100, 50, 50))
    engine.planned()
    for hour in (2, 2, 3, 5):
        assert engine.after(HOUR, hour=hour).planned() == []
    assert engine.after(HOUR, hour=4).planned() == [0]


# --- punch ---------------------------------------------------------------------------------------------------


def full_and_held(grace_s: float = 0.0) -> Engine:
    """All that force could remove is removed, and still open."""
    world = two_disks(92, 92)
    for _ in range(6):
        world.remove_oldest(is_open=True)
    return Engine(RetentionRules(grace_s=grace_s), world)


def punch_all(engine: Engine) -> list[int]:
    punched = []
    while (held := engine.decide().punch) is not None:
        punched.append(held.base_offset // SIZE)
        engine.world.punched.add(punched[-1])
    return punched


def test_punched_only_when_all_disks_are_full_and_only_as_far_as_needed():
    engine = full_and_held()
    assert punch_all(engine) == [0, 1, 2, 3, 4]  # disk 1: 92 -> 89 with 0, 2, 4
    engine = full_and_held()
    engine.world.disks[1].size = 110
    assert punch_all(engine) == []


def test_punched_only_after_its_grace():
    engine = full_and_held(grace_s=120)
    assert engine.after(119).decide().punch is None
    assert engine.after(1).decide().punch is not None


def test_not_punched_where_it_is_not_wanted_or_would_not_help():
    engine = full_and_held()
    engine.rules = RetentionRules(grace_s=0, punch=False)
    assert engine.decide().punch is None
    engine = full_and_held()
    engine.world.held = {0: (1, 0.0)}
    engine.world.disks[0].foreign += 3
    engine.world.disks[1].foreign += 3
    assert engine.decide().punch is None
    assert AlertCode.HELD_OPEN in engine.alerts()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetentionRules(mode=Mode.FILESYSTEM),
        lambda: RetentionRules(reserved_s=1.0),
        lambda: RetentionRules(batch=0),
        lambda: RetentionRules(mode=Mode.FILESYSTEM, reserved_s=1.0, delete_when=frozenset({24})),
    ],
)
def test_rules_that_contradict_each_other(make: Callable[[], RetentionRules]):
    with pytest.raises(ValueError, match=r"mode|batch|hours"):
        make()
