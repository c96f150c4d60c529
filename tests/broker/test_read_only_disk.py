"""A disk whose filesystem is read-only when the mount begins."""

import os

import pytest
from support.brokers import check_all, complaints, send_all
from support.pools import MIB

from commitlogfs.bench.rocketmq import StartFailedError

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

COUNT = 6000


@pytest.fixture
def stopped(new_stand, newest):
    """A stand whose broker was killed with messages on all three disks, and what it had sent."""
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=MIB)
    stand.pool.init()
    stand.pool.start()
    broker = stand.broker(newest)
    broker.start()
    sent = send_all(newest, stand.names, "Before", COUNT)
    broker.kill()
    stand.pool.stop()
    return stand, broker, sent


def newest_names(stand):
    names = sorted(name for directory in stand.directories() for name in os.listdir(directory))
    return names, names[-2], names[-1]


def test_broker_starts_reads_its_segments_and_goes_on_elsewhere(stopped, newest):
    """It opens every segment read-write and maps it so, as RocketMQ does on any disk."""
    stand, broker, before = stopped
    pool = stand.pool
    names, active, ahead = newest_names(stand)
    chosen = ({0, 1, 2} - {pool.disk_of(int(name) // MIB) for name in (active, ahead)}).pop()
    stand.disks[chosen].remount_ro()
    held = sorted(os.listdir(stand.directories()[chosen]))
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
    assert sorted(os.listdir(stand.directories()[chosen])) == held
    broker.kill()
    pool.stop()
    stand.disks[chosen].remount_rw()


@pytest.mark.soak
def test_broker_does_not_start_on_an_active_segment_that_cannot_be_written(stopped, newest):
    """As natively. Were it allowed to, its flushes would fail while it goes on acknowledging messages."""
    stand, broker, before = stopped
    pool = stand.pool
    names, active, _ = newest_names(stand)
    disk = stand.disks[pool.disk_of(int(active) // MIB)]
    disk.remount_ro()
    pool.start()
    with pytest.raises(StartFailedError, match="exited with 253"):
        broker.start()
    assert "Read-only file system" in broker.log_text()
    assert newest_names(stand)[0] == names
    pool.stop()
    disk.remount_rw()
    pool.start()
    broker.start()
    check_all(newest, stand.names, "Before", before)
    assert complaints(broker) == []
    broker.kill()
    pool.stop()
