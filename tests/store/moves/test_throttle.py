"""How long a move pauses."""

import itertools

import pytest

from commitlogfs.store.moves.throttle import Throttle, chunk_bytes
from commitlogfs.store.timing import DEFAULT

MIB = 1 << 20


def work_for(throttle: Throttle, seconds: float, *, rate: int = 0, busy: float = 0.0, chunk_s: float = 0.01) -> int:
    """Number of chunks of 1 MiB in so many seconds, each of which takes `chunk_s`."""
    now, count = 1000.0, 0
    while now < 1000.0 + seconds:
        pause = throttle.pause_s(now)
        if pause:
            assert pause <= DEFAULT.pace.longest_pause_s
            now += pause
            continue
        throttle.record(rate, MIB, now, now + chunk_s, busy)
        now, count = now + chunk_s, count + 1
    return count


@pytest.mark.parametrize(("busy", "part"), [(0.0, 0.15), (0.5, 0.075), (0.8, 0.03), (0.95, 0.03), (1.0, 0.03)])
def test_without_a_rate_a_part_of_the_idle_time_is_used(busy: float, part: float) -> None:
    assert work_for(Throttle(DEFAULT.pace), 100, busy=busy) * 0.01 == pytest.approx(100 * part, rel=0.02)


@pytest.mark.parametrize("busy", [0.0, 1.0])
def test_a_rate_is_kept_whatever_the_load(busy: float) -> None:
    assert work_for(Throttle(DEFAULT.pace), 100, rate=20 * MIB, busy=busy) == pytest.approx(2000, rel=0.01)


def test_a_rate_above_the_speed_of_the_disk_needs_no_pause() -> None:
    assert work_for(Throttle(DEFAULT.pace), 10, rate=1000 * MIB) == pytest.approx(1000, abs=1)  # of sums of floats


def test_a_new_rate_begins_without_the_debt_of_the_former() -> None:
    throttle = Throttle(DEFAULT.pace)
    throttle.record(1024, MIB, 0.0, 0.1, 0.0)
    assert throttle.pause_s(0.1) == DEFAULT.pace.longest_pause_s
    throttle.forget()
    assert throttle.pause_s(0.1) == 0


def test_chunks_of_a_low_rate_are_small_and_aligned() -> None:
    sizes = [chunk_bytes(rate, MIB) for rate in (1, 40_000, 100_000, MIB, 8 * MIB, 100 * MIB, 0)]
    assert sizes == [4096, 4096, 12288, 131072, MIB, MIB, MIB]
    assert all(one <= other for one, other in itertools.pairwise(sizes))
