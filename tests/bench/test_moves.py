"""The measurement of moves: windows of a counter, goals, pages in the cache; and one small run of all of it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import page_cache
from support.bench_runs import assert_nothing_left, run_bench, series

from commitlogfs.bench import counter_windows
from commitlogfs.bench.beside_broker import FLUSHES
from commitlogfs.bench.counter_windows import Sample, count_at, rates, sample, settled_after
from commitlogfs.bench.datapath_settings import QUICK, Settings
from commitlogfs.bench.moves.figures import MoveFigures, RateChange
from commitlogfs.bench.moves.sending import MOVES
from commitlogfs.bench.moves.sizes import needed_by_moves, paced_segments
from commitlogfs.bench.page_cache import KeptPages, cached_pages_of, pages_of
from commitlogfs.bench.report_goals import Goal, goals

MIB = 1 << 20


def steps(*rates_of_steps: float, step_s: float = 0.1, begin_s: float = 5.0) -> list[Sample]:
    """A counter that grows at each rate for one step."""
    found = [Sample(begin_s, 1000)]
    for rate in rates_of_steps:
        found.append(Sample(found[-1].at_s + step_s, found[-1].done + round(rate * step_s)))
    return found


def test_samples_cover_the_whole_time_although_a_count_takes_long(monkeypatch):
    now_s = 5.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def count() -> int:
        sleep(0.02)
        return 0

    monkeypatch.setattr(counter_windows, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    samples = sample(count, 0.05)
    assert samples[-1].at_s - samples[0].at_s >= 0.05
    assert len(rates(samples, 0.05)) == 1


def test_a_count_between_two_samples_is_in_proportion():
    samples = [Sample(1.0, 100), Sample(2.0, 300), Sample(4.0, 300)]
    assert [count_at(samples, at_s) for at_s in (1.0, 1.25, 2.0, 3.0, 4.0)] == [100, 150, 300, 300, 300]


@pytest.mark.parametrize("at_s", [0.9, 4.1])
def test_a_count_outside_of_the_samples_is_refused(at_s):
    with pytest.raises(ValueError, match="no sample around"):
        count_at([Sample(1.0, 100), Sample(4.0, 300)], at_s)


def test_each_whole_window_has_its_rate():
    samples = steps(*[100] * 10, *[300] * 10, *[50] * 4)
    assert rates(samples, 1.0) == pytest.approx([100, 300])


def test_a_rate_that_changes_at_once_is_settled_at_once():
    samples = steps(*[300] * 20)
    assert settled_after(samples, 5.0, 300, window_s=1.0, tolerance=0.1) == 0


def test_a_rate_that_changes_late_is_settled_then():
    samples = steps(*[100] * 5, *[300] * 15)
    found = settled_after(samples, 5.0, 300, window_s=1.0, tolerance=0.05)
    assert found == pytest.approx(0.5)


def test_a_rate_that_never_changes_is_not_settled():
    assert settled_after(steps(*[100] * 20), 5.0, 300, window_s=1.0, tolerance=0.1) is None


def figures(**changed: object) -> MoveFigures:
    found = MoveFigures(
        1000, 10.0, [990.0, 1020.0], [RateChange(1000, 3000, 0.3)], 8, MIB, KeptPages(500, 500, 500, 500), 2048, 0
    )
    for key, value in changed.items():
        setattr(found, key, value)
    return found


def test_a_move_that_keeps_its_rate_meets_all_goals():
    assert [target.is_met for target in figures().targets()] == [True] * 4
    assert figures().deviation == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"measured": [1000.0, 940.0]}, 0),
        ({"changes": [RateChange(1000, 3000, 0.3), RateChange(3000, 1000, None)]}, 1),
        ({"changes": [RateChange(1000, 3000, 1.1)]}, 1),
        ({"hot": KeptPages(500, 490, 500, 500)}, 2),
        ({"copied_pages_cached": 100}, 3),
    ],
)
def test_each_goal_can_be_missed(changed, missed):
    found = figures(**changed)
    assert [target.is_met for target in found.targets()] == [index != missed for index in range(4)]
    assert sum(line.endswith(": missed") for line in found.in_words()) == 1
    assert not json.loads(json.dumps(found.as_json()))["targets"][missed]["met"]


def test_a_machine_that_reclaims_pages_elsewhere_is_not_blamed_on_the_move():
    assert figures(hot=KeptPages(500, 490, 500, 480)).targets()[2].value == 0.0


def test_a_part_that_did_not_run_has_no_goals():
    assert MoveFigures().targets() == []
    assert MoveFigures().in_words() == []


@pytest.mark.parametrize(
    ("ratio", "floor", "ceiling", "verdict"),
    [
        (0.95, 0.95, None, "met"),
        (0.9, 1.0, None, "missed by 10.0%"),
        (1.2, None, 1.2, "met"),
        (1.5, None, 1.2, "missed by 25.0%"),
        (None, None, 1.2, "not measured"),
    ],
)
def test_a_goal_has_a_floor_or_a_ceiling(ratio, floor, ceiling, verdict):
    goal = Goal("send", "no move", ratio, floor, ceiling)
    assert goal.verdict == verdict
    assert goal.required == (f">= {floor:g}" if floor else f"<= {ceiling:g}")


def test_a_broker_beside_a_move_is_compared_with_one_without():
    rate = series(**{MOVES.still: [1000.0, 500.0], MOVES.working: [980.0, 480.0]})
    p99 = series(**{MOVES.still: [10.0, 20.0], MOVES.working: [13.0, 22.0]})
    rate.workload, p99.workload = MOVES.rate("ASYNC_FLUSH"), MOVES.p99("ASYNC_FLUSH")
    rate.baseline = p99.baseline = MOVES.still
    assert rate.as_json()["baseline"] == MOVES.still
    found = {goal.workload: (goal.ratio, goal.verdict) for goal in goals([rate, p99])}
    assert found == {"move-send-async": (0.97, "met"), "move-p99-async": (1.2, "met")}


def test_disks_are_large_enough_for_what_is_moved():
    settings = Settings()
    assert needed_by_moves(settings) > settings.cold_bytes
    moved = paced_segments(settings) * settings.broker_segment_bytes
    # Each byte is read twice.
    assert 2 * moved > settings.move_rate * settings.move_windows * settings.move_window_s
    assert needed_by_moves(Settings(**QUICK)) < 1 << 30


@pytest.mark.root
@page_cache.kept()
def test_pages_in_the_cache_are_counted(workdir: Path):
    path, empty = workdir / "file", workdir / "empty"
    path.write_bytes(bytes(8 * MIB + 1))
    empty.touch()
    assert pages_of([path, empty]) == 2049
    assert cached_pages_of([path, empty]) == 2049
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 4 * MIB, os.POSIX_FADV_DONTNEED)
    assert cached_pages_of([path]) == pytest.approx(1025, abs=16)


@pytest.mark.root
def test_moves_on_one_disk_are_refused(workdir: Path):
    done = run_bench(workdir, "--quick", "--only", "moves", "--disks", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the part moves needs 2 disks or more" in done.stderr


@pytest.mark.broker
@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
@page_cache.kept()
def test_moves_beside_a_broker(workdir: Path):
    # A move at the default rate rests for most of the time: sending has to take longer than a rest.
    sent = ["--messages", "12000"]
    done = run_bench(workdir, "--quick", "--only", "moves", "--rounds", "1", "--disks", "2", *sent, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    workloads = {workload["workload"]: workload for workload in document["workloads"]}
    assert set(workloads) == {*map(MOVES.rate, FLUSHES), *map(MOVES.p99, FLUSHES)}
    for workload in workloads.values():
        assert workload["baseline"] == MOVES.still
        assert set(workload["targets"]) == {MOVES.still, MOVES.control, MOVES.working}
    beside = workloads["move-send-async"]["targets"][MOVES.working]["details"][0]
    assert beside["move_read_mb_per_s"] > 0
    moves = document["moves"]
    assert len(moves["measured_bytes_per_second"]) == QUICK_WINDOWS
    assert moves["moved_segments"] > 10
    pages = moves["other_cached_pages"]
    assert 0 < pages["before"] * 0.99 <= pages["after"], "the goal; the kernel may reclaim a page by itself"
    assert moves["copied_pages"]["cached"] == 0 < moves["copied_pages"]["all"]
    assert {goal["target"] for goal in document["goals"]} == {MOVES.working}
    assert_nothing_left(workdir)


QUICK_WINDOWS = Settings(**QUICK).move_windows
