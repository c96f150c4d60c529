"""The time that a scrub has left, against simulated disks: within 10 % from the tenth part on."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from commitlogfs.store.scrub.estimate import SHORTEST_S, WINDOW_S, RateEstimate

MIB = 1 << 20
SEGMENT = 1 << 30
TOLERANCE = 0.1
STEP_S = 5.0

Rate = Callable[[float], float]
"""Bytes per second, by the time since the begin."""


def constant(mib: float) -> Rate:
    return lambda _: mib * MIB


def alternating(idle_mib: float, busy_mib: float, period_s: float) -> Rate:
    return lambda at_s: (idle_mib if at_s % period_s < period_s / 2 else busy_mib) * MIB


def simulate(size: int, rate: Rate, restarts_s: float = float("inf")) -> list[tuple[float, float]]:
    """(seconds since the begin, seconds left by the estimate), until the disk is read. A daemon that starts anew
    knows the sums of the former ones only."""
    estimate, at_s, read, done = RateEstimate(), 0.0, 0.0, 0
    shown, restart_s = [(0.0, 0.0)], restarts_s
    while read < size:
        read += rate(at_s) * STEP_S
        at_s += STEP_S
        if int(read // SEGMENT) > done:
            done = int(read // SEGMENT)
            estimate.record(at_s, int(read))
        if at_s >= restart_s:
            estimate, restart_s = RateEstimate(), restart_s + restarts_s
        shown.append((at_s, (size - read) / estimate.bytes_per_second(at_s, int(read))))
    return shown


@pytest.mark.parametrize(
    ("size", "rate"),
    [
        (100 * SEGMENT, constant(40)),
        (3 * SEGMENT, constant(4)),
        (4000 * SEGMENT, constant(40)),
        (100 * SEGMENT, alternating(40, 4, 30)),
        (1000 * SEGMENT, alternating(40, 4, 600)),
        (8000 * SEGMENT, alternating(80, 8, 1800)),
    ],
    ids=["constant", "few segments", "long", "seconds", "minutes", "half hours"],
)
@pytest.mark.parametrize("restarts_s", [float("inf"), 4000.0], ids=["one daemon", "restarts"])
def test_steady_rates(size: int, rate: Rate, restarts_s: float) -> None:
    shown = simulate(size, rate, restarts_s)
    end_s = shown[-1][0]
    for at_s, left_s in shown:
        if end_s / 10 <= at_s:
            # At the very end, the tenth part is less than a step of the simulation, or half of a period.
            assert abs(at_s + left_s - end_s) <= TOLERANCE * end_s
        if end_s / 10 <= at_s <= end_s * 0.9:
            assert left_s == pytest.approx(end_s - at_s, rel=TOLERANCE, abs=STEP_S)


def test_a_load_that_repeats_every_day() -> None:
    """By day the disk has no more than a fifth of the night's time: after one day, the mean is right."""
    shown = simulate(20_000 * SEGMENT, alternating(40, 8, 86400.0))
    end_s = shown[-1][0]
    assert end_s > 8 * WINDOW_S
    for at_s, left_s in shown:
        if WINDOW_S <= at_s <= end_s - WINDOW_S:
            assert abs(at_s + left_s - end_s) <= TOLERANCE * end_s


def test_a_lasting_change_counts_in_full_after_a_day() -> None:
    rate: Rate = lambda at_s: (40 if at_s < WINDOW_S else 10) * MIB  # noqa: E731
    shown = simulate(6000 * SEGMENT, rate)
    end_s = shown[-1][0]
    late = [(at_s, left_s) for at_s, left_s in shown if 2.1 * WINDOW_S <= at_s <= end_s * 0.99]
    assert late
    for at_s, left_s in late:
        assert left_s == pytest.approx(end_s - at_s, rel=TOLERANCE)


def test_nothing_is_known_at_first() -> None:
    estimate = RateEstimate(100.0, 7)
    assert estimate.bytes_per_second(100.0 + SHORTEST_S / 2, 1000) == 0.0
    assert estimate.bytes_per_second(110.0, 1007) == 100.0


def test_what_was_before_does_not_count() -> None:
    estimate = RateEstimate()
    estimate.record(1000.0, 1000)
    estimate = RateEstimate(1000.0, 1000)
    shown = [estimate.bytes_per_second(at_s, 1000 + round(50 * (at_s - 1000))) for at_s in (1010.0, 1100.0, 2000.0)]
    assert all(before == after == 50.0 for before, after in pairwise(shown))
