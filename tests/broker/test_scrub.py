"""Nothing is taken for damage while daemons and brokers die, and while the log is cut."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import Stand, line_count, wait_until
from support.kept import KeptMount
from support.pools import MIB
from support.scrubs import scrub

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.soak]

KILLS = 200
KILLS_PER_RECOVERY = 4
"""Daemons die between two unclean recoveries of the broker: 50 of these."""
KILLS_PER_SCRUB = 8
"""And between two scrubs of the whole log: 25 of these, as many as in a day with one each hour."""
CUT = 2
"""Segments at the end of the log that are removed, as when a master becomes the slave of a shorter log."""


def test_no_false_verdict(new_stand: Callable[..., Stand], newest: rocketmq.Distribution, workdir: Path) -> None:
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=2048 * MIB)
    pool, chance, acked = stand.pool, random.Random(16), workdir / "acked"  # noqa: S311  repeatable
    pool.init()
    kept = KeptMount(pool)
    kept.start()
    with stand.broker(newest) as broker:
        with rocketmq.start_sender(
            newest, stand.names.address, "Scrubbed", size_bytes=4096, rate=300, acked=acked
        ) as sender:
            wait_until(lambda: line_count(acked) >= 4000, "some sealed segments")
            for kill in range(1, KILLS + 1):
                assert pool.cli("scrub", "start", pool.name, "--rate", "100MiB").status == 0
                time.sleep(chance.random() / 2)
                kept.replace()
                if kill % KILLS_PER_RECOVERY == 0:
                    broker.kill()
                    broker.start()
                if kill % KILLS_PER_SCRUB == 0:
                    assert scrub(pool) == {}
            sender.stop()
        broker.kill()
        for name in sorted(name for name in os.listdir(pool.mountpoint) if name.isdigit())[-CUT:]:
            (pool.mountpoint / name).unlink()
        broker.start()
        rocketmq.send(newest, stand.names.address, "Scrubbed", count=3000, size_bytes=4096, retry=True)
        assert scrub(pool) == {}
        sent = line_count(acked)
        print(f"{sent} messages, {len(os.listdir(pool.mountpoint))} segments")
