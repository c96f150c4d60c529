"""A disk becomes slow while a broker produces: once it is known, no message waits for it."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.brokers import Stand, wait_until
from support.flaky_disks import AgeingDisk, flaky_available
from support.pools import MIB, PoolMount

from commitlogfs.bench import rocketmq

pytestmark = [
    pytest.mark.broker,
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.soak,  # it measures times, which a busy machine spoils
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available()),
]

KNOWN_AFTER_S = 60.0
"""The disks' usual times are known."""
FOUND_WITHIN_S = 60.0
RATE = 1000
"""Messages per second: a segment per second, so that each disk has a load in every window of its observation."""
THREADS = 32
"""Many messages wait for one sync: with four threads, a segment on the slow disk takes more than 8 minutes."""
PLACED_S = 300.0
"""Until the segments that the broker has made on the slow disk are full."""
MESSAGES = 10_000
"""About ten segments."""
SLOWEST_SEND_MS = 200.0
NEWEST = 3


def first(pool: PoolMount) -> dict[str, Any]:
    found: dict[str, Any] = pool.status()["disks"][0]
    return found


def newest_places(stand: Stand) -> set[int]:
    """The disks (0, 1 ...) of the newest segments."""
    names = sorted(name for name in os.listdir(stand.pool.mountpoint) if name.isdigit())[-NEWEST:]
    return {n for n, directory in enumerate(stand.directories()) for name in names if (directory / name).exists()}


@pytest.mark.parametrize("seconds", [0.1, 1.0], ids=["ten times", "a hundred times"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_no_send_waits_for_a_slow_disk(
    new_stand: Callable[..., Stand], newest: rocketmq.Distribution, flush: str, seconds: float
) -> None:
    stand = new_stand(("ext4",) * 4, segment_size=4 * MIB, disk_bytes=2048 * MIB, ageing=[0])
    pool, ageing = stand.pool, stand.disks[0]
    assert isinstance(ageing, AgeingDisk)
    pool.init()
    pool.start()
    with stand.broker(newest, {"flushDiskType": flush}):
        with rocketmq.start_sender(
            newest, stand.names.address, "Slow", size_bytes=4096, rate=RATE, threads=THREADS
        ) as load:
            time.sleep(KNOWN_AFTER_S)
            assert first(pool)["state"] == "rw"
            ageing.take(seconds)
            wait_until(lambda: first(pool)["state"] == "slow", "the disk to be found", FOUND_WITHIN_S)
            wait_until(lambda: 0 not in newest_places(stand), "segments on the other disks", PLACED_S)
            load.stop()
        with rocketmq.BatchSender(newest, stand.names.address, "Slow", size_bytes=4096, threads=1) as sender:
            sender.send(MESSAGES // 5)  # its virtual machine gets warm
            sent = sender.send(MESSAGES)
        assert first(pool)["state"] == "slow"
        assert 0 not in newest_places(stand)
        print(f"{flush}, {seconds} s: p99 {sent.latency_p99_ms} ms, slowest {sent.latency_max_ms} ms")
        assert sent.latency_max_ms <= SLOWEST_SEND_MS
