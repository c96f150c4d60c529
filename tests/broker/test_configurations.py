"""Every way a broker writes its segments, in three versions: send, restart, consume.

The restart of one configuration is the start of the next on the same store, as at an operator's change of
broker.conf, so one walk per version takes one start per configuration.
"""

from typing import Any

import pytest
from support.brokers import check_all, complaints, mapped_segments, send_all
from support.pools import MIB

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

COUNT = 4000

CONFIGURATIONS: dict[str, dict[str, Any]] = {
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
QUERIED = 100
NEWEST = rocketmq.VERSIONS[0]


@pytest.mark.parametrize(
    ("version", "walk"),
    [
        pytest.param(NEWEST, ["sync", "transient"], id=NEWEST),
        *(
            pytest.param(version, [*CONFIGURATIONS], id=f"{version}-all", marks=pytest.mark.soak)
            for version in rocketmq.VERSIONS
        ),
    ],
)
def test_every_configuration_serves_after_a_restart(version, walk, new_stand):
    distribution = rocketmq.fetch(version)
    stand = new_stand(("ext4", "xfs"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    stand.pool.init()
    stand.pool.start()
    broker = stand.broker(distribution)
    plain = dict(broker.config)
    sent: dict[str, rocketmq.SendResult] = {}
    for name in walk:
        if name in SINCE_5_5 and version != NEWEST:
            continue
        broker.config = {**plain, **CONFIGURATIONS[name]}
        broker.start()
        for topic in list(sent)[-1:]:
            check_all(distribution, stand.names, topic, sent[topic])
        topic = f"Config-{name}"
        sent[topic] = send_all(distribution, stand.names, topic, COUNT, keys=True)
        if name == "transient":
            # Consumed is committed: until then the pool keeps messages in the broker's own memory.
            check_all(distribution, stand.names, topic, sent[topic])
        assert complaints(broker) == [], name
        broker.kill()
    broker.config = plain
    broker.start()
    check_all(distribution, stand.names, topic, sent[topic])
    # Asked for by key is what was sent since the kill: a killed broker drops its newest index file.
    queried = send_all(distribution, stand.names, "Config-queries", QUERIED, keys=True)
    check_queries(distribution, stand.names, "Config-queries", queried)
    assert mapped_segments(broker, stand.pool.mountpoint) == {p.name for p in stand.pool.mountpoint.iterdir()}
    if version != NEWEST:  # that one's clean restart is the main job's
        assert broker.stop() == 143
        broker.start()
        topic = next(iter(sent))
        check_all(distribution, stand.names, topic, sent[topic])
    assert complaints(broker) == []
    assert not (broker.home / "hs_err.log").exists()


def check_queries(distribution, names, topic, sent):
    seen = check_all(distribution, names, topic, sent)
    assert seen.first is not None
    found = rocketmq.query_by_id(distribution, names.address, topic, seen.first.offset_msg_id)
    assert found.log_offset == seen.first.log_offset
    sequence = int.from_bytes(found.body[:8], "big")
    assert found.body == rocketmq.make_body(sequence, 1024)
    rows = rocketmq.query_by_key(distribution, names.address, topic, f"key-{sequence}")
    assert (found.queue_id, found.queue_offset) in [row[1:] for row in rows]
