import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.forecast import (
    WINDOW_S,
    Expiry,
    Growth,
    Removals,
    WriteHistory,
    next_threshold,
    seconds_until_expired,
)
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

SIZE = 1 << 30
HOUR_S = 3600
DEFAULTS = Thresholds()
BEGAN = 1_700_000_000.0
"""Wall time at steady time 0."""


def measured(*samples: tuple[float, int]) -> Growth:
    """A log that was found written up to an offset at these steady times, changed at the very moment if it grew."""
    growth, changed_s, last = Growth(), BEGAN, None
    for steady_s, written_to in samples:
        if written_to != last:
            changed_s, last = BEGAN + steady_s, written_to
        growth.record(steady_s, BEGAN + steady_s, written_to, changed_s)
    return growth


def rate(growth: Growth, steady_s: float) -> float:
    return growth.bytes_per_second(steady_s, BEGAN + steady_s)


def test_the_rate_is_what_was_written_over_the_time():
    growth = measured(*((10.0 * n, SIZE + 2_100_000 * 10 * n) for n in range(4)))
    assert rate(growth, 31) == pytest.approx(2_100_000)
    assert growth.written_to == SIZE + 63_000_000
    assert growth.idle_since(BEGAN + 31) is None


def test_one_measurement_is_no_rate():
    assert rate(measured((0, SIZE)), 5) == 0.0
    assert rate(measured((0, SIZE), (0.1, 2 * SIZE)), 1) == 0.0, "too close together"


def test_what_is_older_than_the_window_does_not_count():
    fast = [(10.0 * n, SIZE * n) for n in range(10)]
    slow = [(90.0 + 10 * n, SIZE * 9 + 1000 * n) for n in range(1, 20)]
    growth = measured(*fast, *slow)
    assert rate(growth, 280) == pytest.approx(100)


def test_a_log_that_stopped_is_idle_after_half_a_minute():
    growth = measured((0, 0), (10, 1000), (20, 2000), (30, 2000), (40, 2000))
    assert growth.idle_since(BEGAN + 49) is None
    assert rate(growth, 49) > 0
    assert growth.idle_since(BEGAN + 50) == BEGAN + 20
    assert rate(growth, 50) == 0.0


def test_a_pause_is_no_part_of_the_rate_after_it():
    growth = measured((0, 0), (10, 1000), (20, 1000), (100, 1000), (110, 6000))
    assert growth.idle_since(BEGAN + 110) is None
    assert rate(growth, 110) == 500


def test_a_fresh_daemon_knows_an_idle_log_by_its_file():
    growth = Growth()
    growth.record(5.0, BEGAN + 5, SIZE, BEGAN - 600)
    assert growth.idle_since(BEGAN + 5) == BEGAN - 600


@pytest.mark.parametrize("changed_s", [0.0, -1.0, BEGAN + 10**6])
def test_a_time_of_change_that_cannot_be_is_not_believed(changed_s):
    growth = Growth()
    growth.record(5.0, BEGAN + 5, SIZE, changed_s)
    assert growth.idle_since(BEGAN + 100) is None


def test_a_log_that_was_cut_is_measured_anew():
    growth = measured((0, 0), (10, 10_000), (20, 5_000), (30, 6_000))
    assert rate(growth, 30) == 100


def test_measurements_that_ended_long_ago_give_no_rate():
    growth = measured((0, 0), (10, 1000))
    growth.record(20.0, BEGAN + 20, 2000, BEGAN + 10**6)
    assert rate(growth, 20 + WINDOW_S + 1) == 0.0


def usage(used: int, entire: int) -> DiskUsage:
    return DiskUsage(entire, entire - used, entire - used)


@pytest.mark.parametrize(
    ("percent", "name"),
    [
        (0, "clean"),
        (74, "clean"),
        (75, "force"),
        (84, "force"),
        (85, "full"),
        (89, "full"),
        (90, None),
        (100, None),
    ],
)
def test_the_next_threshold_is_the_lowest_not_reached(percent, name):
    found = next_threshold(usage(percent, 100), DEFAULTS, 0.0)
    assert (found.name if found else None) == name


def test_the_time_left_follows_the_rate():
    found = next_threshold(usage(700, 1000), DEFAULTS, 5.0)
    assert found is not None
    assert (found.name, found.percent, found.missing_bytes, found.eta_seconds) == ("clean", 75, 50, 10.0)
    still = next_threshold(usage(700, 1000), DEFAULTS, 0.0)
    assert still is not None
    assert still.eta_seconds is None


@given(st.integers(1, 10**15), st.data())
def test_writing_what_is_missing_reaches_the_threshold_and_one_byte_less_does_not(entire, data):
    used = data.draw(st.integers(0, entire))
    found = next_threshold(usage(used, entire), DEFAULTS, 1.0)
    if found is None:
        assert usage(used, entire).is_at_or_above(DEFAULTS.full)
        return
    assert found.missing_bytes > 0
    assert usage(used + found.missing_bytes, entire).is_at_or_above(found.percent)
    assert not usage(used + found.missing_bytes - 1, entire).is_at_or_above(found.percent)


def history(*ends: tuple[float, int]) -> WriteHistory:
    """`ends`: hours, and log offsets."""
    return WriteHistory(len(ends), lambda index: (ends[index][0] * HOUR_S, ends[index][1]))


def test_the_latest_whole_days_repeat():
    """A day with one byte in its first half and 9 in its second, after one that does not count."""
    written = history((0, 0), (20, 100), (24, 100), (36, 101), (48, 110), (50, 112))
    assert written.seconds_to_write(0, 50 * HOUR_S) == 0
    # The latest two days begin at hour 2.
    assert written.seconds_to_write(90, 50 * HOUR_S) == pytest.approx(18 * HOUR_S, rel=0.01)
    assert written.seconds_to_write(102 + 90, 50 * HOUR_S) == pytest.approx((48 + 18) * HOUR_S, rel=0.01)


@pytest.mark.parametrize(
    "written", [history(), history((1, 10)), history((2, 10), (24, 20)), history((0, 10), (40, 10))]
)
def test_without_a_day_of_writes_nothing_repeats(written):
    assert written.seconds_to_write(5, 25 * HOUR_S) is None


def removed(*ages: tuple[float, float]) -> Removals:
    """Pairs of hours: when a segment was changed last, and its age at its removal."""
    found = Removals()
    for index, (changed_h, age_h) in enumerate(ages):
        found.record(changed_h * HOUR_S, (changed_h + age_h) * HOUR_S, index)
    return found


def test_a_segment_lives_as_long_as_one_of_the_same_time_of_the_day():
    lifetimes = removed((1, 80), (9, 72), (17, 88), (25, 80))
    for changed_h, age_h in ((73, 80), (33, 72), (81, 72), (88, 88)):
        assert lifetimes.lifetime(changed_h * HOUR_S) == age_h * HOUR_S
    assert lifetimes.shortest_lifetime() == 72 * HOUR_S


def test_before_a_whole_day_of_removals_the_latest_counts():
    assert removed().lifetime(0) is None
    assert removed().shortest_lifetime() is None
    assert removed((1, 80), (2, 79)).lifetime(9 * HOUR_S) == 79 * HOUR_S


def test_removed_segments_belong_to_the_history():
    found = removed((0, 10), (24, 10)).history(2, lambda index: ((30 + index * 10) * HOUR_S, 2 + index * 100))
    assert found.seconds_to_write(1, 40 * HOUR_S) is not None


def test_removals_of_more_than_a_day_are_not_kept():
    found = Removals()
    for second in range(0, 3 * 24 * HOUR_S, 10):
        found.record(second, second + 100.0 + second, second)
    # The ages grow, so that the shortest one is that of the first segment that is kept.
    shortest_s = found.shortest_lifetime()
    assert shortest_s is not None
    assert 47 * HOUR_S < shortest_s < 49 * HOUR_S


def test_a_log_that_was_cut_begins_anew():
    found = removed((5, 10), (3, 12))
    assert found.lifetime(4 * HOUR_S) == 12 * HOUR_S


def expiry(**changed: float) -> Expiry:
    facts = {
        "now_s": 100.0,
        "changed_s": 90.0,
        "bytes_to_clean": 500,
        "bytes_to_force": 1000,
        "bytes_per_second": 0,
    }
    return Expiry(**{**facts, **changed})  # type: ignore[arg-type]


def test_an_end_that_nothing_tells_is_not_known():
    assert seconds_until_expired(expiry(), history(), removed()) is None


def test_the_other_disks_fill_up():
    assert seconds_until_expired(expiry(bytes_per_second=10), history(), removed()) == 100
    assert seconds_until_expired(expiry(bytes_per_second=10, bytes_to_force=-5), history(), removed()) == 0


def test_the_newest_segment_expires():
    lifetimes = removed((0, 1))
    assert seconds_until_expired(expiry(), history(), lifetimes) == HOUR_S - 10
    assert seconds_until_expired(expiry(now_s=90_000.0), history(), lifetimes) == 0


def test_above_clean_expired_segments_leave_at_any_hour():
    """The segment is as old as the youngest removed one after an hour, and at 23 hours in the broker's hour."""
    lifetimes = removed((0, 10), (1, 1), (2, 23))
    facts = expiry(now_s=26 * HOUR_S, changed_s=26 * HOUR_S, bytes_to_force=10**9, bytes_per_second=1)
    assert seconds_until_expired(facts, history(), lifetimes) == HOUR_S
    later = expiry(
        now_s=26 * HOUR_S,
        changed_s=26 * HOUR_S,
        bytes_to_clean=2 * HOUR_S,
        bytes_to_force=10**9,
        bytes_per_second=1,
    )
    assert seconds_until_expired(later, history(), lifetimes) == 2 * HOUR_S
