"""A disk loses power: everything that was not committed to it is gone. The log must stay without a gap."""

import os
from collections.abc import Callable

import pytest
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_no_segment_outlives_its_predecessor(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], fstype: str
) -> None:
    disks = [disk_farm.add(fstype) for _ in range(2)]
    folders = [disk.path / "commitlog" for disk in disks]
    for folder in folders:
        folder.mkdir()
    pool = make_pool(disks=folders)
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
