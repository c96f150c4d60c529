import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_fuse import tiny_fuse

from commitlogfs.mount.linux import probe

pytestmark = [pytest.mark.root, pytest.mark.mounted]


@pytest.fixture
def place(workdir: Path) -> Iterator[Path]:
    directory = workdir / "mnt"
    directory.mkdir()
    yield directory
    deadline = time.monotonic() + 5
    while probe._reap_stuck(str(directory)) is not None:
        assert time.monotonic() < deadline, "a probe's child was never reaped"
        time.sleep(0.01)


def test_a_mount_that_answers(place: Path):
    with tiny_fuse(place):
        result = probe.probe_mount(place, 5)
        assert (result.ok, result.reason) == (True, "")


def test_it_is_cheap(place: Path):
    with tiny_fuse(place):
        assert statistics.median(probe.probe_mount(place, 5).seconds for _ in range(9)) < 0.1


def test_nothing_mounted(place: Path):
    assert probe.probe_mount(place, 5).reason == "nothing is mounted here"


def test_another_filesystem(place: Path):
    with tiny_fuse(place, "else"):
        assert probe.probe_mount(place, 5).reason == "a fuse.else filesystem is mounted here, not commitlogfs"


def test_the_hidden_file_is_missing(place: Path):
    with tiny_fuse(place, hidden=False):
        result = probe.probe_mount(place, 5)
    assert result.reason == "lookup of .commitlogfs/status.json: No such file or directory"


def test_a_dead_daemon(place: Path):
    with tiny_fuse(place) as daemon:
        daemon.kill()
        daemon.wait()
        assert probe.probe_mount(place, 5).reason == "statfs: Transport endpoint is not connected"


def test_a_hung_daemon_costs_the_deadline_and_comes_back(place: Path):
    with tiny_fuse(place) as daemon:
        assert probe.probe_mount(place, 5).ok
        daemon.send_signal(signal.SIGSTOP)
        result = probe.probe_mount(place, 0.3)
        assert result.reason == "does not answer within 0.3 s"
        assert 0.3 <= result.seconds < 1
        daemon.send_signal(signal.SIGCONT)
        assert probe.probe_mount(place, 5).ok


def test_a_child_that_cannot_be_killed_does_not_hold_us_up(place: Path):
    """The daemon has read the request and never answers: not even SIGKILL ends the child's wait."""
    with tiny_fuse(place, hang_after_read=True):
        result = probe.probe_mount(place, 0.3)
        assert result.reason == "does not answer within 0.3 s"
        assert result.seconds < 1.5
        again = probe.probe_mount(place, 5)
        assert "an earlier probe" in again.reason
        assert again.seconds < 0.2
        assert len(probe._stuck) == 1


def test_the_child_inherits_no_descriptors_and_leaves_none(place: Path):
    before = sorted(os.listdir("/proc/self/fd"))
    near, far = os.pipe()
    os.set_inheritable(far, True)
    with tiny_fuse(place) as daemon:
        daemon.send_signal(signal.SIGSTOP)
        child = probe._start_child(str(place), 0)
        time.sleep(0.1)
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
        assert probe.probe_mount(strange, 5).reason == "a tmpfs filesystem is mounted here, not commitlogfs"
    finally:
        subprocess.run(["umount", str(strange)], check=True)
