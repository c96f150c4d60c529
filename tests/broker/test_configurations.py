"""Every way a broker writes its segments, in three versions: send, restart, consume.

The restart of one configuration is the start of the next on the same store, as at an operator's change of
broker.conf, so one walk per version takes one start per configuration.
"""

import pytest
from support.brokers import complaints, mapped_segments
from support.pools import MIB

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.slow]

COUNT = 4000

CONFIGURATIONS = {
    "async": {"flushDiskType": "ASYNC_FLUSH"},
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "warm": {"warmMapedFileEnable": True, "flushDiskType": "SYNC_FLUSH"},
    "transient": {
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 8,
        "fastFailIfNoBufferInStorePool": True,
    },
    "without-mmap": {"writeWithoutMmap": True},
}
SINCE_5_5 = ("without-mmap",)


@pytest.mark.parametrize("version", rocketmq.VERSIONS)
def test_every_configuration_serves_after_a_restart(version, new_stand):
    distribution = rocketmq.fetch(version)
    stand = new_stand(("ext4", "xfs"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    stand.pool.init()
    stand.pool.start()
    address = stand.names.address
    broker = stand.broker(distribution)
    plain = dict(broker.config)
    former = None
    for name, configuration in CONFIGURATIONS.items():
        if name in SINCE_5_5 and version != "5.5.0":
            continue
        broker.config = {**plain, **configuration}
        broker.start()
        if former is not None:
            check_topic(distribution, address, former)
        sent = rocketmq.send(distribution, address, f"Config-{name}", count=COUNT, keys=True)
        assert (sent.sent, sent.failed) == (COUNT, 0), name
        former = f"Config-{name}"
        if name == "transient":
            # Consumed is committed: until then the pool keeps messages in the broker's own memory.
            check_topic(distribution, address, former)
        assert complaints(broker) == [], name
        broker.kill()
    broker.config = plain
    broker.start()
    check_topic(distribution, address, former)
    check_queries(distribution, address, former)
    assert mapped_segments(broker, stand.pool.mountpoint) == {p.name for p in stand.pool.mountpoint.iterdir()}
    if version != "5.5.0":  # that one's clean restart is the main job's
        assert broker.stop() == 143
        broker.start()
        check_topic(distribution, address, "Config-async")
    assert complaints(broker) == []
    assert not (broker.home / "hs_err.log").exists()


def check_topic(distribution, address, topic):
    seen = rocketmq.consume(distribution, address, topic, expect=COUNT)
    assert (seen.distinct, seen.duplicates, seen.corrupted, seen.skipped) == (COUNT, 0, 0, 0), topic


def check_queries(distribution, address, topic):
    seen = rocketmq.consume(distribution, address, topic, expect=COUNT)
    assert seen.first is not None
    found = rocketmq.query_by_id(distribution, address, topic, seen.first.offset_msg_id)
    assert found.log_offset == seen.first.log_offset
    sequence = int.from_bytes(found.body[:8], "big")
    assert found.body == rocketmq.make_body(sequence, 1024)
    rows = rocketmq.query_by_key(distribution, address, topic, f"key-{sequence}")
    assert [row[1:] for row in rows] == [(found.queue_id, found.queue_offset)]
