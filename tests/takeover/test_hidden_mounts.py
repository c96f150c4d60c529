"""A takeover goes by the connection, not by a path: a living mount is never given up."""

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bare_mounts import cover, unmount
from support.kept import KeptMount, newest_keeper
from support.pools import MIB, PoolMount, segment_bytes
from support.versions import VersionedMount
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import control_socket, runtime_directory

pytestmark = [pytest.mark.mounted, pytest.mark.root]

GUARD = "COMMITLOG-NOT-MOUNTED"


def mounts(pool: PoolMount) -> list[str]:
    """Where the pool is mounted, anywhere below its directory."""
    return [entry.mountpoint for entry in mountinfo.mounts_below(pool.workdir) if mountinfo.is_commitlogfs(entry)]


@pytest.fixture
def held(keep: Callable[..., KeptMount]) -> Iterator[tuple[KeptMount, mmap.mmap, int]]:
    """A mount whose one segment is open and mapped."""
    kept = keep(2)
    fd = os.open(kept.pool.path(0), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, MIB)
    with mmap.mmap(fd, MIB) as mapped:
        yield kept, mapped, fd
    os.close(fd)


def is_served(mapped: mmap.mmap, fd: int) -> bool:
    mapped[:4] = b"goes"
    os.fsync(fd)
    return os.pread(fd, 4, 0) == b"goes"


@pytest.mark.parametrize("above", [0, 1], ids=["the mountpoint", "its directory"])
def test_covered(held: tuple[KeptMount, mmap.mmap, int], above: int) -> None:
    kept, mapped, fd = held
    kept.kill()
    covered = [kept.pool.mountpoint, kept.pool.mountpoint.parent][above]
    cover(covered)
    try:
        kept.go_on()
        assert is_served(mapped, fd)
    finally:
        unmount(covered)
    assert kept.pool.path(0).read_bytes()[:4] == b"goes"
    assert mounts(kept.pool) == [str(kept.pool.mountpoint)]


def test_a_stop_leaves_what_covers_it(held: tuple[KeptMount, mmap.mmap, int]) -> None:
    kept, mapped, fd = held
    cover(kept.pool.mountpoint)
    try:
        os.kill(kept.daemon, signal.SIGTERM)
        eventually(lambda: "event=stop_refused" in kept.pool.log_since_start())
        covering = mountinfo.find_mount(kept.pool.mountpoint)
        assert covering is not None
        assert covering.fstype == "tmpfs"
    finally:
        unmount(kept.pool.mountpoint)
    assert is_served(mapped, fd)


def test_moved_with_its_directory(held: tuple[KeptMount, mmap.mmap, int]) -> None:
    kept, mapped, fd = held
    directory = kept.pool.mountpoint.parent
    elsewhere = directory.with_name("elsewhere")
    kept.kill()
    directory.rename(elsewhere)
    try:
        kept.go_on()
        assert is_served(mapped, fd)
        assert (elsewhere / kept.pool.mountpoint.name / kept.pool.path(0).name).read_bytes()[:4] == b"goes"
        assert kept.pool.status()["mountpoint"] == str(elsewhere / kept.pool.mountpoint.name)
    finally:
        elsewhere.rename(directory)
    assert len(mounts(kept.pool)) == 1


def change(pool: PoolMount, former: str, latter: str) -> Callable[[], None]:
    """Moves the configuration's directory; yields a function that moves it back."""
    text = pool.config.read_text()
    assert text.count(former) == 1
    pool.config.write_text(text.replace(former, latter))

    def undo() -> None:
        pool.config.write_text(text)

    return undo


def test_a_mountpoint_that_is_configured_anew_waits_for_an_unmount(
    held: tuple[KeptMount, mmap.mmap, int],
) -> None:
    kept, mapped, fd = held
    pool = kept.pool
    undo = change(pool, f'"{pool.mountpoint}"', f'"{pool.mountpoint}-other"')
    refused = pool.cli("restart", pool.name)
    assert refused.status == 4
    assert f"mountpoint from {pool.mountpoint} to {pool.mountpoint}-other" in refused.err
    assert pool.status()["daemon"]["pid"] == kept.daemon
    kept.replace()
    assert is_served(mapped, fd)
    assert mounts(pool) == [str(pool.mountpoint)]
    pool.require_logged("event=mounted_elsewhere")
    undo()


def test_a_segment_size_that_is_configured_anew_is_refused(keep: Callable[..., KeptMount]) -> None:
    pool = keep(2).pool
    former = pool.status()["daemon"]["pid"]
    undo = change(pool, f"segment_size = {MIB}", f"segment_size = {2 * MIB}")
    refused = pool.cli("restart", pool.name, "--dry-run")
    undo()
    assert refused.status == 4
    assert f"segment_size from {MIB} to {2 * MIB}" in refused.err
    assert pool.status()["daemon"]["pid"] == former


def test_disks_that_do_not_do_are_refused(keep: Callable[..., KeptMount]) -> None:
    """Their successor would be refused again and again, and every request would wait."""
    kept = keep(3)
    pool = kept.pool
    pool.make_segments(range(3))
    newest = pool.disks[pool.disk_of(2)]
    for latter in (str(newest) + "-mistyped", str(pool.disks[pool.disk_of(0)])):
        undo = change(pool, f'"{newest}"', f'"{latter}"')
        refused = pool.cli("restart", pool.name, "--dry-run")
        undo()
        assert refused.status in (2, 4), latter
        assert latter in refused.err
    assert pool.cli("restart", pool.name, "--dry-run").status == 0
    assert pool.status()["daemon"]["pid"] == kept.daemon


def test_a_stop_between_two_daemons_leaves_what_covers_it(held: tuple[KeptMount, mmap.mmap, int]) -> None:
    kept, mapped, fd = held
    pool = kept.pool
    keeper = pool.daemon
    assert keeper is not None
    undo = change(pool, "segment_size", "nonsense = 1\nsegment_size")  # no successor comes
    cover(pool.mountpoint)
    os.kill(kept.daemon, signal.SIGKILL)
    try:
        eventually(lambda: "event=successor_refused" in pool.log_since_start())
        os.kill(keeper.pid, signal.SIGTERM)
        eventually(lambda: "event=stop_refused" in pool.log_since_start())
        covering = mountinfo.find_mount(pool.mountpoint)
        assert covering is not None
        assert covering.fstype == "tmpfs"
    finally:
        unmount(pool.mountpoint)
        undo()
    kept.await_successor()
    assert is_served(mapped, fd)


def test_unmounted_while_the_successor_is_on_its_way(keep_versions: Callable[..., VersionedMount]) -> None:
    """The mount was to be ended, so the daemon does not mount again."""
    mount = keep_versions(2)
    pool = mount.pool
    pool.make_segments([0])
    mount.kill()
    go = pool.workdir / "go"
    mount.before(f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n")
    mount.let_go_on("daemon_started")
    unmount(pool.mountpoint)
    go.touch()
    assert pool.daemon is not None
    assert pool.daemon.wait(PATIENCE_S) == 0
    pool.daemon = None
    assert mounts(pool) == []
    assert os.listdir(pool.mountpoint) == [GUARD]
    mount.before("")
    mount.start()
    assert pool.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)


def test_without_a_keeper_nobody_hands_over(keep: Callable[..., KeptMount]) -> None:
    kept = keep(2)
    pool = kept.pool
    assert pool.daemon is not None
    keeper = pool.daemon.pid
    for _ in range(5):  # until the next one is a second away
        os.kill(keeper, signal.SIGKILL)
        if keeper == pool.daemon.pid:
            pool.daemon.wait()
        former = keeper
        keeper = eventually(lambda former=former: newest_keeper(pool, former))
    os.kill(keeper, signal.SIGKILL)
    socket = Path(pool.runtime) / runtime_directory.socket_path(pool.name).name
    eventually(lambda: control_socket.ask(socket, "status")["daemon"]["takeover_available"] is False)
    assert "its keeper has died" in control_socket.ask(socket, "restart")["refused"]
    eventually(lambda: control_socket.ask(socket, "status")["daemon"]["takeover_available"])
    assert control_socket.ask(socket, "status")["daemon"]["pid"] == kept.daemon
    assert pool.cli("restart", pool.name).status == 0
    assert pool.cli("umount", pool.name).status == 0


@pytest.mark.full
def test_the_runtime_directory_is_cleared_away(make_pool: Callable[..., PoolMount]) -> None:
    """Both sockets come back, and nobody takes the silence meanwhile for a daemon that hangs."""
    pool = make_pool(2)
    pool.start("--watchdog", "3")
    daemon = pool.status()["daemon"]["pid"]
    for path in pool.runtime.iterdir():
        path.unlink()
    pool.runtime.rmdir()
    eventually(lambda: "event=listening_anew" in pool.log_since_start())
    eventually(lambda: "event=control_bound_anew" in pool.log_since_start())
    assert pool.status()["daemon"]["pid"] == daemon
    assert pool.cli("status", pool.mountpoint).status == 0
    assert "event=daemon_hung" not in pool.log_since_start()
    assert pool.cli("restart", pool.name).status == 0
    assert pool.status()["daemon"]["pid"] != daemon
    pool.stop()
