"""Ends that nobody planned: by an administrator, by the kernel, of everything at once, again and again. At most one
mount is ever there, no data is lost, and it is said what to do."""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bare_mounts import detach
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, segment_bytes
from support.processes import has_ended
from support.versions import VersionedMount, events
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.keeper.spawn import spawn
from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

GUARD = "COMMITLOG-NOT-MOUNTED"
SYS_PIDFD_GETFD = 438
DESCRIPTORS = ("fuse", "handshake", "backing")


def grow(pool: PoolMount, index: int) -> int:
    fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, MIB)
    return fd


def mounts(pool: PoolMount) -> list[mountinfo.MountEntry]:
    return [entry for entry in mountinfo.read_mounts() if entry.mountpoint == str(pool.mountpoint)]


def wait_for_end(pool: PoolMount) -> int:
    """Exit status of the keeper."""
    assert pool.daemon is not None
    status = pool.daemon.wait(PATIENCE_S)
    pool.daemon = None
    return status


def start_watched(pool: PoolMount) -> int:
    """Under a keeper that replaces a hung daemon; the daemon."""
    pool.start("--watchdog", "1")
    return int(eventually(lambda: events(pool, "daemon_ready"))[0].rpartition("pid=")[2].split()[0])


def await_daemon(pool: PoolMount, count: int) -> None:
    """Until so many daemons, one after the other, have become ready."""
    eventually(lambda: len(events(pool, "daemon_ready")) == count, shown=pool.log_path.read_text)


# --- the administrator -------------------------------------------------------------------------------------


def test_a_lazy_unmount_leaves_who_has_files_open_in_peace(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    daemon = start_watched(pool)
    fd = grow(pool, 0)
    mapped = mmap.mmap(fd, MIB)
    subprocess.run(["umount", "-l", str(pool.mountpoint)], check=True)
    mapped[:4] = b"goes"
    eventually(lambda: events(pool, "out_of_sight"))
    os.fsync(fd)
    assert os.fstat(fd).st_size == MIB
    assert os.listdir(pool.mountpoint) == [GUARD]
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4, "its disks are in use"
    assert not has_ended(daemon)
    mapped.close()
    os.close(fd)
    assert wait_for_end(pool) == 0
    assert has_ended(daemon)
    assert mounts(pool) == []
    assert not events(pool, "daemon_hung")
    assert len(events(pool, "daemon_started")) == 1
    pool.start()
    assert pool.path(0).read_bytes()[:4] == b"goes"


def test_a_lazy_unmount_between_two_daemons(keep: Callable[..., KeptMount]) -> None:
    """Processes with open files are still served; the daemon ends with the last of them."""
    kept = keep(2)
    fd = grow(kept.pool, 0)
    with mmap.mmap(fd, MIB) as mapped:
        kept.kill()
        detach(kept.pool.mountpoint)
        kept.go_on()
        mapped[:4] = b"goes"
        os.fsync(fd)
        assert os.pread(fd, 4, 0) == b"goes"
    os.close(fd)
    assert wait_for_end(kept.pool) == 0
    assert mounts(kept.pool) == []
    assert os.listdir(kept.pool.mountpoint) == [GUARD]


@pytest.fixture
def abort(workdir: Path) -> Iterator[Callable[[PoolMount], None]]:
    """Aborts the connection of a mount, as an administrator would."""
    control = workdir / "fusectl"
    control.mkdir()
    subprocess.run(["mount", "-t", "fusectl", "test", str(control)], check=True)

    def write(pool: PoolMount) -> None:
        (entry,) = mounts(pool)
        (control / str(os.minor(entry.device)) / "abort").write_text("1")

    yield write
    subprocess.run(["umount", str(control)], check=True)


def test_an_aborted_mount_is_made_anew(
    make_pool: Callable[..., PoolMount], abort: Callable[[PoolMount], None]
) -> None:
    pool = make_pool(2)
    start_watched(pool)
    pool.make_segments([0])
    abort(pool)
    await_daemon(pool, 2)
    eventually(lambda: events(pool, "connection_aborted"))
    eventually(lambda: events(pool, "mount_ended"))
    assert len(mounts(pool)) == 1
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    assert pool.status()["daemon"]["restarts"] == 0
    assert pool.status()["daemon"]["takeover_available"]
    pool.stop()


def test_an_aborted_mount_is_not_made_anew_while_somebody_holds_it(
    make_pool: Callable[..., PoolMount], abort: Callable[[PoolMount], None]
) -> None:
    pool = make_pool(2)
    start_watched(pool)
    fd = grow(pool, 0)
    with mmap.mmap(fd, MIB) as mapped:
        abort(pool)
        eventually(lambda: events(pool, "successor_refused"))
        mapped[:4] = b"goes"
        pool.require_logged(f"{pool.mountpoint}: in use by ")
        pool.require_logged(f"pid {os.getpid()}")
        assert len(mounts(pool)) == 1
    close(fd)
    await_daemon(pool, 2)
    assert len(mounts(pool)) == 1
    assert pool.path(0).read_bytes()[:4] == b"goes"
    pool.stop()


def test_a_mount_that_was_aborted_between_two_daemons(
    keep: Callable[..., KeptMount], abort: Callable[[PoolMount], None]
) -> None:
    kept = keep(2)
    kept.pool.make_segments([0])
    kept.kill()
    abort(kept.pool)
    kept.go_on()
    eventually(lambda: events(kept.pool, "kept_mount_gone"))
    assert len(mounts(kept.pool)) == 1
    assert kept.pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    kept.replace()  # its descriptors have taken the place of the old ones
    assert kept.pool.status()["daemon"]["restarts"] == 1


def test_files_of_an_aborted_mount_that_close_late(
    make_pool: Callable[..., PoolMount], abort: Callable[[PoolMount], None]
) -> None:
    """The kernel may still have the newest segment open, for the dead mount, when that has been unmounted."""
    pool = make_pool(2)
    start_watched(pool)
    pool.make_segments([0])
    fd = os.open(Path(pool.disks[0]) / pool.path(0).name, os.O_RDONLY)
    try:
        abort(pool)
        eventually(lambda: events(pool, "dead_mount_found"), shown=pool.log_path.read_text)
        eventually(lambda: not mounts(pool))
        time.sleep(0.3)
    finally:
        os.close(fd)
    await_daemon(pool, 2)
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    pool.stop()


def close(fd: int) -> None:
    """Closes a file whose mount no longer exists, which the kernel allows."""
    with contextlib.suppress(OSError):
        os.close(fd)


# --- two of them -------------------------------------------------------------------------------------------


def test_starting_twice(keep: Callable[..., KeptMount]) -> None:
    kept = keep(2)
    os.close(grow(kept.pool, 0))
    for options in ([], ["--daemon"], ["--no-keeper"]):
        ran = kept.pool.cli("mount", *options, kept.pool.config)
        assert (ran.status, ran.out) == (4, ""), options
        assert ran.err.splitlines()[-1].startswith("commitlogfs: "), options
        assert len(mounts(kept.pool)) == 1
    assert kept.pool.status()["daemon"]["pid"] == kept.daemon
    os.close(grow(kept.pool, 1))


@pytest.mark.parametrize("directory", ["same", "emptied"])
def test_two_daemons_with_the_same_descriptors(keep: Callable[..., KeptMount], directory: str) -> None:
    """The first one is stopped and may go on at any moment: the second must not answer a single request, even if
    the runtime directory with its lock was emptied."""
    kept = keep(2)
    pool = kept.pool
    assert pool.daemon is not None
    os.kill(pool.daemon.pid, signal.SIGSTOP)
    descriptors = copied_descriptors(pool.daemon.pid)
    os.kill(kept.daemon, signal.SIGSTOP)
    try:
        if directory == "emptied":
            for path in pool.runtime.iterdir():
                path.unlink()
        command = [sys.executable, "-m", "commitlogfs.mount.serve", str(pool.config)]
        second = spawn(command, pool.env, list(descriptors.items()))
        status = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    finally:
        os.kill(kept.daemon, signal.SIGCONT)
        os.kill(pool.daemon.pid, signal.SIGCONT)
        for fd in descriptors.values():
            os.close(fd)
    assert status == 4
    pool.make_segments(range(3))
    assert len(os.listdir(pool.mountpoint)) == 3
    assert len(mounts(pool)) == 1


def copied_descriptors(keeper: int) -> dict[str, int]:
    """Copies of what the keeper keeps, by name."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(keeper)
    found = {}
    for link in Path(f"/proc/{keeper}/fd").iterdir():
        target = os.readlink(link)
        for name in DESCRIPTORS:
            if target == f"/dev/{name}" or f"commitlogfs-{name} " in target:
                found[name] = libc.syscall(SYS_PIDFD_GETFD, pidfd, int(link.name), 0)
    os.close(pidfd)
    assert sorted(found) == sorted(DESCRIPTORS)
    assert min(found.values()) > 0
    return {name: found[name] for name in DESCRIPTORS}


# --- again and again ---------------------------------------------------------------------------------------

CRASHES = {
    "at once": "import os; os._exit(70)",
    "after the takeover": """
import os
from commitlogfs.mount.daemon.served_mount import ServedMount
mount = ServedMount.mount
ServedMount.mount = lambda self: (mount(self), os._exit(70))
""",
    "before it is ready": """
import os
from commitlogfs.mount.linux import notify
notify.ready = lambda text="": os._exit(70)
""",
}


@pytest.mark.parametrize("stage", CRASHES)
def test_a_crash_loop_harms_nobody(keep_versions: Callable[..., VersionedMount], stage: str) -> None:
    mount = keep_versions(2)
    pool = mount.pool
    fd = grow(pool, 0)
    mapped = mmap.mmap(fd, MIB)
    mount.kill()
    mount.before(CRASHES[stage])
    assert pool.daemon is not None
    os.kill(pool.daemon.pid, signal.SIGCONT)
    # One that is about to be ready has answered: it did not fail to start.
    end = "daemon_died" if stage == "before it is ready" else "successor_failed"
    eventually(lambda: len(mount.events(end)) >= 4)
    mapped[:4] = b"goes"
    there = mounts(pool)
    mount.before("")
    mount.wait_ready(2)
    assert len(there) == len(mounts(pool)) == 1
    os.fsync(fd)
    assert os.pread(fd, 4, 0) == b"goes"
    assert not pool.status()["daemon"]["state_lost"]
    mapped.close()
    os.close(fd)


# --- a daemon that takes no requests -----------------------------------------------------------------------

DEAF = {
    "fusefs/connection.py": (
        "await pyfuse3.main(max_tasks=MAX_TASKS)",
        "with trio.move_on_after(3):\n            await pyfuse3.main(max_tasks=MAX_TASKS)\n"
        "        await trio.sleep_forever()",
    )
}
"""After a while, although its event loop runs."""
_ASK_AND_ASK = "import os, sys\nwhile True: os.statvfs(sys.argv[1])"


def test_a_daemon_that_takes_no_requests_is_replaced(make_pool: Callable[..., PoolMount]) -> None:
    mount = VersionedMount(make_pool(2), watchdog_s=1)
    mount.make("deaf", DEAF)
    mount.choose("deaf")
    mount.start()
    mount.choose(None)
    deaf = mount.daemon
    with subprocess.Popen([sys.executable, "-c", _ASK_AND_ASK, str(mount.pool.mountpoint)]) as client:
        eventually(lambda: mount.events("requests_not_taken"))
        eventually(lambda: mount.events("daemon_hung", pid=deaf))
        mount.wait_ready(2)
        assert client.poll() is None
        client.kill()
    mount.pool.make_segments([0])
    assert mount.pool.status()["daemon"]["pid"] != deaf
    mount.pool.stop()


# --- a daemon that nobody can follow -----------------------------------------------------------------------


@pytest.fixture
def without_takeover(make_pool: Callable[..., PoolMount]) -> VersionedMount:
    mount = VersionedMount(make_pool(2), watchdog_s=1)
    mount.without_extension("bare")
    mount.choose("bare")
    mount.start()
    return mount


def test_a_mortal_daemon_that_hangs_is_told_and_not_killed(without_takeover: VersionedMount) -> None:
    pool = without_takeover.pool
    daemon = pool.status()["daemon"]
    assert not daemon["takeover_available"]
    assert "C extension" in daemon["takeover_unavailable_reason"]
    pool.make_segments([0])
    os.kill(daemon["pid"], signal.SIGSTOP)
    eventually(lambda: without_takeover.events("hung_daemon_without_takeover", pid=daemon["pid"]))
    os.kill(daemon["pid"], signal.SIGCONT)
    eventually(lambda: without_takeover.events("daemon_answers_again"))
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    assert pool.status()["daemon"]["pid"] == daemon["pid"]
    assert not without_takeover.events("daemon_hung")
    pool.stop()


def test_a_mortal_daemon_that_dies_is_followed_by_another_mount(without_takeover: VersionedMount) -> None:
    pool = without_takeover.pool
    pool.make_segments([0])
    fd = os.open(pool.path(0), os.O_RDONLY)
    os.kill(without_takeover.daemon, signal.SIGKILL)
    eventually(lambda: without_takeover.events("successor_refused"))
    eventually(lambda: without_takeover.events("mount_ended"))
    pool.require_logged(f"{pool.mountpoint}: in use by ")
    close(fd)
    without_takeover.wait_ready(2)
    assert len(mounts(pool)) == 1
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
    pool.stop()


# --- the machine -------------------------------------------------------------------------------------------


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory control group (cgroup v1, or v2 with that controller)."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        root = Path(path)
        if kind == "cgroup" and "memory" in options.split(","):
            break
        if kind == "cgroup2" and "memory" in (root / "cgroup.subtree_control").read_text().split():
            break
    else:
        pytest.skip("no memory control groups")
    group = root / f"commitlogfs-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made ({error.strerror})")
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_the_kernel_takes_the_daemon_for_its_memory(keep: Callable[..., KeptMount], memory_group: Path) -> None:
    kept = keep(2)
    fd = grow(kept.pool, 0)
    with mmap.mmap(fd, MIB) as mapped:
        mapped[:6] = b"before"
        limit = memory_group / "memory.limit_in_bytes"
        (limit if limit.exists() else memory_group / "memory.max").write_text("0")
        (memory_group / "cgroup.procs").write_text(str(kept.daemon))

        def was_killed() -> list[str]:
            (kept.pool.mountpoint / ".commitlogfs/status.json").read_bytes()  # costs memory; somebody answers
            return events(kept.pool, "daemon_died")

        eventually(was_killed)
        os.fsync(fd)
        assert mapped[:6] == b"before"
    os.close(fd)
    (died,) = events(kept.pool, "daemon_died")
    assert "how=SIGKILL" in died
    assert kept.pool.status()["daemon"]["restarts"] == 1


def test_no_descriptor_left_in_the_daemon(mounted: PoolMount) -> None:
    assert mounted.daemon is not None
    pid = mounted.daemon.pid
    mounted.make_segments(range(2))
    held = os.open(mounted.path(0), os.O_RDWR)
    eventually(lambda: not mounted.has_open(Path(mounted.disks[1]) / mounted.path(1).name))

    def used() -> set[int]:
        return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}

    before = used()
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest_free = next(number for number in range(len(before) + 1) if number not in before)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    for _ in range(20):
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            os.open(mounted.path(1), os.O_RDONLY)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            os.open(mounted.path(7), os.O_RDWR | os.O_CREAT)
    os.pwrite(held, b"goes", 0)
    os.fsync(held)
    assert mounted.path(1).stat().st_size == MIB
    assert len(os.listdir(mounted.mountpoint)) == 2
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert mounted.path(1).read_bytes()[:4096] == segment_bytes(1, 4096)
    os.close(grow(mounted, 7))
    os.close(held)
    eventually(lambda: len(used()) < len(before))
    text = (mounted.mountpoint / ".commitlogfs/metrics").read_text()
    for op in ("open", "create"):
        assert f'commitlogfs_fuse_ops_total{{errno="EMFILE",op="{op}",pool="test"}} 20.0' in text
    assert [disk["last_error"] for disk in mounted.status()["disks"]] == ["", "", ""]
    assert "unexpected_error" not in mounted.log_since_start()


def test_everything_is_killed_at_once_and_the_way_back(keep: Callable[..., KeptMount]) -> None:
    kept = keep(2)
    pool = kept.pool
    pool.make_segments(range(3))
    kept.kill()
    pool.kill()
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.listdir(pool.mountpoint)  # no broker starts over this
    assert pool.cli("ready", pool.mountpoint).status == 3
    assert pool.cli("umount", pool.mountpoint).status == 0
    assert os.listdir(pool.mountpoint) == [GUARD]  # nor over this
    with pytest.raises(PermissionError):
        (pool.mountpoint / pool.path(9).name).touch()
    kept.start()
    assert len(mounts(pool)) == 1
    for index in range(3):
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)


def test_the_machine_loses_power(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    disks = [disk_farm.add("ext4") for _ in range(2)]
    for disk in disks:
        (disk.path / "cl").mkdir()
    kept = keep(disks=[disk.path / "cl" for disk in disks])
    pool = kept.pool
    for index in range(4):
        fd = grow(pool, index)
        with mmap.mmap(fd, MIB) as mapped:
            mapped[:4096] = segment_bytes(index, 4096)
            mapped.flush()
        os.close(fd)
    for disk in disks:
        disk.vanish()
    kept.kill()
    pool.kill()
    detach(pool.mountpoint)
    shutil.rmtree(pool.runtime)
    for disk in disks:
        disk.repair()
    assert os.listdir(pool.mountpoint) == [GUARD]
    kept.start()
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(4)]
    for index in range(4):
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    assert pool.status()["segments"]["gaps"] == []


def test_a_mount_whose_keeper_runs_is_not_to_be_started(keep: Callable[..., KeptMount]) -> None:
    mount = keep(2)
    mount.kill()  # its keeper is stopped
    ran = mount.pool.cli("status", mount.pool.name)
    mount.go_on()
    assert ran.status == 3
    assert "no daemon answers at this moment, but its keeper runs; try again" in ran.err
    assert mount.pool.cli("status", mount.pool.name).status == 0
