import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.forecast import RECENT_SEGMENTS, ingest_rate, next_threshold
from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.usage import DiskUsage

SECOND = 10**9
SIZE = 1 << 30
DEFAULTS = Thresholds()


def test_the_rate_is_that_of_the_newest_segments():
    births = [SECOND * (100 + 10 * index) for index in range(3)]
    assert ingest_rate(births, SIZE, births[-1]) == SIZE / 10
    assert ingest_rate(births[::-1], SIZE, births[-1]) == SIZE / 10, "their order does not matter"


def test_a_log_that_stopped_is_seen_to_slow_down():
    births = [SECOND * 100, SECOND * 110]
    rates = [ingest_rate(births, SIZE, SECOND * now) for now in (110, 120, 1000, 100_000)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 1000


def test_old_segments_do_not_count():
    old = [SECOND * index for index in range(1, 100)]
    recent = [SECOND * 10**6 + SECOND * 10 * index for index in range(RECENT_SEGMENTS)]
    assert ingest_rate(old + recent, SIZE, recent[-1]) == SIZE / 10


@pytest.mark.parametrize("births", [[], [SECOND], [0, 0, 0], [0, SECOND], [10 * SECOND, 11 * SECOND]])
def test_fewer_than_two_known_births_are_no_rate(births):
    """0 is an unknown birth; one in the future (a clock that was set back) is not believed."""
    assert ingest_rate(births, SIZE, 5 * SECOND) == 0.0


def test_births_all_at_this_very_moment_are_no_rate():
    assert ingest_rate([SECOND, SECOND], SIZE, SECOND) == 0.0


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
