"""A disk whose filesystem is read-only when the mount begins."""

import os

import pytest
from support.brokers import check_all, complaints, send_all
from support.pools import MIB

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.slow]

COUNT = 6000


def test_broker_starts_reads_its_segments_and_goes_on_elsewhere(new_stand, newest):
    """It opens every segment read-write and maps it so, as RocketMQ does on any disk."""
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=MIB)
    pool = stand.pool
    pool.init()
    pool.start()
    broker = stand.broker(newest)
    broker.start()
    before = send_all(newest, stand.names, "Before", COUNT)
    broker.kill()
    pool.stop()
    names = sorted(name for folder in stand.folders() for name in os.listdir(folder))
    # The segment that is written and the one made ahead lie on the other two disks.
    chosen = ({0, 1, 2} - {pool.disk_of(int(name) // MIB) for name in names[-2:]}).pop()
    stand.disks[chosen].remount_ro()
    held = sorted(os.listdir(stand.folders()[chosen]))
    assert len(held) >= 2

    pool.start()
    assert pool.status()["disks"][chosen]["state"] == "ro"
    broker.start()
    check_all(newest, stand.names, "Before", before)
    after = send_all(newest, stand.names, "After", COUNT)
    check_all(newest, stand.names, "After", after)
    assert complaints(broker) == []
    made = sorted(set(os.listdir(pool.mountpoint)) - set(names))
    assert len(made) >= 4
    assert {pool.disk_of(int(name) // MIB) for name in made} == {0, 1, 2} - {chosen}
    assert sorted(os.listdir(stand.folders()[chosen])) == held
    broker.kill()
    pool.stop()
    stand.disks[chosen].remount_rw()
