"""A disk refuses what a broker has stored in a mapped segment, and the broker's second msync succeeds."""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import checksums, scrubs
from support.flaky_disks import DeadBlocksDisk, FlakyDisk, flaky_available
from support.loop_disks import XFS_MIN_BYTES, DiskFarm, commitlog_directories, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

PAGE = mmap.PAGESIZE
NOTICED_S = 30.0
REPORTED_S = 5.0
"""Time until a lost write that was noticed has its alert and its cordon."""


class Broker:
    """Stores to one segment, a page at a time, and flushes as a broker does."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR)
        self._mapped = mmap.mmap(self._fd, MIB)
        self.pages: list[int] = []

    def store(self) -> bool:
        """Whether the flush has succeeded."""
        page = 2 * len(self.pages) * PAGE
        self.pages.append(page)
        self._mapped[page : page + PAGE] = bytes([len(self.pages)]) * PAGE
        try:
            self._mapped.flush()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._mapped.close()
        with contextlib.suppress(OSError):
            os.close(self._fd)


@pytest.fixture(params=["ext4", "xfs"])
def flaky(disk_farm: DiskFarm, request: pytest.FixtureRequest) -> FlakyDisk:
    lack = flaky_available() or ("" if mkfs_available(request.param) else f"no mkfs.{request.param}")
    if lack:
        pytest.skip(lack)
    disk = disk_farm.add_of(FlakyDisk, request.param, XFS_MIN_BYTES if request.param == "xfs" else 64 * MIB)
    disk.bypass_cache()
    return disk


@pytest.fixture(params=["passed", "plain"])
def pool(
    flaky: FlakyDisk, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], request: pytest.FixtureRequest
) -> PoolMount:
    """Segment 0 is on the flaky disk, and the newest one."""
    directories = commitlog_directories(flaky, disk_farm.add())
    pool = make_pool(
        disks=directories,
        retention={"interval": '"1s"'},
        settings={"passthrough": '"auto"' if request.param == "passed" else '"off"'},
    )
    pool.start("--watchdog", "0")
    pool.make_segments([0])
    assert (directories[0] / pool.path(0).name).exists()
    return pool


@pytest.fixture
def broker(pool: PoolMount) -> Iterator[Broker]:
    broker = Broker(pool.path(0))
    yield broker
    broker.close()


def lost(pool: PoolMount) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pool.status()["disks"][0]["lost_writes"]
    return found


def alerts(pool: PoolMount) -> list[str]:
    return [alert["text"] for alert in pool.status()["retention"]["alerts"] if alert["code"] == "writeback-lost"]


def lose_writes(pool: PoolMount, flaky: FlakyDisk, broker: Broker) -> float:
    """Let the disk fail, and be well again when that is noticed. Returns the seconds until it was noticed."""
    for _ in range(5):  # a segment is watched some seconds after it was opened
        assert broker.store()
        time.sleep(1.0)
    flaky.fail_writes()
    broker.store()
    began_s = time.monotonic()
    eventually(lambda: "event=write_lost " in pool.log_since_start(), shown=pool.log_since_start)
    noticed_s = time.monotonic() - began_s
    flaky.heal()
    return noticed_s


def test_it_is_reported_with_segment_and_range(pool: PoolMount, flaky: FlakyDisk, broker: Broker) -> None:
    lose_writes(pool, flaky, broker)
    (found,) = lost(pool)
    assert found["segment"] == pool.path(0).name
    if flaky.fstype == "ext4" or found["ranges"]:  # an xfs that has shut down cannot be read
        assert found["ranges"] == [[broker.pages[-1], broker.pages[-1] + PAGE]]
    eventually(lambda: alerts(pool))
    (text,) = alerts(pool)
    assert f"segment {pool.path(0).name} (" in text
    for begin, end in found["ranges"]:
        where = f"log offset {begin:,} to {end:,}"
        eventually(lambda where=where: where in alerts(pool)[0], shown=lambda: str(alerts(pool)))
    assert 'commitlogfs_lost_writes_total{pool="test"} 1.0' in pool.metrics()
    pool.require_logged(f"event=write_lost segment={pool.path(0).name} disk={pool.disks[0]} ")


@pytest.mark.timing
def test_it_is_noticed_and_reported_soon(pool: PoolMount, flaky: FlakyDisk, broker: Broker) -> None:
    assert lose_writes(pool, flaky, broker) < NOTICED_S
    eventually(lambda: alerts(pool) and pool.status()["disks"][0]["cordon"], REPORTED_S, pool.log_since_start)


def test_no_later_segment_goes_there_until_the_disk_is_taken_back(
    pool: PoolMount, flaky: FlakyDisk, broker: Broker
) -> None:
    lose_writes(pool, flaky, broker)
    eventually(lambda: pool.status()["disks"][0]["cordon"])
    assert pool.status()["disks"][0]["cordon"]["reason"] == f"lost writes of {pool.path(0).name}"
    pool.make_segments(range(1, 5))
    assert {disk_of(pool, index) for index in range(1, 5)} == {pool.disks[1]}
    eventually(lambda: alerts(pool))
    ran = pool.cli("disk", "uncordon", 1, pool.name)
    assert ran.status == 0, ran.err
    assert pool.status()["disks"][0]["cordon"] is None
    assert scrubs.damaged(pool)[pool.path(0).name]["kind"] == "write-lost"
    time.sleep(3.0)
    assert lost(pool)
    assert alerts(pool)


def test_the_only_disk_that_takes_segments_gets_no_cordon(
    pool: PoolMount, flaky: FlakyDisk, broker: Broker
) -> None:
    assert pool.cli("disk", "cordon", 2, pool.name).status == 0
    lose_writes(pool, flaky, broker)
    eventually(lambda: alerts(pool))
    assert pool.status()["disks"][0]["cordon"] is None


def test_a_failed_sync_does_not_succeed_later(pool: PoolMount, flaky: FlakyDisk) -> None:
    """The kernel reports a failed write to a descriptor once, and then keeps the page as if it were on the disk."""
    pool.make_segments([1])
    fd = os.open(pool.path(0), os.O_RDWR)
    try:
        os.pwrite(fd, b"x" * PAGE, 0)
        os.fsync(fd)
        flaky.fail_writes()
        os.pwrite(fd, b"y" * PAGE, 0)
        assert sync_error(fd) == errno.EIO
        flaky.heal()
        assert [sync_error(fd) for _ in range(3)] == [errno.EIO] * 3
    finally:
        os.close(fd)
    assert sync_error_of(pool, 0) == errno.EIO
    assert sync_error_of(pool, 1) == 0, "on the other disk"


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR], ids=["cp", "rw"])
@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_a_copy_that_could_not_be_synced_gets_no_name(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], mode: str, flags: int
) -> None:
    """Its close has failed, and a second sync would succeed."""
    disk = disk_farm.add_of(DeadBlocksDisk)
    directory = disk.path / "commitlog"
    directory.mkdir(mode=0o700)
    pool = make_pool(disks=[directory], settings={"passthrough": f'"{mode}"'})
    pool.start()
    copy = pool.mountpoint / f".{pool.path(0).name}.aB3xYz"
    fd = os.open(copy, flags | os.O_CREAT)
    disk.bypass_cache()
    disk.damage(f"commitlog/{copy.name}", 8 * PAGE, 9 * PAGE)
    assert os.pwrite(fd, segment_bytes(0, MIB), 0) == MIB
    with pytest.raises(OSError, match="Input/output error"):
        os.close(fd)
    with pytest.raises(OSError, match="Input/output error"):
        copy.rename(pool.path(0))
    assert os.listdir(pool.mountpoint) == []
    copy.unlink()
    copy.with_suffix(".second").write_bytes(segment_bytes(0, MIB))
    copy.with_suffix(".second").rename(pool.path(0))
    assert os.listdir(pool.mountpoint) == [pool.path(0).name]


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_a_failed_sync_of_a_sealed_segment_is_a_lost_write(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], mode: str
) -> None:
    """A drain would replace what memory shows by what the disk has."""
    dead = disk_farm.add_of(DeadBlocksDisk)
    assert isinstance(dead, DeadBlocksDisk)
    directories = commitlog_directories(dead, disk_farm.add())
    settings = {"passthrough": f'"{mode}"'}
    pool = make_pool(disks=directories, retention={"interval": '"1s"'}, settings=settings)
    pool.start()
    pool.make_segments(range(8))
    assert [disk_of(pool, index) for index in (0, 2)] == [pool.disks[0]] * 2
    fd = os.open(pool.path(0), os.O_RDWR)
    try:
        dead.refuse_a_page(f"commitlog/{pool.path(0).name}", fd, segment_bytes(0, MIB), 8)
        assert sync_error(fd) == errno.EIO
        dead.mend()
        assert sync_error(fd) == errno.EIO
        eventually(lambda: "event=write_lost " in pool.log_since_start(), shown=pool.log_since_start)
        (found,) = lost(pool)
        assert found["ranges"] in ([], [[8 * PAGE, 9 * PAGE]]), "the page may have been unreadable still"
        eventually(lambda: alerts(pool))
        eventually(lambda: pool.status()["disks"][0]["cordon"])
        ran = pool.cli("disk", "drain", 1, pool.name, "--rate", "1GiB")
        assert ran.status == 0, ran.err
        eventually(lambda: disk_of(pool, 2) == pool.disks[1], shown=pool.log_since_start)
        time.sleep(2.0)
        assert disk_of(pool, 0) == pool.disks[0]
        assert sync_error_of(pool, 0) == errno.EIO
        ran = pool.cli("scrub", "clear", pool.name)
        assert ran.status == 0, ran.err
        assert sync_error(fd) == 0
        assert (Path(pool.disks[0]) / pool.path(0).name).read_bytes() == segment_bytes(0, MIB), "not from memory"
        eventually(lambda: not alerts(pool))
    finally:
        os.close(fd)
    eventually(lambda: disk_of(pool, 0) == pool.disks[1], shown=pool.log_since_start)


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
def test_a_sync_that_a_read_only_disk_refuses_loses_nothing_by_itself(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    """There was nothing to write."""
    disk = disk_farm.add_of(FlakyDisk, "ext4", 64 * MIB)
    directories = commitlog_directories(disk, disk_farm.add())
    pool = make_pool(disks=directories, settings={"passthrough": '"off"'})
    pool.start()
    pool.make_segments(range(8))
    fd = os.open(pool.path(0), os.O_RDWR)
    try:
        os.sync()
        disk.fail_writes()
        eventually(lambda: touch_error(directories[0]) == errno.EROFS)
        disk.heal()
        assert sync_error(fd) == errno.EROFS
        time.sleep(4.0)
        assert sync_error(fd) == errno.EROFS
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
    assert lost(pool) == []


def test_a_filesystem_that_has_shut_down_loses_nothing_that_was_not_written(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    """It refuses every sync, also of a segment that was synced before and not written since."""
    disk = disk_farm.add()
    directories = commitlog_directories(disk, disk_farm.add())
    pool = make_pool(disks=directories, settings={"passthrough": '"off"'})
    pool.start()
    pool.make_segments(range(8))
    eventually(lambda: checksums.NAME in os.listxattr(pool.path(0)))
    written, clean = (os.open(pool.path(index), os.O_RDWR) for index in (2, 0))
    try:
        os.pwrite(written, b"x" * PAGE, 0)
        shut_down(disk.path)
        assert [sync_error(fd) for fd in (written, clean)] == [errno.EIO] * 2
        time.sleep(4.0)
    finally:
        for fd in (written, clean):
            with contextlib.suppress(OSError):
                os.close(fd)
    assert [found["segment"] for found in lost(pool)] == [pool.path(2).name]


def shut_down(directory: Path) -> None:
    """Everything is written first (FS_IOC_SHUTDOWN); then the filesystem answers with errors only."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 0))
    finally:
        os.close(fd)


def touch_error(directory: Path) -> int:
    """The errno of a change that the journal of the disk has to write; 0 if that succeeds."""
    try:
        os.utime(directory)
        os.sync()
    except OSError as error:
        return error.errno or -1
    return 0


def sync_error_of(pool: PoolMount, index: int) -> int:
    """As sync_error, of a segment. An xfs whose log could not be written has shut down, and opens nothing."""
    try:
        fd = os.open(pool.path(index), os.O_RDWR)
    except OSError as error:
        return error.errno or 0
    try:
        return sync_error(fd)
    finally:
        os.close(fd)


def sync_error(fd: int) -> int:
    """The errno of fdatasync(2), which writes no journal that would fail by itself; 0 if it succeeds."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        return error.errno or -1
    return 0


def test_the_descriptor_keeps_no_space_of_a_removed_segment(pool: PoolMount, broker: Broker) -> None:
    ino = (pool.disks[0] / pool.path(0).name).stat().st_ino
    eventually(lambda: daemon_descriptors(pool, ino) == 2)
    broker.close()
    eventually(lambda: daemon_descriptors(pool, ino) == 0)
    second = Broker(pool.path(0))
    eventually(lambda: daemon_descriptors(pool, ino) == 2)
    second.close()
    pool.path(0).unlink()
    assert daemon_descriptors(pool, ino) == 0


def daemon_descriptors(pool: PoolMount, ino: int) -> int:
    """How many descriptors the daemon has of a file: one for its opens, and one that hears of failures."""
    device, found = pool.disks[0].stat().st_dev, 0
    for link in Path(f"/proc/{pool.status()['daemon']['pid']}/fd").iterdir():
        with contextlib.suppress(OSError):
            status = link.stat()
            found += (status.st_dev, status.st_ino) == (device, ino)
    return found


@pytest.mark.alone
@pytest.mark.parametrize("flaky", ["ext4"], indirect=True)
def test_its_segment_is_not_moved_before_the_verdict_is_cleared(
    pool: PoolMount, flaky: FlakyDisk, broker: Broker
) -> None:
    pool.make_segments([1, 2])
    os.sync()  # segment 2 loses nothing
    assert [disk_of(pool, index) for index in (0, 2)] == [pool.disks[0]] * 2
    lose_writes(pool, flaky, broker)
    broker.close()
    pool.make_segments(range(3, 7))
    ran = pool.cli("disk", "drain", "--failing", "--rate", "1GiB", 1, pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: disk_of(pool, 2) == pool.disks[1], shown=pool.log_since_start)
    time.sleep(2.0)
    assert disk_of(pool, 0) == pool.disks[0]


def disk_of(pool: PoolMount, index: int) -> Path:
    return Path(os.fsdecode(os.getxattr(pool.path(index), "user.commitlogfs.disk")))
