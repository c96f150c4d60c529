"""The measurement of a scrub: its goals, the rate of a counter; and one small run of all of it."""

import json
from pathlib import Path

import pytest
from support import page_cache
from support.bench_runs import assert_nothing_left, run_bench

from commitlogfs.bench.beside_broker import FLUSHES
from commitlogfs.bench.counter_windows import Sample, busy_rate
from commitlogfs.bench.datapath_rounds import Series
from commitlogfs.bench.datapath_settings import QUICK, Settings
from commitlogfs.bench.page_cache import KeptPages
from commitlogfs.bench.report_goals import goals
from commitlogfs.bench.scrub import reading
from commitlogfs.bench.scrub.figures import ScrubFigures
from commitlogfs.bench.scrub.sending import SCRUBS
from commitlogfs.bench.scrub.sizes import needed_by_scrub, read_segments

MIB = 1 << 20


def test_the_time_before_and_after_the_work_does_not_count() -> None:
    counts = [0, 0, 50, 150, 250, 250, 250]
    samples = [Sample(10.0 + index, count) for index, count in enumerate(counts)]
    assert busy_rate(samples) == 100  # 200 bytes in the two seconds after the first 50


@pytest.mark.parametrize("counts", [[], [5], [5, 5, 5], [0, 5, 5]])
def test_a_counter_that_does_not_grow_has_no_rate(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="has not grown"):
        busy_rate([Sample(float(index), count) for index, count in enumerate(counts)])


def test_goals() -> None:
    read = Series(reading.READ, "MB/s", "", reading.FIO, {reading.FIO: [100.0], reading.SCRUB: [92.0]})
    values = {SCRUBS.still: [10.0], SCRUBS.working: [11.0]}
    p99 = Series(SCRUBS.p99("SYNC_FLUSH"), "ms", "", SCRUBS.still, values)
    found = {goal.workload: (goal.ratio, goal.required, goal.verdict) for goal in goals([p99, read])}
    assert found == {
        "scrub-p99-sync": (1.1, "<= 1.05", "missed by 4.8%"),
        "scrub-read": (0.92, ">= 0.9", "met"),
    }


@pytest.mark.parametrize(("after", "is_met"), [(500, True), (490, False)])
def test_pages_that_are_gone(after: int, is_met: bool) -> None:
    figures = ScrubFigures(8, MIB, KeptPages(500, after, 500, 500))
    assert [target.is_met for target in figures.targets()] == [is_met]
    assert figures.in_words()[-1].endswith("met" if is_met else "missed")
    assert ScrubFigures().targets() == ScrubFigures().in_words() == []


def test_disks_are_large_enough() -> None:
    assert needed_by_scrub(Settings()) > Settings().scrub_bytes
    assert needed_by_scrub(Settings(**QUICK)) < 1 << 30


@pytest.mark.broker
@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
@page_cache.kept()
def test_a_scrub_beside_fio_and_beside_a_broker(workdir: Path) -> None:
    done = run_bench(workdir, "--quick", "--only", "scrub", "--rounds", "1", "--messages", "6000", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    workloads = {workload["workload"]: workload for workload in document["workloads"]}
    read = workloads.pop(reading.READ, None)
    assert (read is None) == (not reading.fio_version()) == (reading.READ in document["left_out"])
    if read is not None:
        assert set(read["targets"]) == {reading.FIO, reading.CONTROL, reading.SCRUB}
    assert set(workloads) == {*map(SCRUBS.rate, FLUSHES), *map(SCRUBS.p99, FLUSHES)}
    beside = workloads["scrub-send-async"]["targets"][SCRUBS.working]["details"][0]
    assert beside["scrub_read_mb_per_s"] > 0
    scrub = document["scrub"]
    assert scrub["segments"] == read_segments(Settings(**QUICK)) == 64
    assert 0 < scrub["other_cached_pages"]["before"] * 0.99 <= scrub["other_cached_pages"]["after"]
    assert_nothing_left(workdir)
