"""Times per operation from counters, and their comparison under other loads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.slowness.load import DeviceCounters
from commitlogfs.store.slowness.pace import WITHOUT_TRANSFER_BYTES, Operation, Pace, combined, paces_between

AT_BOOT = DeviceCounters(*[0] * 8)


def pace(
    time_s: float = 0.01, size_bytes: float = 4096, depth: float = 1.0, operations: int = 10, busy: float = 0.5
) -> Pace:
    return Pace(operations, time_s, time_s, size_bytes, depth, busy)


paces = st.builds(
    pace, st.floats(1e-5, 10), st.floats(0, 1 << 20), st.floats(1, 100), st.integers(1, 10_000), st.floats(0, 1)
)


def test_reads_and_writes_are_kept_apart():
    before = DeviceCounters(100, 0, 1000, 50, 0, 500, 10, 700)
    after = DeviceCounters(200, 409_600, 2000, 60, 81_920, 4500, 1010, 3200)
    assert paces_between(before, after, 10.0) == {
        Operation.READ: Pace(100, 0.010, 0.010, 4096, 2.0, 0.25),
        Operation.WRITE: Pace(10, 0.400, 0.300, 8192, 2.0, 0.25),
    }


def test_nothing_ended_nothing_known():
    assert paces_between(AT_BOOT, AT_BOOT, 10.0) == {}
    only_reads = paces_between(AT_BOOT, DeviceCounters(1, 4096, 0, 0, 0, 0, 0, 0), 10.0)
    assert only_reads == {Operation.READ: Pace(1, 0.0, 0.0, 4096, 1.0, 0.0)}


def test_flushes_never_make_a_time_negative():
    after = DeviceCounters(0, 0, 0, 10, 4096, 100, 5000, 5000)
    assert paces_between(AT_BOOT, after, 10.0)[Operation.WRITE].working_s == 0


def test_times_that_pass_32_bits_are_followed():
    """The kernel counts ms in 32 bits."""
    before = DeviceCounters(100, 0, 2**32 - 500, 50, 0, 2**32 - 1, 2**32 - 10, 2**32 - 700)
    after = DeviceCounters(200, 409_600, 500, 60, 81_920, 3999, 990, 1800)
    assert paces_between(before, after, 10.0) == {
        Operation.READ: Pace(100, 0.010, 0.010, 4096, 2.0, 0.25),
        Operation.WRITE: Pace(10, 0.400, 0.300, 8192, 2.0, 0.25),
    }


@pytest.mark.parametrize("lower", ["reads", "writes", "read_bytes", "write_bytes", "read_ms", "write_ms"])
def test_counters_that_begin_anew_say_nothing(lower: str):
    """The device has gone, and has come back, or another one has its number."""
    before = DeviceCounters(*[100_000] * 8)
    after = replace(DeviceCounters(*[100_100] * 8), **{lower: 10})
    assert paces_between(before, after, 10.0) == {}


@pytest.mark.parametrize(
    ("load", "factor"),
    [
        (pace(depth=4), 4),
        (pace(size_bytes=4096 + 3 * (WITHOUT_TRANSFER_BYTES + 4096)), 4),
        (pace(time_s=5.0), 1),
    ],
)
def test_a_heavier_load_may_take_longer(load, factor):
    assert pace().longest_under(load) == pytest.approx(0.01 * factor)
    assert pace().time_under(load) == pytest.approx(0.01 * factor)
    assert load.longest_under(pace()) == pytest.approx(load.time_s), "but a lighter one is not quicker"


@given(paces, paces)
def test_a_load_compared_with_itself_and_both_ways(one: Pace, other: Pace):
    assert one.time_under(one) == pytest.approx(one.time_s)
    assert one.longest_under(other) >= one.time_under(other) * (1 - 1e-9)
    assert one.longest_under(other) >= one.time_s * (1 - 1e-9)


@given(st.lists(paces, min_size=1, max_size=5))
def test_combined_windows_count_each_operation_once(given_paces: list[Pace]):
    whole = combined(given_paces)
    assert whole is not None
    assert whole.operations == sum(one.operations for one in given_paces)
    assert whole.time_s * whole.operations == pytest.approx(sum(one.time_s * one.operations for one in given_paces))
    assert combined([]) is None
