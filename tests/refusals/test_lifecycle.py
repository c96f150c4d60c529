"""Starting, stopping and what is left when a daemon dies: never a stacked mount, never a lazy unmount."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.pools import PoolMount, segment_bytes
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.full]

_HOLD_FILE = "import sys; f = open(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
_HOLD_CWD = "import os, sys; os.chdir(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


@contextmanager
def held(path: Path, code: str = _HOLD_FILE) -> Iterator[int]:
    """A process that uses the mount, for the length of the context: its pid."""
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(PATIENCE_S)


def mounts_at(pool: PoolMount) -> int:
    return mountinfo.stacked_count(pool.mountpoint)


# --- umount ------------------------------------------------------------------------------------------


def test_a_busy_mount_stays_and_its_holder_is_named(mounted: PoolMount) -> None:
    mounted.make_segments([0])
    for path, code in ((mounted.path(0), _HOLD_FILE), (mounted.mountpoint, _HOLD_CWD)):
        with held(path, code) as pid:
            ran = mounted.cli("umount", mounted.mountpoint)
            assert ran.status == 4
            assert ran.err.startswith(f"commitlogfs: {mounted.mountpoint}: in use by python")
            assert f"pid {pid}," in ran.err
            assert ran.err.count("\n") == 1
            assert mounted.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    ran = mounted.cli("umount", mounted.mountpoint)
    unmounted, guarded = ran.out.splitlines()
    assert (ran.status, unmounted) == (0, f"{mounted.mountpoint}: unmounted")
    assert guarded.endswith(f"`commitlogfs umount --unguard {mounted.mountpoint}` removes it")
    ran = mounted.cli("umount", "--unguard", mounted.mountpoint)
    assert (ran.status, ran.out) == (0, f"{mounted.mountpoint}: guard removed\n")


def test_umount_speaks_plainly_in_every_language(mounted: PoolMount) -> None:
    """A busy mount is distinguished from other failures in any language of umount(8)."""
    mounted.make_segments([0])
    with held(mounted.path(0)) as pid:
        env = {**mounted.env, "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}
        ran = run_cli("umount", mounted.mountpoint, env=env)
        assert ran.status == 4
        assert f"pid {pid}," in ran.err


def test_when_umount_returns_the_disks_are_free(mounted: PoolMount) -> None:
    """The next mount, or a native broker, may start at that moment."""
    for _ in range(4):
        ran = mounted.cli("umount", mounted.mountpoint)
        assert ran.status == 0, ran.err
        former, mounted.daemon = mounted.daemon, None
        mounted.start()
        assert former is not None
        assert former.wait(PATIENCE_S) == 0


# --- signals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_an_idle_mount(mounted: PoolMount, number: int) -> None:
    assert mounted.daemon is not None
    mounted.daemon.send_signal(number)
    assert mounted.daemon.wait(PATIENCE_S) == 0
    assert mounts_at(mounted) == 0
    mounted.require_logged("event=unmounted")
    assert not (mounted.runtime / "test.sock").exists()
    mounted.daemon = None
    mounted.start()


def test_a_signal_leaves_a_busy_mount_and_a_second_one_ends_it_when_it_is_free(mounted: PoolMount) -> None:
    assert mounted.daemon is not None
    mounted.make_segments([0])
    with held(mounted.path(0)) as pid:
        mounted.daemon.send_signal(signal.SIGTERM)
        line = eventually(lambda: [ln for ln in mounted.log_since_start().splitlines() if "stop_refused" in ln])[0]
        assert f"(pid {pid}," in line
        assert " error event=stop_refused " in line
        assert mounted.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
        assert mounted.daemon.poll() is None
        assert mounted.cli("ready", mounted.mountpoint).status == 0
    mounted.daemon.send_signal(signal.SIGTERM)
    assert mounted.daemon.wait(PATIENCE_S) == 0
    assert mounts_at(mounted) == 0
    mounted.daemon = None


# --- a dead daemon -----------------------------------------------------------------------------------


def test_a_dead_mount_is_cleared_by_the_next_mount(mounted: PoolMount) -> None:
    mounted.make_segments(range(3))
    mounted.kill()
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.listdir(mounted.mountpoint)
    assert mounted.cli("ready", mounted.mountpoint).status == 3
    assert mounted.cli("status", mounted.name).status == 3
    assert mounts_at(mounted) == 1
    mounted.start()
    assert mounts_at(mounted) == 1
    assert len(os.listdir(mounted.mountpoint)) == 3
    mounted.require_logged("event=dead_mount_found")


def test_a_dead_mount_that_somebody_holds_is_left_and_the_holder_named(mounted: PoolMount) -> None:
    mounted.make_segments([0])
    with held(mounted.path(0)) as pid:
        mounted.kill()
        for arguments in ([], ["--daemon"]):
            ran = mounted.cli("mount", mounted.config, *arguments)
            assert ran.status == 4
            assert f"{mounted.mountpoint}: in use by python" in ran.err
            assert f"(pid {pid}," in ran.err
            assert "Traceback" not in ran.err
        assert mounts_at(mounted) == 1
    mounted.start()
    assert mounts_at(mounted) == 1


def unmount_without_daemon(mounted: PoolMount) -> float:
    """The seconds that it took."""
    mounted.kill()
    started = time.monotonic()
    ran = mounted.cli("umount", mounted.mountpoint)
    assert ran.status == 0, ran.err
    return time.monotonic() - started


@pytest.mark.timing
def test_a_dead_mount_is_unmounted_without_waiting_for_its_daemon(mounted: PoolMount) -> None:
    assert unmount_without_daemon(mounted) < 10


def test_a_dead_mount_is_unmounted(mounted: PoolMount) -> None:
    unmount_without_daemon(mounted)
    assert mounts_at(mounted) == 0
    mounted.start()


def test_a_hung_daemon_is_not_taken_for_a_dead_one(mounted: PoolMount) -> None:
    """Its mount is not touched: it goes on when the daemon does."""
    assert mounted.daemon is not None
    mounted.daemon.send_signal(signal.SIGSTOP)
    try:
        for arguments in ([], ["--daemon"]):
            ran = mounted.cli("mount", mounted.config, *arguments)
            assert ran.status == 4, ran.err
            assert "running already" in ran.err or "does not answer" in ran.err
            assert mounts_at(mounted) == 1
    finally:
        mounted.daemon.send_signal(signal.SIGCONT)
    assert mounted.cli("ready", mounted.mountpoint, "--wait", 10).status == 0


def test_mounts_never_stack_however_often_it_dies(mounted: PoolMount) -> None:
    for _ in range(3):
        mounted.kill()
        mounted.start()
        assert mounts_at(mounted) == 1


# --- --daemon ----------------------------------------------------------------------------------------


@pytest.fixture
def pool(make_pool: Callable[..., PoolMount]) -> Iterator[PoolMount]:
    made = make_pool(2)
    yield made
    made.cli("umount", made.mountpoint)


def test_daemon_returns_when_the_mount_answers(pool: PoolMount) -> None:
    ran = pool.cli("mount", "--daemon", pool.config)
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"{pool.mountpoint}: mounted, keeper ")
    os.close(os.open(pool.path(0), os.O_CREAT | os.O_RDWR))
    keeper = int(ran.out.split("keeper ")[1].split(",")[0])
    daemon = pool.status()["daemon"]["pid"]
    assert daemon != keeper
    for pid in (keeper, daemon):
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
    log = Path(ran.out.rpartition("log ")[2].strip())
    assert "event=ready" in log.read_text()
    ran = pool.cli("umount", pool.name)
    assert ran.status == 0


def test_daemon_without_a_keeper(pool: PoolMount) -> None:
    ran = pool.cli("mount", "--daemon", "--no-keeper", pool.config)
    assert ran.status == 0, ran.err
    pid = pool.status()["daemon"]["pid"]
    assert f": mounted, daemon {pid}, log " in ran.out
    assert os.getsid(pid) == pid
    assert pool.cli("umount", pool.name).status == 0


def test_daemon_passes_on_the_refusal_of_the_start(pool: PoolMount) -> None:
    os.removexattr(pool.disks[1], "user.commitlogfs.identity")
    foreground = pool.cli("mount", pool.config)
    background = pool.cli("mount", "--daemon", pool.config)
    assert background.status == foreground.status == 4
    assert background.err == foreground.err[foreground.err.index("commitlogfs: ") :]
    assert f"{pool.disks[1]}: carries no identity" in background.err
    assert mounts_at(pool) == 0


def test_daemon_reports_a_bad_configuration(pool: PoolMount) -> None:
    pool.config.write_text("mountpont = 1\n")
    ran = pool.cli("mount", "--daemon", pool.config)
    assert ran.status == 2
    assert "did you mean mountpoint?" in ran.err


# --- status and ready with none, one, several --------------------------------------------------------


def test_nothing_runs(pool: PoolMount) -> None:
    for arguments, status, words in (
        (("status",), 3, "no mount is running"),
        (("status", f"absent{os.getpid()}"), 2, "no such mount or configuration"),
        (("status", pool.config), 3, "no daemon is running"),
        (("status", pool.mountpoint), 3, "no commitlogfs is mounted here"),
        (("ready", pool.config), 3, "not ready: nothing is mounted here"),
        (("ready", pool.mountpoint), 3, "not ready: nothing is mounted here"),
        (("umount", pool.config), 3, "no commitlogfs is mounted here"),
        (("umount", pool.mountpoint), 3, "no commitlogfs is mounted here"),
        (("umount", "/"), 3, "no commitlogfs is mounted here"),
    ):
        ran = pool.cli(*arguments)
        assert (ran.status, ran.out) == (status, ""), (arguments, ran)
        assert words in ran.err
        assert ran.err.count("\n") == 1


def test_several_mounts_have_to_be_named(mounted: PoolMount, base_directory: Path) -> None:
    mounted.runtime.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(os.fspath(mounted.runtime / "other.sock"))  # a daemon that died left it
        assert mounted.cli("status").status == 0
        other.listen()
        ran = mounted.cli("map")
        assert ran.status == 2
        assert ran.err == "commitlogfs: 2 mounts are running; give one of other, test\n"
    assert mounted.cli("status", "test").status == 0
    assert mounted.cli("status", mounted.mountpoint).status == 0
