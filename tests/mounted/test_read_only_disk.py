"""A disk that is read-only from the start: its segments are served, to a broker that opens everything
read-write too, and new ones go elsewhere."""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filling import status
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

MakePool = Callable[..., PoolMount]


def assert_served_and_left_alone(pool: PoolMount) -> None:
    """Segments 0 to 5 exist, disk 1 of three takes nothing new."""
    pool.make_segments(range(6, 10))
    assert [pool.disk_of(index) for index in range(6, 10)] == [0, 2, 0, 2]
    assert pool.path(1).read_bytes().startswith(segment_bytes(1, 4096))
    assert status(pool)["disks"][1]["state"] == "ro"
    assert "disk-read-only" in [finding["code"] for finding in status(pool)["findings"]]


@pytest.fixture
def read_only(disk_farm: DiskFarm, make_pool: MakePool) -> tuple[PoolMount, LoopDisk]:
    """A mount whose middle disk has been read-only since before."""
    disks = [disk_farm.add("ext4") for _ in range(3)]
    for disk in disks:
        (disk.path / "commitlog").mkdir()
    pool = make_pool(disks=[disk.path / "commitlog" for disk in disks])
    pool.start()
    pool.make_segments(range(6))
    pool.stop()
    disks[1].remount_ro()
    pool.start()
    return pool, disks[1]


def test_a_read_only_filesystem(read_only: tuple[PoolMount, LoopDisk]) -> None:
    pool, disk = read_only
    assert_served_and_left_alone(pool)
    bare = (Path(pool.disks[1]) / pool.path(1).name).read_bytes()
    fd = os.open(pool.path(1), os.O_RDWR)  # as the broker does
    try:
        with mmap.mmap(fd, MIB, mmap.MAP_SHARED) as mapped:  # writable, as the broker maps
            assert mapped[:4096] == segment_bytes(1, 4096)
        refusals: list[Callable[[], object]] = [
            lambda: os.pwrite(fd, b"x", 0),
            lambda: os.fchmod(fd, 0o600),
            lambda: os.utime(fd),
            lambda: os.ftruncate(fd, MIB),
            lambda: pool.path(1).unlink(),
        ]
        for refused in refusals:
            with pytest.raises(OSError) as error:  # noqa: PT011
                refused()
            assert error.value.errno == errno.EROFS
        os.fsync(fd)  # nothing to do, so nothing to refuse: a broker flushes whatever it has mapped
    finally:
        os.close(fd)
    assert (Path(pool.disks[1]) / pool.path(1).name).read_bytes() == bare
    assert len(os.listdir(pool.mountpoint)) == 10
    # Writable again at the next mount.
    pool.stop()
    disk.remount_rw()
    pool.start()
    pool.make_segments(range(10, 13))
    assert [pool.disk_of(index) for index in range(10, 13)] == [0, 1, 2]


def test_a_cordoned_disk_takes_nothing_new_but_lets_go(make_pool: MakePool) -> None:
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(6))
    pool.stop()
    pool.disk_settings[1] = {"readonly": "true"}
    pool.start()
    assert_served_and_left_alone(pool)
    # Its filesystem is writable: what lies there is written and removed as ever.
    fd = os.open(pool.path(1), os.O_RDWR)
    try:
        os.pwrite(fd, b"still written", 100)
        os.fsync(fd)
    finally:
        os.close(fd)
    bare = Path(pool.disks[1]) / pool.path(1).name
    assert bare.read_bytes()[100:113] == b"still written"
    pool.path(1).unlink()
    eventually(lambda: not bare.exists())


def test_with_all_disks_cordoned_a_create_is_erofs(make_pool: MakePool) -> None:
    pool = make_pool(2, disk_settings={0: {"readonly": "true"}, 1: {"readonly": "true"}})
    pool.start()
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.make_segments([0])
    assert refused.value.errno == errno.EROFS
