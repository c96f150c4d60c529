"""A disk loses power: everything that was not committed to it is gone. The log must stay without a gap."""

import contextlib
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support import faults
from support.faults import FaultPlan
from support.filling import used_percent
from support.flaky_disks import CachingDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.processes import has_ended
from support.waiting import eventually

from commitlogfs.console.errors import UnreachableError

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

MOVED = 9
MOVE_STEPS = 53
"""System calls until the first segment has moved, and some more."""


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_no_segment_outlives_its_predecessor(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], fstype: str
) -> None:
    disks = [disk_farm.add(fstype) for _ in range(2)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories)
    pool.start()
    # As the broker rolls: the next segment and the one after it, both without a message.
    for index in range(2):
        fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, MIB)
        os.close(fd)
    disks[0].vanish()
    pool.kill()
    pool.abandon()
    disks[0].unmount()
    disks[0].mount()
    pool.start()
    listed = sorted(os.listdir(pool.mountpoint))
    assert listed[:1] == [pool.path(0).name]
    assert pool.path(0).stat().st_size == MIB


class CachingMount:
    """A pool on disks with caches for writes, which lose power at the same moment."""

    def __init__(self, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], fstype: str, mode: str) -> None:
        self.disks = [disk_farm.add_of(CachingDisk, fstype) for _ in range(2)]
        directories = [disk.path / "commitlog" for disk in self.disks]
        for directory in directories:
            directory.mkdir()
        self.pool = make_pool(disks=directories, settings={"passthrough": f'"{mode}"'})
        self.pool.start()

    def cut_power(self) -> None:
        self.lose_power()
        self.begin_again()

    def lose_power(self) -> None:
        for disk in self.disks:
            disk.lose_power()
        self.pool.kill()

    def begin_again(self) -> None:
        self.pool.abandon()
        for disk in self.disks:
            disk.restore_power()
        self.pool.start()

    def listed(self) -> list[int]:
        """Indexes of the listed segments, each of which is whole."""
        for path in self.pool.mountpoint.iterdir():
            assert path.stat().st_size == MIB, path.name
        return sorted(int(name) // MIB for name in os.listdir(self.pool.mountpoint))


@pytest.fixture(params=["ext4", "xfs"])
def caching(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], request: pytest.FixtureRequest
) -> Callable[[str], CachingMount]:
    lack = flaky_available() or ("" if mkfs_available(request.param) else f"no mkfs.{request.param}")
    if lack:
        pytest.skip(lack)
    return lambda mode: CachingMount(disk_farm, make_pool, request.param, mode)


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("how", ["fsync", "msync"])
def test_a_synced_segment_is_whole(caching: Callable[[str], CachingMount], mode: str, how: str) -> None:
    """The name, the size and the content: whatever a broker has acknowledged after its flush."""
    mount = caching(mode)
    for index in range(3):
        fd = os.open(mount.pool.path(index), os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, MIB)
        with mmap.mmap(fd, MIB) as mapped:
            mapped[:] = segment_bytes(index, MIB)
            if how == "msync":
                mapped.flush()
            else:
                os.fsync(fd)
        os.close(fd)
    mount.cut_power()
    assert mount.listed() == [0, 1, 2]
    for index in range(3):
        assert mount.pool.path(index).read_bytes() == segment_bytes(index, MIB)
    mount.pool.make_segments([3])


def test_a_segment_made_ahead_of_one_that_was_undone(caching: Callable[[str], CachingMount]) -> None:
    """Its disk does not sync, so the create of the next one does not wait for it any longer. Nobody has written to
    either, and the log ends before both."""
    mount = caching("auto")
    pool = mount.pool
    pool.make_segments(range(2))
    os.sync()
    with mount.disks[0].hanging():
        undone = os.open(pool.path(2), os.O_RDWR | os.O_CREAT)
        pool.require_logged(f"event=created segment={pool.path(2).name} disk={pool.disks[0]}")
        ahead = os.open(pool.path(3), os.O_RDWR | os.O_CREAT)
        pool.require_logged(f"event=created segment={pool.path(3).name} disk={pool.disks[1]}")
        os.ftruncate(ahead, MIB)
        os.fsync(ahead)
        pool.require_logged("commit_wait_timed_out")
        mount.lose_power()
    for fd in (undone, ahead):
        with contextlib.suppress(OSError):
            os.close(fd)  # there is no daemon
    mount.begin_again()
    assert mount.listed() == [0, 1]
    assert {"empty-leftover", "newest-segment-missing"} <= {one["code"] for one in pool.status()["findings"]}
    pool.make_segments(range(2, 6))
    assert mount.listed() == list(range(6))


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR], ids=["write-only", "rw"])
@pytest.mark.parametrize("is_renamed", [False, True], ids=["closed", "renamed"])
def test_a_copy_is_whole_under_one_name(
    caching: Callable[[str], CachingMount], is_renamed: bool, flags: int
) -> None:
    """As rsync copies: a temporary, closed, and renamed. Nobody syncs anything."""
    mount = caching("auto")
    for index in range(2):
        temporary = mount.pool.mountpoint / f".{mount.pool.path(index).name}.aB3xYz"
        fd = os.open(temporary, flags | os.O_CREAT)
        os.pwrite(fd, segment_bytes(index, MIB // 2), 0)
        os.close(os.dup(fd))  # as a child of the process does
        os.pwrite(fd, segment_bytes(index, MIB)[MIB // 2 :], MIB // 2)
        os.close(fd)
        if is_renamed:
            temporary.rename(mount.pool.path(index))
    mount.cut_power()
    assert mount.listed() == ([0, 1] if is_renamed else [])
    for index in range(2):
        temporary = mount.pool.mountpoint / f".{mount.pool.path(index).name}.aB3xYz"
        assert temporary.exists() != is_renamed
        if not is_renamed:
            temporary.rename(mount.pool.path(index))
        assert mount.pool.path(index).read_bytes() == segment_bytes(index, MIB)
    assert mount.listed() == [0, 1]


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_a_removed_segment_stays_away(caching: Callable[[str], CachingMount], is_open: bool) -> None:
    mount = caching("auto")
    mount.pool.make_segments(range(6))
    opened = [os.open(mount.pool.path(index), os.O_RDWR) for index in range(6)]
    for fd in opened:
        os.fsync(fd)
    for fd in opened[3:] if is_open else opened:
        os.close(fd)
    for index in range(3):
        mount.pool.path(index).unlink()
    for fd in opened[:3] if is_open else []:
        os.close(fd)
    mount.cut_power()
    assert mount.listed() == [3, 4, 5]
    assert [name for disk in mount.pool.disks for name in os.listdir(disk) if int(name) < 3 * MIB] == []


@pytest.mark.parametrize("removed_before", [0, 1, 2, 3])
def test_removals_by_rule_leave_no_hole_whenever_the_power_goes(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], removed_before: int
) -> None:
    """Several removals on two disks, each of which commits when it likes: what comes back is a prefix's end."""
    disks = [disk_farm.add("ext4") for _ in range(2)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories, retention={"interval": '"1s"', "force_after": '"0s"'})
    pool.start()
    end = 0
    while min(used_percent(disk.path) for disk in disks) < 88:
        pool.make_segments([end])
        end += 1
    os.sync()
    eventually(lambda: pool.log_since_start().count("event=removed") >= removed_before)
    for disk in disks:
        disk.vanish()
    pool.kill()
    pool.abandon()
    for disk in disks:
        disk.repair()
    pool.retention = {"mode": '"off"'}
    pool.start()  # it would refuse a gap
    listed = sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))
    assert listed[0] >= removed_before
    assert listed == list(range(listed[0], end))


@pytest.mark.parametrize("verb", ["add", "cordon", "remove"])
def test_a_change_of_the_disks_is_durable_when_its_command_ends(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], verb: str
) -> None:
    disks = [disk_farm.add(fstype) for fstype in ("ext4", "xfs", "ext4")]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories[:2] if verb == "add" else directories)
    pool.start("--watchdog", "0")
    pool.make_segments([0, 1])
    os.sync()
    arguments: dict[str, tuple[object, ...]] = {"add": (directories[2],), "cordon": (3,), "remove": (3,)}
    ran = pool.cli("disk", verb, *arguments[verb], pool.name)
    assert ran.status == 0, ran.err
    for disk in disks:
        disk.vanish()
    pool.kill()  # the keeper; the daemon ends with the mount
    pool.abandon()
    for disk in disks:
        disk.repair()
    pool.disks = directories[:2] if verb == "remove" else directories
    pool.start()
    status = pool.status()
    assert (status["degraded"], status["members"]["lagging"]) == (False, [])
    assert len(os.listdir(pool.mountpoint)) == 2
    states = {"add": ["rw", "rw", "rw"], "cordon": ["rw", "rw", "cordoned"], "remove": ["rw", "rw"]}
    assert [disk["state"] for disk in status["disks"]] == states[verb]
    pool.make_segments([2, 3, 4])
    assert len({pool.disk_of(index) for index in (2, 3, 4)}) == len(states["add"]) - (verb != "add")


@pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
@pytest.mark.parametrize("first_step", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_the_power_goes_while_a_segment_moves(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], workdir: Path, first_step: int
) -> None:
    """Just before each step of a move, together with everything that was not committed."""
    plan = FaultPlan(workdir)
    disks = [disk_farm.add(fstype) for fstype in ("ext4", "xfs", "ext4")]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories, variables=plan.variables)
    kept = KeptMount(pool)
    kept.start()
    pool.make_segments(range(MOVED))
    os.sync()
    before = {path.name: path.read_bytes() for path in pool.mountpoint.iterdir()}
    found_unfinished = 0
    for step in range(first_step, MOVE_STEPS, 1 if first_step > 1 else 4):
        assert pool.daemon is not None
        os.kill(pool.daemon.pid, signal.SIGSTOP)  # no other daemon comes
        plan.die_at(kept.newest_daemon(), step)
        with contextlib.suppress(UnreachableError):
            pool.ask("disk-drain", disk=str(step % 3 + 1), rate=1 << 30)
        with contextlib.suppress(AssertionError):  # a disk may have too few segments for so many steps
            eventually(lambda: has_ended(kept.daemon), 3.0)
        for disk in disks:
            disk.vanish()
        plan.disarm()
        os.kill(pool.daemon.pid, signal.SIGKILL)
        pool.kill()
        pool.abandon()
        for disk in disks:
            disk.repair()
        found_unfinished += "unfinished-move" in pool.cli("check", pool.config).out
        kept.start()
        assert {path.name: path.read_bytes() for path in pool.mountpoint.iterdir()} == before, step
        for number in (1, 2, 3):
            pool.ask("disk-cancel", disk=str(number))
        eventually(lambda: is_on_one_disk(directories))
    assert found_unfinished or first_step == 1


def is_on_one_disk(directories: list[Path]) -> bool:
    names = sorted(name for directory in directories for name in os.listdir(directory) if name.isdecimal())
    return len(names) == len(set(names)) == MOVED
