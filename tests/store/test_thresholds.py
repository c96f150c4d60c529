import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.thresholds import RANGES, ThresholdError, Thresholds, clamp


def test_defaults_are_rocketmqs():
    thresholds = Thresholds()
    assert (thresholds.clean, thresholds.force, thresholds.full) == (75, 85, 90)
    assert thresholds.resume == 83
    assert thresholds.min_free_bytes == 0


def test_resume_follows_force_unless_given():
    assert Thresholds(clean=60, force=70).resume == 68
    assert Thresholds(clean=60, force=70, resume=50).resume == 50


def test_a_replaced_copy_keeps_its_resume():
    """dataclasses.replace passes the derived value on: nothing moves behind the caller's back."""
    assert dataclasses.replace(Thresholds(), full=88).resume == 83


@pytest.mark.parametrize("key", list(RANGES))
def test_range_ends_are_allowed_and_one_beyond_is_not(key):
    low, high = RANGES[key]
    fitting = {"clean": 10, "force": 85, "full": 90}
    if key == "full":
        fitting["force"] = 35
    elif key == "force":
        fitting["clean"] = 10
    for value in (low, min(high, 85) if key == "clean" else high):
        assert getattr(Thresholds(**{**fitting, key: value}), key) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ThresholdError) as caught:
            Thresholds(**{**fitting, key: value})
        assert (caught.value.key, caught.value.value) == (key, value)
        assert str(caught.value) == f"{key} = {value} is out of range; set it to {low} to {high} percent"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"force": 85, "full": 80}, "force = 85 is above full = 80; set it to 30 to 80 percent"),
        ({"clean": 75, "force": 70}, "clean = 75 is above force = 70; set it to 10 to 70 percent"),
        ({"resume": 85}, "resume = 85 is not below force = 85; set it to 10 to 84 percent"),
        ({"resume": 9}, "resume = 9 is out of range; set it to 10 to 84 percent"),
        ({"min_free_bytes": -1}, "min_free = -1 is negative; set it to 0 bytes or more"),
    ],
)
def test_contradictions_name_key_value_and_allowed_range(values, message):
    with pytest.raises(ThresholdError) as caught:
        Thresholds(**values)
    assert str(caught.value) == message


def test_equal_steps_are_allowed():
    assert Thresholds(clean=80, force=80, full=80).resume == 78


@given(st.sampled_from(sorted(RANGES)), st.integers(-(2**31), 2**31 - 1))
def test_clamp_lands_in_the_range_and_speaks_only_when_it_acts(key, value):
    low, high = RANGES[key]
    clamped, warning = clamp(key, value)
    assert low <= clamped <= high
    if low <= value <= high:
        assert (clamped, warning) == (value, "")
    else:
        assert clamped in (low, high)
        assert str(value) in warning
        assert f"{low} to {high}" in warning
        assert str(clamped) in warning
