"""The real daemon under its keeper: files that are open go on whatever dies, and nothing is ever stacked."""

import contextlib
import errno
import mmap
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ran, run_cli
from support.pools import MIB, PoolMount, segment_bytes
from support.processes import has_ended
from support.terminals import Terminal
from support.timings import WITH_STANDBY, timing_variables
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench import sweep
from commitlogfs.bench.recovery import busy_processes
from commitlogfs.mount.keeper.options import DEFAULT_WATCHDOG_S
from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root]

SOAK_S = float(os.environ.get("COMMITLOGFS_SOAK_S", "3600"))


class Kept:
    """A pool in the foreground of `commitlogfs mount`, which is the keeper."""

    def __init__(self, pool: PoolMount) -> None:
        self.pool = pool

    @property
    def keeper(self) -> subprocess.Popen[bytes]:
        assert self.pool.daemon is not None
        return self.pool.daemon

    def daemon_pid(self) -> int:
        pid: int = self.pool.status()["daemon"]["pid"]
        return pid

    def kill_daemon(self, number: int = signal.SIGKILL) -> int:
        """Its pid; it was READY, as the keeper sees it."""
        pid = self.daemon_pid()
        eventually(lambda: self.events("daemon_ready", pid=pid))
        os.kill(pid, number)
        return pid

    def wait_for_another(self, former: int) -> int:
        def look() -> int:
            ran = self.pool.cli("status", self.pool.name, "--json")
            pid: int = ran.json()["daemon"]["pid"] if ran.status == 0 else former
            return pid if pid != former else 0

        return eventually(look)

    def children(self) -> set[int]:
        return {
            int(pid) for pid in Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
        }

    def events(self, name: str, **fields: object) -> list[str]:
        wanted = [f"event={name}", *(f"{key}={value}" for key, value in fields.items())]
        return [
            line
            for line in self.pool.log_path.read_text().splitlines()
            if all(f" {text} " in f"{line} " for text in wanted)
        ]

    def mounts(self) -> list[mountinfo.MountEntry]:
        return [entry for entry in mountinfo.read_mounts() if entry.mountpoint == str(self.pool.mountpoint)]


@pytest.fixture
def kept(make_pool: Callable[..., PoolMount]) -> Kept:
    pool = make_pool(2)
    pool.start("--watchdog", "0")
    return Kept(pool)


def test_open_files_and_mappings_survive_the_daemon(kept: Kept):
    pool = kept.pool
    (mount,) = kept.mounts()
    pool.make_segments([0])
    fd = os.open(pool.path(0), os.O_RDWR)
    with mmap.mmap(fd, MIB) as mapped:
        mapped[:8] = b"before  "
        former = kept.kill_daemon()
        mapped[8:16] = b"while   "
        mapped.flush()
        os.fsync(fd)  # waits for the successor, and succeeds
        assert kept.wait_for_another(former)
        assert os.fstat(fd).st_size == MIB
        mapped[16:24] = b"after   "
        assert os.pread(fd, 24, 0) == b"before  while   after   "
    os.close(fd)
    assert pool.path(0).read_bytes()[:16] == b"before  while   "
    pool.make_segments([1])
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(0).name, pool.path(1).name]
    assert kept.mounts() == [mount]
    pool.stop()


@pytest.mark.parametrize("standby", [True, False])
def test_who_stands_by_is_the_successor(make_pool: Callable[..., PoolMount], standby: bool):
    pool = make_pool(2, variables=timing_variables(WITH_STANDBY))
    pool.start("--watchdog", "0", *([] if standby else ["--no-standby"]))
    kept = Kept(pool)
    pool.make_segments([0])
    former = kept.daemon_pid()
    if standby:
        (waiting,) = eventually(lambda: kept.children() - {former})
    else:
        waiting = 0
    fd = os.open(pool.path(0), os.O_RDWR)
    kept.kill_daemon()
    os.fsync(fd)
    os.close(fd)
    pid = kept.wait_for_another(former)
    eventually(lambda: kept.events("daemon_started", pid=pid, stood_by=str(standby).lower()))
    if standby:
        assert pid == waiting
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    pool.make_segments([1])
    pool.stop()


@pytest.mark.full
@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.soak)])
def test_kills_in_a_row_under_a_writer(kept: Kept, kills: int):
    pool = kept.pool
    (mount,) = kept.mounts()
    pool.make_segments([0])
    written, failures, stop = [], [], threading.Event()

    def write() -> None:
        index = 1
        while not stop.is_set():
            try:
                pool.make_segments([index])
            except OSError as error:
                failures.append(error)
                return
            written.append(index)
            index += 1
            stop.wait(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        pid = kept.daemon_pid()
        pids = {pid}
        for _ in range(kills):
            kept.kill_daemon()
            pid = kept.wait_for_another(pid)
            pids.add(pid)
    finally:
        stop.set()
        writer.join(PATIENCE_S)
    assert not writer.is_alive()
    assert not failures
    assert len(pids) == kills + 1
    assert kept.mounts() == [mount]
    for index in [0, *written]:
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    pool.stop()


def test_restart_replaces_the_daemon(kept: Kept):
    pool = kept.pool
    pool.make_segments([0])
    former = kept.daemon_pid()
    eventually(lambda: kept.events("daemon_ready", pid=former))
    with pool.path(0).open("rb") as opened:
        ran = pool.cli("restart", pool.name, "--json")
        assert ran.status == 0, ran.err
        document: dict[str, Any] = ran.json()
        assert document["name"] == pool.name
        assert document["former_pid"] == former
        assert document["pid"] == kept.daemon_pid() != former
        assert document["seconds"] > 0
        assert opened.read(4096) == segment_bytes(0, 4096)
    ran = pool.cli("restart", pool.mountpoint)
    assert ran.status == 0, ran.err
    assert f"test: daemon {document['pid']} replaced by {kept.daemon_pid()} in " in ran.out
    assert not kept.events("daemon_died")
    pool.stop()


@pytest.mark.timing
def test_a_restart_takes_less_than_half_a_minute(kept: Kept):
    ran = kept.pool.cli("restart", kept.pool.name, "--json")
    assert ran.status == 0, ran.err
    assert 0 < ran.json()["seconds"] < 30


def test_a_dry_run_restarts_nothing(kept: Kept):
    pid = kept.daemon_pid()
    ran = kept.pool.cli("restart", kept.pool.config, "--dry-run")
    assert ran.status == 0, ran.err
    assert f"daemon {pid} would" in ran.out
    assert kept.daemon_pid() == pid


def test_a_restart_to_another_segment_size_is_refused(kept: Kept):
    pool = kept.pool
    size = f"segment_size = {pool.segment_size}"
    pool.config.write_text(pool.config.read_text().replace(size, f"segment_size = {2 * pool.segment_size}"))
    ran = pool.cli("restart", pool.name)
    assert ran.status == 4
    assert f"segment_size from {pool.segment_size} to {2 * pool.segment_size}" in ran.err
    assert "needs a new, empty pool" in ran.err
    assert "unmount" not in ran.err


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["restart", "dry-run"])
def test_restart_where_nobody_keeps_the_descriptors(mounted: PoolMount, options: list[str]):
    ran = mounted.cli("restart", mounted.name, *options)
    assert ran.status == 4, ran.err
    assert "not restarted" in ran.err
    assert mounted.status()["daemon"]["pid"] == mounted.daemon.pid


def test_restart_of_nothing(make_pool: Callable[..., PoolMount]):
    pool = make_pool(2)
    ran = pool.cli("restart", pool.config)
    assert ran.status == 3
    assert "no daemon is running" in ran.err
    ran = pool.cli("restart", "nothing")
    assert ran.status == 2
    assert "nothing: no such mount or configuration" in ran.err


def test_restart_tells_when_no_successor_comes(kept: Kept):
    pool = kept.pool
    former = kept.daemon_pid()
    eventually(lambda: kept.events("daemon_ready", pid=former))
    good = pool.config.read_text()
    size = f"segment_size = {pool.segment_size}"
    pool.config.write_text(good.replace(size, f"segment_size = {2 * pool.segment_size}"))
    ran = pool.cli("restart", pool.name, "--timeout", "1", "--force")
    assert ran.status == 1
    assert f"no successor of daemon {former} has answered within 1 s" in ran.err
    assert len(kept.mounts()) == 1
    pool.config.write_text(good)
    assert kept.wait_for_another(former)  # the keeper tries again
    pool.stop()


def test_a_refusing_successor_keeps_open_files_going(kept: Kept):
    pool = kept.pool
    pool.make_segments([0])
    good = pool.config.read_text()
    fd = os.open(pool.path(0), os.O_RDWR)
    with mmap.mmap(fd, MIB) as mapped:
        pool.config.write_text("nonsense = 1\n" + good)
        former = kept.kill_daemon()
        eventually(lambda: kept.events("successor_refused"))
        mapped[:4] = b"goes"
        assert mapped[:4] == b"goes"
        assert len(kept.mounts()) == 1
        pool.config.write_text(good)
        assert kept.wait_for_another(former)
    os.close(fd)
    pool.stop()


def test_a_stopped_daemon_is_replaced(make_pool: Callable[..., PoolMount]):
    pool = make_pool(2)
    pool.start("--watchdog", "1")
    kept = Kept(pool)
    former = kept.kill_daemon(signal.SIGSTOP)
    assert kept.wait_for_another(former)
    eventually(lambda: kept.events("daemon_hung", pid=former))
    pool.stop()


@pytest.mark.timing
def test_a_stopped_daemon_is_replaced_before_a_broker_gives_up(make_pool: Callable[..., PoolMount]):
    """With the keeper's default; a broker waits 5 s for a new segment."""
    pool = make_pool(2)
    pool.start("--watchdog", f"{DEFAULT_WATCHDOG_S:g}")
    kept = Kept(pool)
    eventually(lambda: kept.children() - {kept.daemon_pid()})  # one stands by
    former = kept.kill_daemon(signal.SIGSTOP)
    started = time.monotonic()
    pool.make_segments([0])
    seconds = time.monotonic() - started
    assert seconds < 4.5, kept.pool.log_path.read_text()
    eventually(lambda: kept.events("daemon_hung", pid=former))
    pool.stop()


@pytest.mark.full
def test_daemons_killed_at_their_first_answer_are_replaced(kept: Kept):
    """More in a row than starts may fail: the client has its answer before the daemon is READY."""
    pool = kept.pool
    pool.make_segments([0])
    with pool.path(0).open("rb") as opened:
        former = kept.daemon_pid()
        eventually(lambda: kept.events("daemon_ready", pid=former))
        for count in range(2, 18):
            os.kill(former, signal.SIGKILL)
            os.statvfs(pool.mountpoint)
            (line,) = eventually(lambda count=count: kept.events("daemon_started")[count - 1 :])
            former = int(line.split(" pid=")[1].split()[0])
        assert not kept.events("successor_failed")
        assert kept.wait_for_another(0) == former
        assert opened.read(4096) == segment_bytes(0, 4096)
    pool.stop()


def test_stop_signals_unmount_or_say_why_not(kept: Kept):
    pool = kept.pool
    pool.make_segments([0])
    eventually(lambda: kept.events("daemon_ready"))
    with pool.path(0).open("rb"):
        kept.keeper.send_signal(signal.SIGTERM)
        eventually(lambda: kept.events("stop_refused"))
        assert kept.keeper.poll() is None
        assert kept.daemon_pid()
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(PATIENCE_S) == 0
    assert kept.mounts() == []


def test_a_killed_keeper_is_replaced(kept: Kept):
    pool = kept.pool
    pool.make_segments([0])
    pid = kept.daemon_pid()
    eventually(lambda: kept.events("daemon_ready", pid=pid))
    with pool.path(0).open("rb") as opened:
        pool.kill()
        eventually(lambda: kept.events("daemon_adopted", pid=pid))
        assert kept.daemon_pid() == pid
        os.kill(pid, signal.SIGKILL)
        assert kept.wait_for_another(pid)
        assert opened.read(4096) == segment_bytes(0, 4096)
    assert pool.cli("umount", pool.name).status == 0
    assert kept.mounts() == []


def _error_of_listing(directory: Path) -> int:
    """A request that meets the last thread of a dying daemon ends with ECONNABORTED, later ones with ENOTCONN."""
    try:
        os.listdir(directory)
    except OSError as error:
        return error.errno or 0
    return 0


@pytest.mark.timing
@pytest.mark.parametrize(
    "seconds",
    [
        8.0,
        pytest.param(SOAK_S, marks=[pytest.mark.soak, pytest.mark.timeout(2 * SOAK_S + 600)]),
    ],
)
def test_no_false_alarm_beside_busy_processes(make_pool: Callable[..., PoolMount], seconds: float):
    """16 per processor, each in a session of its own, and the keeper's default watchdog."""
    pool = make_pool(2)
    pool.start("--watchdog", f"{DEFAULT_WATCHDOG_S:g}")
    kept = Kept(pool)
    eventually(lambda: kept.events("daemon_ready"))
    with busy_processes(16 * (os.cpu_count() or 1)):
        time.sleep(seconds)  # not for a condition: nothing is to happen
    assert len(kept.events("daemon_started")) == 1
    assert not kept.events("daemon_hung")
    assert not kept.events("requests_not_taken")
    pool.stop()


def test_an_unmounted_mount_leaves_no_runtime_files(kept: Kept):
    pool = kept.pool
    directory = Path(pool.env["COMMITLOGFS_RUNTIME_DIR"])
    suffixes = {".sock", ".stat", ".lock", ".keep", ".note", ".daemons", ".journal"}
    assert {path.suffix for path in directory.iterdir()} == suffixes
    pool.stop()
    assert not list(directory.iterdir())
    pool.start()  # without a keeper
    pool.stop()
    assert not list(directory.iterdir())


def _unmount_once(mountpoint: Path) -> bool:
    return subprocess.run(["umount", "--no-canonicalize", str(mountpoint)], check=False).returncode == 0


def _stop_probe(daemon: int, mountpoint: Path, change: Callable[[], bool]) -> int:
    """Pid of a probe of this daemon that was stopped before `change` succeeded; 0 if there is none.

    A probe that was stopped within its statfs holds the mount, so an unmount fails. Such a probe continues.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread or a probe has ended
        for task in Path(f"/proc/{daemon}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                os.kill(pid, signal.SIGSTOP)
                if str(mountpoint).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and change():
                    return pid
                os.kill(pid, signal.SIGCONT)
    return 0


_LOOKS = 1000
"""Without a pause between them, as a probe lasts some milliseconds."""


def _stop_probe_of_successor(kept: Kept, change: Callable[[], bool]) -> int:
    """As `_stop_probe`, with the probe by which a successor finds out that it is ready: the daemon is killed first,
    again and again until a probe is caught."""

    caught: list[int] = []
    killed = 0  # ready daemons of which the last one was killed

    def catch() -> bool:
        nonlocal killed
        if len(kept.events("daemon_ready")) > killed:
            kept.kill_daemon()
            killed = len(kept.events("daemon_ready"))
        for _ in range(_LOOKS):
            if kept.keeper.poll() is not None or len(kept.events("daemon_ready")) > killed:
                break
            for pid in kept.children():
                if probe := _stop_probe(pid, kept.pool.mountpoint, change):
                    caught.append(probe)
                    return True
        return False

    eventually(lambda: kept.events("daemon_ready"))
    eventually(lambda: catch() or kept.keeper.poll() is not None, shown=kept.pool.log_path.read_text)
    assert caught, f"the keeper has ended:\n{kept.pool.log_path.read_text()}"
    return caught[0]


def test_an_unmount_while_a_successor_is_probed_ends_well(kept: Kept):
    mountpoint = kept.pool.mountpoint
    os.kill(_stop_probe_of_successor(kept, lambda: _unmount_once(mountpoint)), signal.SIGCONT)
    assert kept.keeper.wait(PATIENCE_S) == 0, kept.pool.log_path.read_text()
    assert kept.mounts() == []


def test_a_successor_gets_ready_below_another_mount(kept: Kept):
    """The other mount is made while the successor probes its own: `umount` refuses, and open files are served."""
    pool = kept.pool
    cover = ["mount", "-t", "tmpfs", "none", str(pool.mountpoint)]
    pool.make_segments([0])
    with pool.path(0).open("rb") as opened:
        probe = _stop_probe_of_successor(kept, lambda: subprocess.run(cover, check=False).returncode == 0)
        try:
            count, started = len(kept.events("daemon_ready")), len(kept.events("daemon_started"))
            os.kill(probe, signal.SIGCONT)
            eventually(lambda: len(kept.events("daemon_ready")) > count)
            assert len(kept.events("daemon_started")) == started, pool.log_path.read_text()
            assert opened.read(4096) == segment_bytes(0, 4096)
            ran = pool.cli("umount", pool.name)
            assert ran.status == 4
            assert "the mount is not visible there" in ran.err
        finally:
            assert _unmount_once(pool.mountpoint)
    pool.stop()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_successor_gets_ready_if_another_mount_is_gone_after_its_probe(kept: Kept):
    """The probe sees the other mount. The daemon looks only when that one is gone, and its own mount answers."""
    pool = kept.pool
    cover = ["mount", "-t", "tmpfs", "none", str(pool.mountpoint)]
    probe = _stop_probe_of_successor(kept, lambda: subprocess.run(cover, check=False).returncode == 0)
    count, started = len(kept.events("daemon_ready")), len(kept.events("daemon_started"))
    daemon = int(Path(f"/proc/{probe}/stat").read_text().rpartition(")")[2].split()[1])
    eventually(lambda: _state(probe) == "T")  # the daemon has answered what the probe asked
    os.kill(daemon, signal.SIGSTOP)
    try:
        eventually(lambda: _state(daemon) == "T")
        os.kill(probe, signal.SIGCONT)
        eventually(lambda: _state(probe) == "Z")
        assert _unmount_once(pool.mountpoint)
    finally:
        os.kill(daemon, signal.SIGCONT)
    eventually(lambda: len(kept.events("daemon_ready")) > count)
    assert len(kept.events("daemon_started")) == started, pool.log_path.read_text()
    pool.stop()


def test_keeper_and_daemon_killed_together(kept: Kept):
    """The mount is dead; one `mount` clears it away and mounts again, and the data is there."""
    pool = kept.pool
    pool.make_segments([0])
    daemon = kept.daemon_pid()
    os.kill(kept.keeper.pid, signal.SIGSTOP)
    os.kill(daemon, signal.SIGKILL)
    pool.kill()
    eventually(lambda: _error_of_listing(pool.mountpoint) == errno.ENOTCONN)
    assert len(kept.mounts()) == 1
    pool.start("--watchdog", "0")
    assert len(kept.mounts()) == 1
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    pool.stop()


def test_the_keeper_holds_nothing_of_the_mount(kept: Kept):
    directory = Path(f"/proc/{kept.keeper.pid}")
    (mount,) = kept.mounts()
    for info in (directory / "fdinfo").iterdir():
        assert f"mnt_id:\t{mount.mount_id}\n" not in info.read_text()
    assert os.readlink(directory / "cwd") == "/"
    links = sorted(os.readlink(link) for link in (directory / "fd").iterdir())
    assert links.count("/dev/fuse") == 1


def test_in_the_background_the_keeper_is_whom_to_signal(make_pool: Callable[..., PoolMount]):
    pool = make_pool(2)
    ran = pool.cli("mount", "--daemon", pool.config)
    assert ran.status == 0, ran.err
    keeper = int(ran.out.split("keeper ")[1].split(",")[0])
    pidfd = os.pidfd_open(keeper)
    command = Path(f"/proc/{keeper}/cmdline").read_bytes().split(b"\0")
    assert b"commitlogfs.mount.keeper" in command
    assert pool.status()["daemon"]["pid"] != keeper
    os.kill(keeper, signal.SIGTERM)
    eventually(lambda: has_ended(keeper))
    os.close(pidfd)
    assert mountinfo.find_mount(pool.mountpoint) is None


def test_a_first_try_under_a_keeper(make_pool: Callable[..., PoolMount]):
    pool = make_pool(2, born=False)
    disks = ",".join(map(str, pool.disks))
    where = str(pool.mountpoint)
    # Named after its mountpoint, and a socket's path is short.
    with sweep.run("test", print, sweep.SOCKETS_PARENT) as runtime:

        def cli(verb: str, *arguments: str) -> Ran:
            return run_cli(verb, *arguments, where, env={"COMMITLOGFS_RUNTIME_DIR": str(runtime)})

        ran = cli("mount", "--init", disks, "--segment-size", "1MiB", "--daemon")
        assert ran.status == 0, ran.err
        assert stat.S_IMODE(pool.mountpoint.stat().st_mode) == 0o750
        former = cli("status", "--json").json()["daemon"]["pid"]
        ran = cli("restart", "--json")
        assert ran.status == 0, ran.err
        assert ran.json()["former_pid"] == former
        assert cli("status", "--json").json()["daemon"]["pid"] == ran.json()["pid"] != former
        ran = cli("umount")
        assert ran.status == 0
        assert f"`commitlogfs umount --unguard {where}` removes it" in ran.out


def test_a_first_try_on_a_terminal(make_pool: Callable[..., PoolMount]):
    """In the foreground: it says that it runs, and how to end it. Directories are made only with --create."""
    pool = make_pool(2, born=False)
    for disk in pool.disks:
        disk.rmdir()
    disks = ",".join(map(str, pool.disks))
    with sweep.run("test", print, sweep.SOCKETS_PARENT) as runtime:
        env = {"COMMITLOGFS_RUNTIME_DIR": str(runtime)}
        line = ("mount", "--init", disks, "--segment-size", "1MiB")
        ran = run_cli(*line, pool.mountpoint, env=env)
        assert (ran.status, f"{pool.disks[0]}: does not exist; mount its disk" in ran.err) == (4, True)
        assert not any(disk.exists() for disk in pool.disks)
        with contextlib.closing(Terminal(pool, *line, "--create", pool.mountpoint, env=env)) as terminal:
            eventually(lambda: f"{pool.mountpoint}: mounted; Ctrl-C unmounts it" in terminal.text())
            assert mountinfo.find_mount(pool.mountpoint) is not None
            assert terminal.interrupt() == 0
        assert mountinfo.find_mount(pool.mountpoint) is None


def test_resident_memory(kept: Kept):
    resident = Path(f"/proc/{kept.keeper.pid}/status").read_text().split("VmRSS:")[1].split()[0]
    assert int(resident) < 24 * 1024
