"""A request that is just being answered does not keep a mount from being unmounted."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from support.pools import PoolMount
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import unmount as unmount_module
from commitlogfs.mount.linux.unmount import unmount

pytestmark = [pytest.mark.mounted, pytest.mark.root]


@pytest.mark.parametrize(
    "passing_s",
    [pytest.param(PATIENCE_S, id="patient"), pytest.param(None, id="by default", marks=pytest.mark.timing)],
)
def test_a_passing_look_is_waited_for(
    mounted: PoolMount, monkeypatch: pytest.MonkeyPatch, passing_s: float | None
) -> None:
    """As a watchdog's probe is one, or a `df`. By default, an unmount waits for a second."""
    if passing_s is not None:
        monkeypatch.setattr(unmount_module, "_PASSING_S", passing_s)
    assert mounted.daemon is not None
    os.kill(mounted.daemon.pid, signal.SIGSTOP)
    look = subprocess.Popen([sys.executable, "-c", f"import os; os.statvfs({str(mounted.mountpoint)!r})"])
    umount = ["umount", "--no-canonicalize", str(mounted.mountpoint)]
    try:
        eventually(lambda: "fuse" in wchan(look.pid) or "request_wait" in wchan(look.pid))
        busy = subprocess.run(umount, capture_output=True, check=False)
        assert busy.returncode != 0, "the look does not keep it busy: this test shows nothing"
        timer = threading.Timer(0.3, os.kill, (mounted.daemon.pid, signal.SIGCONT))
        timer.start()
        unmount(str(mounted.mountpoint))
        timer.join()
        assert not os.path.ismount(mounted.mountpoint)
    finally:
        os.kill(mounted.daemon.pid, signal.SIGCONT)
        look.wait(PATIENCE_S)


def wchan(pid: int) -> str:
    """Where in the kernel it waits."""
    with open(f"/proc/{pid}/wchan") as file:
        return file.read()


def test_a_bind_mount_of_it_is_named(mounted: PoolMount) -> None:
    bound = mounted.workdir / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", mounted.mountpoint, bound], check=True)
    try:
        ran = mounted.cli("umount", mounted.name)
    finally:
        subprocess.run(["umount", bound], check=True)
    assert ran.status == 4
    assert f"is also mounted at {bound} (a bind mount); unmount that first" in ran.err
    assert os.path.ismount(mounted.mountpoint)
    mounted.stop()


def test_a_mount_on_top_of_it_is_named(mounted: PoolMount) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", mounted.mountpoint], check=True)
    try:
        ran = mounted.cli("umount", mounted.name)
    finally:
        subprocess.run(["umount", mounted.mountpoint], check=True)
    assert ran.status == 4
    assert "the mount is not visible there; unmount what lies on top of it first" in ran.err
    mounted.stop()


@pytest.mark.full
def test_the_last_closes_do_not_disturb_the_end(mounted: PoolMount) -> None:
    """The daemon reads the news of them as the connection ends; without care, every second round failed."""
    mounted.make_segments(range(6))
    code = "import os, sys; fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:] * 300]; print(); input()"
    for _ in range(10):
        user = [sys.executable, "-c", code, *(str(mounted.path(index)) for index in range(6))]
        with subprocess.Popen(user, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as opener:
            assert opener.stdout is not None
            opener.stdout.readline()
            opener.kill()
        unmount(str(mounted.mountpoint))
        assert mounted.daemon is not None
        assert mounted.daemon.wait(PATIENCE_S) == 0, mounted.log_path.read_text()
        mounted.start()
    mounted.stop()
