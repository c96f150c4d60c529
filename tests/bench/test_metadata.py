"""A tiny run of `make bench-metadata`, so that it cannot rot; its figures mean nothing here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commitlogfs.bench.figures import latencies
from commitlogfs.mount.linux import mountinfo


def run_bench(workdir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "commitlogfs.bench.metadata", *arguments],
        env={**os.environ, "TMPDIR": str(workdir), "NO_COLOR": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
def test_a_tiny_run_measures_everything_and_leaves_nothing(workdir):
    sizes = (
        "--segments",
        "60",
        "--disks",
        "3",
        "--rounds",
        "1",
        "--creates",
        "5",
        "--segment-size",
        "16MiB",
        "--scrapes",
        "3",
    )
    done = run_bench(workdir, "--json", *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    catalog = document["catalog"]
    assert (catalog["segments"], catalog["disks"]) == (60, 3)
    for key in ("mount_ready_seconds", "mount_pool_opened_seconds", "mount_daemon_option_seconds"):
        assert len(catalog[key]) == 1
        assert 0 < catalog[key][0] < 60
    assert catalog["mount_pool_opened_seconds"] < catalog["mount_ready_seconds"]
    assert catalog["open_files"]["count"] == 60
    for key in ("fresh_ms", "disk_hangs_ms", "hanging_ms"):
        assert len(catalog["scrapes"][key]) == 3
    assert catalog["scrapes"]["series"] > 100
    assert 10 < catalog["rss_listed_mib"][0] < 200
    loads = {(figures["disk"], figures["load"]) for figures in document["creates"]}
    assert len(loads) in (2, 4)  # ext4 and xfs, or a plain directory where there are no loop devices
    for figures in document["creates"]:
        assert figures["mount"]["count"] == figures["native"]["count"] == 5
        assert 0 < figures["mount"]["p50_ms"] <= figures["mount"]["p99_ms"] <= figures["mount"]["max_ms"]
        assert (figures["syncs_per_second"] > 0) == ("appender" in figures["load"])
    assert len(document["targets"]) == 7 + len(document["creates"])
    assert {"kernel", "python", "versions", "load_average"} <= document["environment"].keys()
    assert list(workdir.iterdir()) == []
    assert mountinfo.mounts_below(workdir) == ()


@pytest.mark.parametrize(
    ("count", "p50", "p99"), [(1, 1, 1), (2, 1, 2), (100, 50, 99), (101, 51, 100), (1000, 500, 990)]
)
def test_quantiles_are_nearest_ranks(count, p50, p99):
    figures = latencies([number / 1000 for number in range(count, 0, -1)])
    assert (figures.p50_ms, figures.p99_ms, figures.max_ms) == (p50, p99, count)
