"""A daemon is killed while a disk holds a thread of it in the kernel, so that it cannot end: another one serves the
other disks, and leaves that disk alone until it has ended."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.freezing import frozen
from support.kept import KeptMount, newest_keeper
from support.loop_disks import DiskFarm, LoopDisk, commitlog_directories
from support.pools import MIB, PoolMount, segment_bytes
from support.processes import has_ended, threads
from support.timings import FIRST_WITHOUT_WRITES
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UserError
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

COUNT = 6
NEWER = range(COUNT, COUNT + 3)
FROZEN_S = 300.0
REPLACED_S = 30.0
"""Time until a successor serves the other disks."""
ENDED_S = 10.0
"""Time until the former daemon has ended after the disk answers."""
BACK_S = 60.0
"""Time until the disk is served again after it answers."""


class Pool:
    """Three disks with segments 0 to 5, of which the first disk has 0 and 3, and newer ones on the others."""

    def __init__(
        self, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], passthrough: str, fstype: str
    ) -> None:
        self.disk: LoopDisk = disk_farm.add(fstype)
        directories = commitlog_directories(self.disk, disk_farm.add(), disk_farm.add())
        self.mount = make_pool(
            disks=directories, retention={"interval": '"1s"'}, settings={"passthrough": f'"{passthrough}"'}
        )
        self.mount.start("--watchdog", "3")
        self.kept = KeptMount(self.mount)
        self.mount.make_segments(range(COUNT))
        assert self.cli("cordon") == 0
        self.mount.make_segments(NEWER)
        self.kept.newest_daemon()

    def cli(self, verb: str) -> int:
        return self.mount.cli("disk", verb, "1", self.mount.name).status

    @property
    def missing(self) -> list[str]:
        found: list[str] = status(self.mount)["missing_disks"]
        return found

    def listed(self) -> set[int]:
        return {int(name) // self.mount.segment_size for name in os.listdir(self.mount.mountpoint)}

    def hold_a_thread(self) -> None:
        """The disk, which is frozen, does not answer a call of the daemon."""
        with pytest.raises(OSError, match="rror"):
            self.mount.path(0).unlink()
        daemon = self.kept.daemon
        eventually(lambda: {name for name, state in threads(daemon) if state == "D"} == {"disk-1"})

    def kill(self, replaced_s: float = PATIENCE_S, number: int = signal.SIGKILL) -> int:
        """Kill the daemon, which does not end, and wait for its successor."""
        former = self.kept.daemon
        os.kill(former, number)
        eventually(lambda: self.kept.newest_daemon() != former, replaced_s, self.mount.log_since_start)
        return former

    def await_back(self, back_s: float = PATIENCE_S) -> None:
        """The disk is served again, by itself."""

        def is_back() -> bool:
            with contextlib.suppress(UserError):  # while one daemon hands over to the next
                return self.missing == []
            return False

        eventually(is_back, back_s, self.mount.log_since_start)
        self.kept.newest_daemon()

    def require_back(self, back_s: float = PATIENCE_S) -> None:
        self.await_back(back_s)
        assert self.listed() >= {*range(1, COUNT), *NEWER}
        assert status(self.mount)["segments"]["gaps"] == []
        assert self.mount.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)


@pytest.fixture(params=[("auto", "ext4"), ("off", "xfs")], ids=["passed-ext4", "plain-xfs"])
def pool(request: pytest.FixtureRequest, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> Pool:
    return Pool(disk_farm, make_pool, *request.param)


@pytest.mark.parametrize(
    ("replaced_s", "ended_s", "back_s"),
    [
        pytest.param(PATIENCE_S, PATIENCE_S, PATIENCE_S, id="works"),
        pytest.param(REPLACED_S, ENDED_S, BACK_S, id="in_time", marks=pytest.mark.timing),
    ],
)
def test_a_successor_serves_the_other_disks(pool: Pool, replaced_s: float, ended_s: float, back_s: float) -> None:
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        former = pool.kill(replaced_s)
        assert not has_ended(former)
        assert pool.missing == [str(pool.mount.disks[0])]
        assert pool.listed() == {1, 2, 4, 5, *NEWER}
        for index in (1, 2, 4, 5):
            assert pool.mount.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
        pool.mount.make_segments(range(9, 12))
        time.sleep(12.0)  # its path can be opened meanwhile, and leads to the disk
        assert pool.missing == [str(pool.mount.disks[0])]
        assert not has_ended(former)
    eventually(lambda: has_ended(former), ended_s)
    pool.require_back(back_s)
    pool.mount.require_logged("event=held_daemon_ended")


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_it_crashes(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], number: signal.Signals) -> None:
    """The kernel would wait for the disk before it dumps core, with the first thread."""
    pool = Pool(disk_farm, make_pool, "auto", "ext4")
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        former = pool.kill(number=number)
        assert not has_ended(former)
        assert pool.missing == [str(pool.mount.disks[0])]
        assert "Fatal Python error" in pool.mount.log_since_start()
    pool.require_back()


def test_no_second_daemon_joins_the_successor(pool: Pool) -> None:
    """It waits for the locks that the former daemon has, and they would not tell that somebody waits."""
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        pool.kill()
        elsewhere = pool.mount.workdir / "elsewhere" / pool.mount.config.name
        elsewhere.parent.mkdir()
        text = pool.mount.config.read_text().replace(str(pool.mount.mountpoint), f"{pool.mount.mountpoint}2")
        elsewhere.write_text(f'on_missing = "degraded"\n{text}')
        ran = pool.mount.cli("mount", "--no-keeper", elsewhere)
        assert (ran.status, "is running already" in ran.err) == (4, True), ran
        assert pool.mount.path(1).exists()
        ran = pool.mount.cli("disk", "offline", "1", pool.mount.name)
        assert (ran.status, "still holds daemon" in ran.err) == (4, True), ran
    pool.require_back()


def test_the_next_daemons_leave_it_alone_too(pool: Pool) -> None:
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        former = pool.kill()
        second = pool.kept.daemon
        os.kill(second, signal.SIGKILL)
        eventually(lambda: pool.kept.newest_daemon() != second, shown=pool.mount.log_since_start)
        ran = pool.mount.cli("restart", "--degraded", pool.mount.name)
        assert ran.status == 0, ran.err
        pool.kept.newest_daemon()
        assert not has_ended(former)
        assert pool.missing == [str(pool.mount.disks[0])]
        pool.mount.make_segments([9])
    pool.require_back()


def test_its_keeper_is_killed_too(pool: Pool) -> None:
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        former = pool.kill()
        keeper, daemon = pool.mount.daemon, pool.kept.newest_daemon()
        assert keeper is not None
        keeper.kill()
        keeper.wait()
        eventually(lambda: newest_keeper(pool.mount, keeper.pid))
        os.kill(daemon, signal.SIGKILL)
        eventually(lambda: pool.kept.newest_daemon() != daemon, shown=pool.mount.log_since_start)
        assert not has_ended(former)
        assert pool.missing == [str(pool.mount.disks[0])]
        pool.mount.make_segments([9])
    pool.require_back()
    assert pool.mount.cli("umount", pool.mount.name).status == 0


def test_a_move_to_the_disk_is_under_way(pool: Pool) -> None:
    """The segment stays where it is; when the disk is back, the move is completed."""
    assert pool.cli("uncordon") == 0
    with frozen(pool.disk, FROZEN_S):
        ran = pool.mount.cli("disk", "drain", "2", pool.mount.name, "--rate", "1GiB")
        assert ran.status == 0, ran.err
        daemon = pool.kept.daemon
        eventually(lambda: ("disk-1", "D") in threads(daemon), shown=pool.mount.log_since_start)
        former = pool.kill()
        assert not has_ended(former)
        assert pool.listed() >= {1, 2, 4, 5, *NEWER}
        for index in (1, 4):
            assert pool.mount.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    pool.await_back()

    def is_drained() -> bool:
        drain = status(pool.mount)["disks"][1]["drain"]
        return drain is not None and drain["segments_left"] == drain["segments_kept"]

    eventually(is_drained, shown=pool.mount.log_since_start)
    names = [int(name) for disk in pool.mount.disks for name in os.listdir(disk) if name.isdecimal()]
    assert len(names) == len(set(names)), "no segment has two places"
    assert not any((pool.mount.disks[1] / pool.mount.path(index).name).exists() for index in (1, 4))
    for index in (1, 2, 3, 4, 5):
        assert pool.mount.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)


def test_a_removal_that_the_disk_completes_late_is_no_gap(pool: Pool) -> None:
    """The kernel asks the successor for it again. The log begins behind it, whatever the disk has done."""
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        pool.kill()
        for index in (1, 2):
            pool.mount.path(index).unlink()
    pool.await_back()
    assert pool.listed() == {3, 4, 5, *NEWER}
    assert status(pool.mount)["segments"]["gaps"] == []


def test_a_stop_signal_unmounts(pool: Pool) -> None:
    with frozen(pool.disk, FROZEN_S):
        pool.hold_a_thread()
        pool.kill()
        pool.mount.stop()
    pool.mount.start()
    assert pool.listed() >= {*range(1, COUNT), *NEWER}


def await_record(directories: list[Path], index: int) -> None:
    """Until these disks have on record that this segment is the newest."""
    for directory in directories:
        eventually(lambda directory=directory: int(os.getxattr(directory, layout.XATTR_NEWEST)) == index * MIB)


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize("maker", ["former", "successor"])
def test_killed_when_a_segment_was_given_up_there(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], maker: str
) -> None:
    """Its size may get to the disk as long as the daemon has not ended. The segment is on another disk then.

    Beside a commit for a write of the daemon's own, the create would make the segment on another disk at once."""
    silent = disk_farm.add_of(FlakyDisk)
    directories = commitlog_directories(silent, disk_farm.add(), disk_farm.add())
    mount = make_pool(disks=directories, retention={"interval": '"1s"'}, variables=FIRST_WITHOUT_WRITES)
    mount.start("--watchdog", "3")
    kept = KeptMount(mount)
    former = kept.newest_daemon()
    mount.make_segments(range(3))
    await_record(directories, 2)  # what the daemon writes after the last create
    os.sync()
    left = directories[0] / mount.path(3).name
    with silent.hanging():
        fd = os.open(mount.path(3), os.O_RDWR | os.O_CREAT)
        try:
            assert os.getxattr(mount.path(3), "user.commitlogfs.disk") == os.fsencode(directories[0])
            eventually(silent.holds_a_commit)  # for the sync of its name
            with pytest.raises(OSError, match="Input/output"):
                os.ftruncate(fd, MIB)
        finally:
            os.close(fd)
        await_record(directories[1:], 2)
        if maker == "former":
            mount.make_segments(range(3, 6))
        os.kill(former, signal.SIGKILL)
        eventually(lambda: kept.newest_daemon() != former, shown=mount.log_since_start)
        if maker == "successor":
            mount.make_segments(range(3, 6))
        for index in range(1, 6):
            assert mount.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)

    def is_back() -> bool:
        with contextlib.suppress(UserError):  # while one daemon hands over to the next
            return not status(mount)["missing_disks"]
        return False

    eventually(is_back, shown=mount.log_since_start)
    eventually(lambda: not left.exists(), shown=mount.log_since_start)
    for index in range(6):
        assert mount.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
