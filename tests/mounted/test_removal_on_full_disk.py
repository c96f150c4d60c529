"""Removing reclaims space, so it works on a disk without a free block, as unlink(2) does on any disk. A broker
keeps every segment open, so each of its removals has to move the file aside first."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]


def fill(path: Path) -> None:
    """Foreign data down to the last block, so that not even an empty directory can be made beside it."""
    with (path / "foreign").open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    made = 0
    try:
        for made in range(10_000):
            (path / f"directory{made}").mkdir()
    except OSError:
        return
    raise AssertionError(f"room for {made} directories")


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_an_open_segment_on_a_full_disk_is_removed(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], fstype: str
) -> None:
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    disk = disk_farm.add(fstype)
    directory = disk.path / "commitlog"
    directory.mkdir()
    pool = make_pool(disks=[directory])
    pool.start()
    pool.make_segments(range(4))
    held = [os.open(pool.path(index), os.O_RDWR) for index in range(4)]
    try:
        fill(disk.path)
        pool.path(0).unlink()
        assert pool.path(0).name not in os.listdir(pool.mountpoint)
        assert not (directory / pool.path(0).name).exists()
        assert os.pread(held[0], 4096, 0) == segment_bytes(0, 4096), "an open descriptor still reads it"
        assert os.pwrite(held[0], b"late", 0) == 4
        assert os.fstat(held[0]).st_size == MIB
        os.close(held.pop(0))
        eventually(lambda: os.statvfs(disk.path).f_bavail * 4096 >= MIB)
        (disk.path / "foreign").unlink()
        eventually(lambda: os.statvfs(disk.path).f_bavail * 2 > os.statvfs(disk.path).f_blocks)
        pool.make_segments([4])
        assert pool.path(4).read_bytes()[:4096] == segment_bytes(4, 4096)
    finally:
        for fd in held:
            os.close(fd)
    pool.restart()
    assert len(os.listdir(pool.mountpoint)) == 4
