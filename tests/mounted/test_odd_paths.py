"""Disks whose paths have blanks, quotes, markup and more: every view shows them, and none takes them for anything
else. Paths with control characters are refused (tests/mount/config)."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.exporters import running_exporter
from support.pools import PoolMount
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

NAMES = ("a \"b' <b>x&y", 'back\\slash {l="v"} 1', "-rf $(id) %s%n ü\u202e", "x" * 200)


@pytest.fixture
def pool(make_pool: Callable[..., PoolMount], workdir: Path) -> PoolMount:
    disks = [workdir / name / "commitlog" for name in NAMES]
    for disk in disks:
        disk.mkdir(parents=True)
    pool = make_pool(disks=disks)
    pool.start()
    pool.make_segments(range(8))
    return pool


def test_commands_show_them(pool: PoolMount) -> None:
    for verb in (("status",), ("map",), ("top", "--once"), ("disk", "list"), ("explain", "0")):
        ran = pool.cli(*verb, pool.name)
        assert (ran.status, ran.err) == (0, ""), (verb, ran.err)
        assert "\u202e" not in ran.out, "it would turn the rest of the line around"
    for disk in pool.disks:
        ran = pool.cli("explain", disk, pool.name)
        assert (ran.status, ran.err) == (0, "")
    ran = pool.cli("debug", pool.name, "--output", pool.workdir / "archive.tar.gz")
    assert ran.status == 0, ran.err


def test_metrics_have_them_as_labels(pool: PoolMount) -> None:
    with running_exporter(pool.workdir, pool.env, pool.name) as exporter:
        eventually(lambda: exporter.value("up", pool=pool.name) == 1)
        for disk in pool.disks:
            assert exporter.value("disk_segments", pool=pool.name, disk=str(disk)) == 2
        mount = exporter.mount(pool.name)
        assert [disk["path"] for disk in mount["status"]["disks"]] == list(map(str, pool.disks))
        text = exporter.request("/metrics").text
    if shutil.which("promtool") is not None:
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
