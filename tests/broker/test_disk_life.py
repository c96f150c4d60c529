"""Disks come and are cordoned while a broker appends: it notices nothing."""

from pathlib import Path

import pytest
from support.brokers import appending, check_all, roll, send_all
from support.loop_disks import DiskFarm
from support.pools import MIB

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.slow]


def test_a_fourth_disk_and_a_cordon(disk_farm: DiskFarm, new_stand, newest, workdir: Path):
    """Added by hand-over, without an unmount; what the broker has mapped stays mapped."""
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    pool = stand.pool
    pool.init()
    pool.start("--watchdog", "0")
    new = disk_farm.add("xfs", 512 * MIB, "fourth").path / "commitlog"
    with stand.broker(newest) as broker:
        with appending(stand, broker, newest, "Life", workdir):
            ran = pool.cli("disk", "add", new, pool.name)
            assert ran.status == 0, ran.err
            pool.disks = [*pool.disks, new]
            roll(stand, 2)  # what was made ahead
            assert set(roll(stand, 6)) == {0, 1, 2, 3}
            assert pool.cli("disk", "cordon", 1, pool.name, "--reason", "test").status == 0
            roll(stand, 2)
            assert set(roll(stand, 6)) == {1, 2, 3}
            assert pool.cli("disk", "uncordon", 1, pool.name).status == 0
            roll(stand, 2)
            assert set(roll(stand, 6)) == {0, 1, 2, 3}
        assert pool.status()["daemon"]["restarts"] == 1
        broker.kill()
        broker.start()
        check_all(newest, stand.names, "Restarted", send_all(newest, stand.names, "Restarted", 100))
