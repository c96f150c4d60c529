import os
import signal
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import waits_for_fuse
from support.tiny_fuse import tiny_fuse
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import probe

pytestmark = [pytest.mark.root, pytest.mark.mounted]


@pytest.fixture
def place(workdir: Path) -> Iterator[Path]:
    directory = workdir / "mnt"
    directory.mkdir()
    yield directory
    eventually(lambda: probe._reap_stuck(str(directory)) is None, shown=lambda: "a probe's child was never reaped")


def test_a_mount_that_answers(place: Path):
    with tiny_fuse(place):
        result = probe.probe_mount(place, PATIENCE_S)
        assert (result.ok, result.reason) == (True, "")


@pytest.mark.timing
def test_it_is_cheap(place: Path):
    with tiny_fuse(place):
        assert statistics.median(probe.probe_mount(place, PATIENCE_S).seconds for _ in range(9)) < 0.1


def test_nothing_mounted(place: Path):
    assert probe.probe_mount(place, PATIENCE_S).reason == "nothing is mounted here"


def test_another_filesystem(place: Path):
    with tiny_fuse(place, "else"):
        result = probe.probe_mount(place, PATIENCE_S)
    assert result.reason == "a fuse.else filesystem is mounted here, not commitlogfs"


def test_the_hidden_file_is_missing(place: Path):
    with tiny_fuse(place, hidden=False):
        result = probe.probe_mount(place, PATIENCE_S)
    assert result.reason == "lookup of .commitlogfs/status.json: No such file or directory"


def test_a_dead_daemon(place: Path):
    with tiny_fuse(place) as daemon:
        daemon.kill()
        daemon.wait()
        assert probe.probe_mount(place, PATIENCE_S).reason == "statfs: Transport endpoint is not connected"


def test_a_hung_daemon_costs_the_deadline_and_comes_back(place: Path):
    assert probe_hung_daemon(place) >= 0.3


@pytest.mark.timing
def test_a_hung_daemon_costs_little_more_than_the_deadline(place: Path):
    assert probe_hung_daemon(place) < 1


def probe_hung_daemon(place: Path) -> float:
    """The seconds that the probe took."""
    with tiny_fuse(place) as daemon:
        assert probe.probe_mount(place, PATIENCE_S).ok
        daemon.send_signal(signal.SIGSTOP)
        result = probe.probe_mount(place, 0.3)
        assert result.reason == "does not answer within 0.3 s"
        daemon.send_signal(signal.SIGCONT)
        assert probe.probe_mount(place, PATIENCE_S).ok
    return result.seconds


def test_a_child_that_cannot_be_killed_does_not_hold_us_up(place: Path, monkeypatch: pytest.MonkeyPatch):
    probe_twice(place, monkeypatch)


@pytest.mark.timing
def test_a_child_that_cannot_be_killed_costs_little_time(place: Path, monkeypatch: pytest.MonkeyPatch):
    first_s, second_s = probe_twice(place, monkeypatch)
    assert first_s < 1.5
    assert second_s < 0.2


def probe_twice(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """The seconds that the probes took. The daemon has read the request and never answers: not even SIGKILL ends
    the wait of the first child."""
    start_child = probe._start_child

    def start_and_wait(*arguments: Any) -> "subprocess.Popen[str]":
        child = start_child(*arguments)
        eventually(lambda: waits_for_fuse(child.pid))
        return child

    monkeypatch.setattr(probe, "_start_child", start_and_wait)
    with tiny_fuse(place, hang_after_read=True):
        result = probe.probe_mount(place, 0.3)
        assert result.reason == "does not answer within 0.3 s"
        again = probe.probe_mount(place, PATIENCE_S)
        assert "an earlier probe" in again.reason
        assert len(probe._stuck) == 1
    return result.seconds, again.seconds


def test_the_child_inherits_no_descriptors_and_leaves_none(place: Path):
    before = sorted(os.listdir("/proc/self/fd"))
    near, far = os.pipe()
    os.set_inheritable(far, True)
    with tiny_fuse(place) as daemon:
        assert probe.probe_mount(place, PATIENCE_S).ok  # it has negotiated with the kernel
        daemon.send_signal(signal.SIGSTOP)
        child = probe._start_child(str(place), 0)
        eventually(lambda: waits_for_fuse(child.pid))
        held = {os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")}
        assert os.readlink(f"/proc/self/fd/{far}") not in held
        assert os.readlink(f"/proc/{child.pid}/cwd") == "/"
        probe._kill(child, str(place))
    os.close(near)
    os.close(far)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_mount_point_with_strange_bytes(workdir: Path):
    strange = Path(os.fsdecode(os.fsencode(workdir) + b"/a \xff\n\\b"))
    strange.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", str(strange)], check=True)
    try:
        result = probe.probe_mount(strange, PATIENCE_S)
        assert result.reason == "a tmpfs filesystem is mounted here, not commitlogfs"
    finally:
        subprocess.run(["umount", str(strange)], check=True)
