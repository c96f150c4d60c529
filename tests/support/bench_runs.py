"""Runs of `commitlogfs bench`, and figures as it collects them."""

import os
import subprocess
import sys
from pathlib import Path

from commitlogfs.bench.datapath_rounds import Series
from commitlogfs.mount.linux import mountinfo


def bench_command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("commitlogfs")), "bench", *arguments]


def environment(workdir: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(workdir), "NO_COLOR": "1", "COLUMNS": "160"}


def run_bench(workdir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bench_command(*arguments),
        env=environment(workdir),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def assert_nothing_left(workdir: Path) -> None:
    assert mountinfo.mounts_below(workdir) == ()
    assert list(workdir.iterdir()) == []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        assert str(workdir) not in backing.read_text()


def series(**values: list[float]) -> Series:
    found = Series("append", "MB/s", "")
    for target, figures in values.items():
        for figure in figures:
            found.add(target, figure)
    return found
