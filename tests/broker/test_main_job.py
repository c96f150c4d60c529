"""The main job with RocketMQ 5.5.0: 100,000 messages, a clean restart, a crash under a synchronous producer."""

import os
from collections.abc import Iterator

import pytest
from support.brokers import IDLE_S, Stand, check_all, complaints, line_count, mapped_segments, send_all, wait_until
from support.pools import MIB

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root]

COUNT = 100_000


@pytest.fixture(scope="module")
def stand(module_stand) -> Stand:
    stand = module_stand(("ext4", "xfs", "ext4"), segment_size=16 * MIB, disk_bytes=1024 * MIB)
    stand.pool.init()
    stand.pool.start()
    return stand


@pytest.fixture(scope="module")
def broker(stand, newest) -> Iterator[Broker]:
    with stand.broker(newest) as broker:
        yield broker
        broker.kill()


@pytest.fixture(scope="module")
def sent(stand, broker, newest) -> rocketmq.SendResult:
    return send_all(newest, stand.names, "Main", COUNT)


def check_listing(stand: Stand, broker: Broker) -> list[str]:
    """`ls` shows what the broker works with, and that is what lies on the disks."""
    listed = sorted(os.listdir(stand.pool.mountpoint))
    assert mapped_segments(broker, stand.pool.mountpoint) == set(listed)
    assert sorted(name for directory in stand.directories() for name in os.listdir(directory)) == listed
    info = broker.runtime_info()
    assert int(info["commitLogMinOffset"]) == int(listed[0])
    # One empty segment is made ahead of the one that is written.
    active = int(info["commitLogMaxOffset"]) // stand.pool.segment_size * stand.pool.segment_size
    assert int(listed[-1]) in (active, active + stand.pool.segment_size)
    return listed


def test_first_start_sends_and_consumes_100_000_messages(stand, broker, newest, sent):
    seen = check_all(newest, stand.names, "Main", sent)
    assert (seen.lowest, seen.highest) == (0, COUNT - 1)
    listed = check_listing(stand, broker)
    assert len(listed) >= COUNT * 1024 // stand.pool.segment_size
    assert [stand.pool.disk_of(index) for index in range(len(listed))] == [i % 3 for i in range(len(listed))]
    assert complaints(broker) == []


@pytest.mark.full
def test_clean_restart_serves_everything_again(stand, broker, newest, sent):
    before = sorted(os.listdir(stand.pool.mountpoint))
    assert broker.stop() == 143
    assert complaints(broker) == []
    # A clean stop removes the segment made ahead.
    assert sorted(os.listdir(stand.pool.mountpoint)) == before[:-1]
    broker.start()
    check_all(newest, stand.names, "Main", sent)
    assert check_listing(stand, broker)[: len(before) - 1] == before[:-1]
    assert complaints(broker) == []


@pytest.mark.full
def test_what_a_killed_broker_acknowledged_synchronously_is_consumed(stand, broker, newest, sent, workdir):
    broker.kill()
    broker.config["flushDiskType"] = "SYNC_FLUSH"
    broker.start()
    acked_file, received_file = workdir / "acked", workdir / "received"
    with rocketmq.start_sender(newest, stand.names.address, "Crash", threads=16, acked=acked_file) as sender:
        for round_number in range(1, 3):
            goal = line_count(acked_file) + 3000
            wait_until(lambda goal=goal: line_count(acked_file) >= goal, f"crash {round_number}")
            broker.kill()
            broker.start()
        goal = line_count(acked_file) + 1000
        wait_until(lambda: line_count(acked_file) >= goal, "sending after the last recovery")
        totals = sender.stop()
    assert totals.failed > 0, "no send was interrupted: the kills came too late"
    acked = rocketmq.read_acked(acked_file)
    assert len(acked) == totals.sent
    # A send that was retried may be there twice; a changed body would show as sequence -1.
    seen = rocketmq.consume(
        newest, stand.names.address, "Crash", expect=totals.sent, received=received_file, idle_timeout_s=IDLE_S
    )
    assert (seen.corrupted, seen.skipped) == (0, 0)
    received = {(m.sequence, m.offset_msg_id) for m in rocketmq.read_received(received_file)}
    assert {(m.sequence, m.offset_msg_id) for m in acked} <= received
    check_listing(stand, broker)
    assert complaints(broker) == []
    check_all(newest, stand.names, "Main", sent)
