import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.forecast import WINDOW_S, Growth, next_threshold
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

SIZE = 1 << 30
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
