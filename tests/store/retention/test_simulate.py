"""How long a log lasts: known arithmetic, each rule at work, and the fast run equal to asking at every step."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention import Mode, RetentionRules, Rule, Trigger
from commitlogfs.store.retention.simulate import Scenario, simulate
from commitlogfs.store.retention.simulated_broker import BrokerRules, evaluate_pressure
from commitlogfs.store.retention.simulated_pool import PlannedDisk
from commitlogfs.store.retention.simulated_report import Actor
from commitlogfs.store.retention.statfs import DiskShare, compose
from commitlogfs.store.thresholds import Thresholds

SIZE = 1 << 20
"""Size of a segment."""
HOUR = 3600
DAY = 24 * HOUR
FOREVER_S = 1000 * DAY
KEEPS_ALL = BrokerRules(reserved_s=FOREVER_S)


def disks(*sizes: int, foreign: dict[int, int] | None = None, **options: Any) -> tuple[PlannedDisk, ...]:
    """Sizes and foreign data in segments; `foreign` by disk number. Half a segment more, so that no disk is at a
    whole percent exactly, where a broker does nothing yet and the rules do."""
    others = foreign or {}
    return tuple(
        PlannedDisk(f"/data{n}", size * SIZE + SIZE // 2, others.get(n, 0) * SIZE, **options)
        for n, size in enumerate(sizes, start=1)
    )


def by_age(hours: int, *delete_when: int, **options: Any) -> RetentionRules:
    return RetentionRules(
        mode=Mode.FILESYSTEM, reserved_s=hours * HOUR, delete_when=frozenset(delete_when), **options
    )


def scenario(
    *sizes: int, seconds_per_segment: int = 100, broker: BrokerRules = KEEPS_ALL, **options: Any
) -> Scenario:
    foreign = options.pop("foreign", None)
    planned = options.pop("planned", None) or disks(*sizes, foreign=foreign)
    return Scenario(planned, SIZE // seconds_per_segment, SIZE, broker=broker, **options)


# --- known arithmetic ---------------------------------------------------------------------------------------


def test_equal_disks_reach_each_level_together():
    report = simulate(scenario(1000, 1000), 3 * DAY)
    second = SIZE / (SIZE // 100) / 100  # a nominal one: the rate is a whole number of bytes
    # Disk 2 has its 751st segment, the first above 75 %, when the pool has 1502: two more than are full.
    assert report.disks[1].reached_s["clean"] == pytest.approx(1500 * 100 * second, rel=1e-6)
    assert report.reached_s["clean"] == report.disks[1].reached_s["clean"]
    assert report.reached_s["force"] == pytest.approx(1700 * 100 * second, rel=1e-6)
    assert "full" not in report.reached_s


def test_a_broker_keeps_a_full_log_within_a_batch_of_force():
    report = simulate(scenario(1000, 1000, 1000, 1000), 15 * DAY)
    assert set(report.removed) == {(Actor.BROKER, Rule.FORCE)}
    assert report.most_segments == pytest.approx(0.85 * 4000, abs=10)
    assert report.retention is not None
    expected_s = 0.85 * 4000 * 100
    assert report.retention.shortest_s == pytest.approx(expected_s, abs=15 * 100)
    assert report.retention.longest_s == pytest.approx(expected_s, abs=15 * 100)
    assert report.retention.shortest_s <= report.retention.median_s <= report.retention.longest_s
    assert report.steady_s == pytest.approx(expected_s, rel=0.02)
    assert report.refused_s == 0
    assert all(84 < disk.used_percent < 86 for disk in report.disks)


def test_the_filesystem_goes_from_force_down_to_resume():
    rules = by_age(FOREVER_S // HOUR, 4)
    report = simulate(scenario(1000, 1000, 1000, 1000, rules=rules), 15 * DAY)
    assert set(report.removed) == {(Actor.FILESYSTEM, Rule.FORCE)}
    assert report.retention is not None
    assert report.retention.shortest_s == pytest.approx(0.83 * 4000 * 100, abs=15 * 100)
    # It ends with the first disk below resume, and that one alone is written to first: it runs ahead of the others.
    assert 0.85 * 4000 * 100 < report.retention.longest_s < 0.88 * 4000 * 100
    assert report.youngest_removed_s == pytest.approx(report.retention.shortest_s, abs=2 * 100)
    assert "full" not in report.reached_s


def test_age_alone_keeps_reserved_to_reserved_and_a_day():
    report = simulate(scenario(100_000, rules=by_age(72, 4)), 14 * DAY)
    assert set(report.removed) == {(Actor.FILESYSTEM, Rule.AGE)}
    assert report.youngest_removed_s is None
    assert report.retention is not None
    assert report.first_removal_s == pytest.approx(76 * HOUR, abs=100)
    assert report.retention.shortest_s == pytest.approx(72 * HOUR, abs=200)
    assert report.retention.longest_s == pytest.approx((72 + 23) * HOUR, abs=200)


def test_a_broker_expires_in_its_hour_too():
    report = simulate(scenario(100_000, broker=BrokerRules()), 14 * DAY)
    assert set(report.removed) == {(Actor.BROKER, Rule.AGE)}
    assert report.first_removal_s == pytest.approx(76 * HOUR, abs=100)
    assert report.retention is not None
    assert report.retention.shortest_s == pytest.approx(72 * HOUR, abs=200)


def test_a_broker_that_cannot_keep_up_in_its_hour_expires_above_clean():
    """360 cycles of ten in the one hour, against 7200 new ones a day."""
    report = simulate(scenario(30_000, seconds_per_segment=12, broker=BrokerRules()), 5 * DAY)
    assert set(report.removed) == {(Actor.BROKER, Rule.AGE)}
    assert report.most_segments == pytest.approx(0.75 * 30_000, abs=10)


def test_nothing_is_removed_while_there_is_room():
    report = simulate(scenario(2000), DAY)
    assert report.removed == {}
    assert report.first_removal_s is None
    assert report.steady_s is None
    assert report.retention is None
    assert report.created == report.segments == report.most_segments


def test_a_broker_has_its_own_limits_for_what_it_removes():
    """Ten in ten seconds; six segments a second come in: full in the end, and messages are refused until force."""
    fast = Scenario(disks(2000), 6 * SIZE, SIZE, broker=KEEPS_ALL, rules=RetentionRules(mode=Mode.OFF))
    report = simulate(fast, HOUR)
    assert report.removed[Actor.BROKER, Rule.FORCE] > 1000
    assert report.reached_s["full"] == pytest.approx(2000 * 0.9 / 6 + 0.05 * 2000 / 6 * 0.2, rel=0.1)
    assert report.refused_s > 600
    assert report.disks[0].used_percent < 93


# --- unequal disks ------------------------------------------------------------------------------------------


def test_a_small_disk_is_skipped_and_the_others_continue():
    report = simulate(scenario(100, 1000, 1000), 2 * DAY)
    small, other, _ = report.disks
    assert small.reached_s["force"] == pytest.approx(85 * 3 * 100, rel=0.03)
    assert small.was_skipped
    assert not other.was_skipped or "force" in other.reached_s
    assert other.reached_s["clean"] == pytest.approx((85 + 2 * 750) * 100, rel=0.01)
    assert report.reached_s["clean"] == pytest.approx(other.reached_s["clean"], rel=0.01)


def test_with_any_a_small_disk_decides_for_the_whole_log():
    report = simulate(scenario(100, 1000, 1000, rules=RetentionRules(trigger=Trigger.ANY)), 10 * DAY)
    assert report.reached_s["force"] == report.disks[0].reached_s["force"]
    assert report.first_removal_s == pytest.approx(85 * 3 * 100, rel=0.05)
    assert report.disks[1].used_percent < 20


def test_foreign_data_has_no_say_and_costs_only_its_disk():
    report = simulate(scenario(1000, 1000, foreign={1: 950}), 5 * DAY)
    full, other = report.disks
    assert full.reached_s == {"clean": 0, "force": 0, "full": 0}
    assert full.segments == 0
    assert 84 < other.used_percent < 86
    assert report.refused_s == 0


def test_no_disk_takes_anything():
    report = simulate(scenario(1000, foreign={1: 950}), DAY)
    assert report.created == 0
    assert report.refused_creates == 1
    assert report.refused_s == DAY


def test_a_disk_with_a_larger_reserve_takes_less():
    planned = (
        PlannedDisk("/data1", 1000 * SIZE, thresholds=Thresholds(min_free_bytes=500 * SIZE)),
        PlannedDisk("/data2", 1000 * SIZE),
    )
    report = simulate(scenario(planned=planned), 5 * DAY)
    assert report.disks[0].used_percent <= 50
    assert report.disks[1].used_percent > 80


@pytest.mark.parametrize("placement", ["round-robin", "modulo", "weighted"])
def test_every_policy_fills_every_disk(placement):
    report = simulate(scenario(1000, 1000, 3000, placement=placement), 8 * DAY)
    assert all(83 < disk.used_percent < 90 for disk in report.disks)
    if placement == "weighted":
        assert report.disks[2].reached_s["clean"] == pytest.approx(report.disks[0].reached_s["clean"], rel=0.1)
    else:  # evenly until the small ones are at force, then all to the large one
        assert report.disks[2].reached_s["clean"] == pytest.approx((3 * 850 + 2250 - 850) * 100, rel=0.01)


# --- disks that come and go ---------------------------------------------------------------------------------


def changing(*changes: tuple[int, int | None], size: int = 1000) -> tuple[PlannedDisk, ...]:
    """Disks that are added, and drain, at these times."""
    return tuple(
        PlannedDisk(f"/data{n}", size * SIZE + SIZE // 2, added_s=added_s, drains_s=drains_s)
        for n, (added_s, drains_s) in enumerate(changes, start=1)
    )


def test_an_added_disk_lengthens_the_retention():
    report = simulate(scenario(planned=changing((0, None), (0, None), (10 * DAY, None))), 20 * DAY)
    (change,) = report.changes
    assert (change.number, change.at_s, change.drains, change.empty_s) == (3, 10 * DAY, False, None)
    assert change.before is not None
    assert change.before.median_s == pytest.approx(0.85 * 2000 * 100, rel=0.02)
    assert report.retention is not None
    assert report.retention.median_s == pytest.approx(0.85 * 3000 * 100, rel=0.05)
    assert "force" not in report.disks[0].reached_s or report.disks[2].reached_s["force"] > 10 * DAY


def test_an_added_disk_ends_that_messages_are_refused():
    planned = (PlannedDisk("/data1", 1000 * SIZE, 950 * SIZE), PlannedDisk("/data2", 1000 * SIZE, added_s=HOUR))
    report = simulate(scenario(planned=planned), DAY)
    assert report.refused_s == HOUR
    assert report.disks[1].segments == report.created > 800


def test_a_draining_disk_gets_nothing_and_is_empty_when_its_last_segment_is_gone():
    report = simulate(scenario(planned=changing((0, None), (0, None), (0, 10 * DAY))), 20 * DAY)
    (change,) = report.changes
    assert (change.number, change.at_s, change.drains) == (3, 10 * DAY, True)
    assert change.before is not None
    assert change.before.median_s == pytest.approx(0.85 * 3000 * 100, rel=0.02)
    # The other two hold nothing but newer segments then.
    assert change.empty_s is not None
    assert change.empty_s - change.at_s == pytest.approx(0.85 * 2000 * 100, rel=0.03)
    assert report.steady_s == change.empty_s
    assert report.retention is not None
    assert report.retention.median_s == pytest.approx(0.85 * 2000 * 100, rel=0.03)
    assert (report.disks[2].segments, report.disks[2].used_percent) == (0, 0)


def test_an_empty_disk_is_drained_at_once():
    report = simulate(scenario(planned=changing((0, None), (2 * DAY, 2 * DAY))), 3 * DAY)
    assert [(c.drains, c.empty_s, c.forecast_s) for c in report.changes] == [
        (False, None, None),
        (True, 2 * DAY, 0.0),
    ]
    assert report.disks[1].segments == 0


def test_a_disk_that_still_drains_at_the_end_leaves_no_steady_state():
    report = simulate(scenario(planned=changing((0, None), (0, 3 * DAY))), 3 * DAY + HOUR)
    assert report.changes[0].empty_s is None
    assert report.retention is None
    assert report.disks[1].segments > 0


def test_a_wave_brings_as_many_bytes_in_a_day():
    flat, wave = (simulate(scenario(4000, daily_wave=part), 2 * DAY) for part in (0.0, 0.5))
    assert wave.created == flat.created
    at_noon = simulate(scenario(4000, daily_wave=0.5), DAY // 4).created
    assert at_noon == pytest.approx((0.25 - 0.5 / 6.2832) * 864, abs=3)


PATTERNS = [
    # mean seconds per segment, daily wave, hours that the broker keeps, hours that fit below force, deleteWhen
    pytest.param(120, 0.0, 500, 100, {4}, id="space"),
    pytest.param(120, 0.3, 500, 100, {4}, id="space-wave"),
    pytest.param(60, 0.3, 500, 33, {4}, id="space-wave-33-hours"),
    pytest.param(20, 0.3, 500, 9, {4}, id="space-wave-9-hours"),
    pytest.param(120, 0.0, 72, 400, {4}, id="age"),
    pytest.param(120, 0.3, 72, 400, {4}, id="age-wave"),
    pytest.param(120, 0.3, 24, 200, {4, 16}, id="age-wave-one-day"),
    pytest.param(120, 0.3, 168, 800, set(range(24)), id="age-wave-one-week"),
    pytest.param(120, 0.0, 72, 110, {4}, id="age-above-clean"),
    pytest.param(120, 0.3, 72, 110, {4}, id="age-above-clean-wave"),
]


@pytest.mark.parametrize(("seconds", "wave", "reserved", "fits", "hours"), PATTERNS)
@pytest.mark.parametrize(
    "hour", [pytest.param(3, marks=pytest.mark.full), 13, pytest.param(20, marks=pytest.mark.full)]
)
def test_the_end_of_a_drain_by_expiry_is_forecast(seconds, wave, reserved, fits, hours, hour):
    """The daemon's forecast at the beginning of the drain, against the time at which the disk is empty."""
    count = 4
    size = round(fits * HOUR / seconds / 0.85 / count)
    began_s = max(3 * min(reserved, fits) // 24, 5) * DAY + hour * HOUR
    planned = changing(*[(0, None)] * (count - 1), (0, began_s), size=size)
    broker = BrokerRules(reserved_s=reserved * HOUR, delete_when=frozenset(hours))
    given_scenario = scenario(planned=planned, seconds_per_segment=seconds, broker=broker, daily_wave=wave)
    (change,) = simulate(given_scenario, began_s + 3 * min(reserved, fits) * HOUR + 2 * DAY).changes
    assert change.empty_s is not None
    assert change.forecast_s == pytest.approx(change.empty_s - change.at_s, rel=0.1)


# --- the run itself -----------------------------------------------------------------------------------------

POLICY_NAMES = st.sampled_from(["round-robin", "modulo", "weighted"])


@st.composite
def thresholds(draw):
    clean = draw(st.integers(20, 75))
    force = draw(st.integers(max(clean, 30), 85))
    full = draw(st.integers(max(force, 35), 90))
    resume = draw(st.integers(10, force - 1))
    return Thresholds(clean, force, full, resume, draw(st.sampled_from([0, 0, 3 * SIZE])))


@st.composite
def scenarios(draw):
    common = draw(thresholds())
    planned = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        size = draw(st.integers(4, 120))
        foreign = draw(st.sampled_from([0, 0, 0, size // 2, size * 9 // 10]))
        own = draw(st.one_of(st.just(common), st.just(common), thresholds()))
        weight = draw(st.sampled_from([1.0, 3.0]))
        planned.append(PlannedDisk(f"/data{number}", size * SIZE + number, foreign * SIZE, own, weight))
    for index in range(1, len(planned)):  # the first stays, so that there is always one
        added_s = draw(st.sampled_from([0, 0, 1000, 3000]))
        drains_s = draw(st.sampled_from([None, None, 3000, 5000]))
        planned[index] = replace(planned[index], added_s=added_s, drains_s=drains_s)
    mode, trigger = draw(st.sampled_from(list(Mode))), draw(st.sampled_from(list(Trigger)))
    hours = frozenset(draw(st.sets(st.integers(0, 23), min_size=1, max_size=3)))
    reserved_s = draw(st.sampled_from([600, HOUR, 5 * HOUR, 30 * HOUR]))
    ours = {"reserved_s": reserved_s, "delete_when": hours} if mode is Mode.FILESYSTEM else {}
    rules = RetentionRules(
        mode=mode,
        trigger=trigger,
        batch=draw(st.integers(1, 10)),
        interval_s=draw(st.sampled_from([5.0, 10.0, 17.0])),
        force_after_s=draw(st.sampled_from([0.0, 30.0])),
        **ours,
    )
    broker = BrokerRules(common, reserved_s, hours)
    seconds = draw(st.sampled_from([2, 7, 30, 100]))
    wave = draw(st.sampled_from([0.0, 0.0, 0.4]))
    return Scenario(tuple(planned), SIZE // seconds, SIZE, draw(POLICY_NAMES), rules, broker, wave)


@settings(max_examples=25)
@given(scenarios(), st.integers(600, 2 * HOUR))
def test_leaving_out_what_is_known_changes_nothing(given_scenario, duration_s):
    assert simulate(given_scenario, duration_s) == simulate(given_scenario, duration_s, stepped=True)


def test_expired_segments_stay_when_the_pressure_ends():
    """Two expired segments are planned together, and without the first one the small disk is below `clean`."""
    limits = Thresholds(clean=20, force=30, full=35, resume=10)
    disks = (PlannedDisk("/data1", 35 * SIZE, 0, limits), PlannedDisk("/data2", 4 * SIZE, 0, limits))
    ours = RetentionRules(
        mode=Mode.FILESYSTEM,
        trigger=Trigger.ALL,
        batch=2,
        interval_s=5.0,
        force_after_s=0.0,
        reserved_s=600,
        delete_when=frozenset({1}),
    )
    broker = BrokerRules(limits, 600, frozenset({1}))
    given_scenario = Scenario(disks, SIZE // 100, SIZE, "round-robin", ours, broker, 0.0)
    assert simulate(given_scenario, 1200) == simulate(given_scenario, 1200, stepped=True)


@pytest.mark.soak
@settings(max_examples=80)
@given(scenarios(), st.integers(HOUR, 6 * HOUR))
def test_leaving_out_what_is_known_changes_nothing_in_hours(given_scenario, duration_s):
    assert simulate(given_scenario, duration_s) == simulate(given_scenario, duration_s, stepped=True)


def test_equal_scenarios_have_equal_results():
    given_scenario = scenario(100, 300, placement="weighted")
    assert simulate(given_scenario, 3 * DAY) == simulate(given_scenario, 3 * DAY)


def test_each_day_is_told_once():
    days: list[int] = []
    simulate(scenario(1000), 3 * DAY, on_day=days.append)
    assert days == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"disks": ()},
        {"ingest_bytes_per_s": 0},
        {"segment_size": 0},
        {"disks": disks(10, foreign={1: 11})},
        {"disks": (PlannedDisk("/data1", 0),)},
        {"disks": changing((HOUR, None))},
        {"disks": changing((0, HOUR))},
        {"disks": changing((0, HOUR), (2 * HOUR, None))},
        {"disks": changing((0, None), (HOUR, 0))},
        {"daily_wave": 1.0},
    ],
    ids=[
        *("no-disk", "no-rate", "no-size", "more-foreign-than-disk", "empty-disk"),
        *("no-disk-at-first", "last-disk-drains", "none-for-an-hour", "drains-before-added", "whole-wave"),
    ],
)
def test_what_cannot_be_is_refused(change):
    with pytest.raises(ValueError, match=r"."):
        replace(scenario(10), **change)


@pytest.mark.parametrize(
    ("used", "judged"),
    [
        (7500, (0, 0, 0)),
        (7501, (1, 0, 0)),
        (8500, (1, 0, 0)),
        (8501, (1, 1, 0)),
        (9000, (1, 1, 0)),
        (9001, (1, 1, 1)),
    ],
)
def test_a_broker_rounds_up(used, judged):
    usage = DiskUsage(10_000 << 12, (10_000 - used) << 12, (10_000 - used) << 12)
    share = DiskShare(DiskState.RW, usage, used << 12, Thresholds())
    pressure = evaluate_pressure(compose((share,), Trigger.ALL), Thresholds())
    assert (pressure.cleans, pressure.forces, pressure.fills) == tuple(map(bool, judged))
    assert pressure.clears == (used <= 8500)
