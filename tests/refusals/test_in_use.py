"""Somebody else works on the directories: a native broker, or a second daemon of ours."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.refusals import degrade, refused_mount
from support.snapshots import snapshot
from support.waiting import PATIENCE_S

pytestmark = [pytest.mark.mounted, pytest.mark.full]

_HOLD = """
import mmap, os, sys
how, path = sys.argv[1:]
fd = os.open(path, os.O_RDWR if how != "reader" else os.O_RDONLY)
if how == "mapped":
    held = mmap.mmap(fd, 4096)
    os.close(fd)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path, how: str) -> Iterator[int]:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, how, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(PATIENCE_S)


@pytest.mark.parametrize("how", ["open", "mapped", "reader"])
def test_the_newest_segment_in_another_process(striped: PoolMount, how: str) -> None:
    newest = striped.disks[0] / striped.path(6).name
    degrade(striped)
    with held(newest, how):
        before = snapshot(*striped.disks)
        report = refused_mount(striped)
        assert f"{newest}: open in another process" in report
        assert f"stop that process: `fuser -v {newest}` names it" in report
        assert len(report.splitlines()) == 1
        assert snapshot(*striped.disks) == before
    striped.start()


def test_adopt_refuses_what_a_broker_has_open(striped: PoolMount) -> None:
    newest = striped.disks[0] / striped.path(6).name
    for disk in striped.disks:
        os.removexattr(disk, "user.commitlogfs.identity")
    with held(newest, "mapped"):
        before = snapshot(*striped.disks)
        ran = striped.cli("adopt", striped.config)
        assert ran.status == 4
        assert ran.err == f"commitlogfs: adopt: {newest}: open in another process; stop the broker first\n"
        assert snapshot(*striped.disks) == before
    assert striped.cli("adopt", striped.config).status == 0


def test_a_second_daemon_is_refused_and_the_first_continues(striped: PoolMount) -> None:
    striped.start()
    ran = striped.cli("mount", striped.config)
    assert ran.status == 4
    assert "a commitlogfs is mounted here already; see `commitlogfs status`" in ran.err
    ran = striped.cli("mount", "--no-keeper", striped.config)
    assert ran.status == 4
    assert ran.err.endswith("commitlogfs: test: its daemon is running already; see `commitlogfs status test`\n")
    # Another name and mountpoint, the same disks: detected by the disks' own locks.
    twin = PoolMount(striped.workdir / "twin", striped.disks, name="twin")
    twin.workdir.mkdir()
    report = refused_mount(twin)
    for disk in striped.disks:
        assert f"{disk}: in use by another commitlogfs\n" in report
    assert report.count("-> the pool is mounted already: see `commitlogfs status`") == 1
    ran = twin.cli("init", "--disks", ",".join(map(str, striped.disks)))
    assert ran.status == 4
    assert "in use by a running commitlogfs; unmount it first" in ran.err
    # Another name, the same mountpoint.
    twin.config.write_text(striped.config.read_text())
    ran = twin.cli("mount", twin.config)
    assert ran.status == 4
    assert f"{striped.mountpoint}: a commitlogfs is mounted here already" in ran.err
    assert len(os.listdir(striped.mountpoint)) == 7
    assert striped.status()["segments"]["count"] == 7


def test_a_daemon_that_has_the_segments_mapped_itself_is_no_stranger(striped: PoolMount) -> None:
    """umount returns only when the disks are free again: the next mount comes at once."""
    for _ in range(3):
        striped.start()
        with open(striped.path(6), "r+b") as file, mmap.mmap(file.fileno(), 4096) as held_map:
            held_map[0:4] = b"abcd"
            held_map.flush()
        ran = striped.cli("umount", striped.name)
        assert ran.status == 0, ran.err
        former = striped.daemon
        striped.start()  # without waiting for the former process
        assert former is not None
        assert former.wait(PATIENCE_S) == 0
        striped.stop()
