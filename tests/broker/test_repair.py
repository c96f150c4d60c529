"""A rotten segment is repaired from a slave's directory while consumers read it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.broker_load import repeated
from support.brokers import IDLE_S, Stand, check_all, send_all, slave_of, wait_until
from support.checksums import backing
from support.pools import MIB
from support.repairs import restore
from support.scrubs import flip, records_of, scrub

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import ConsumeResult, Distribution

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

MESSAGES = 4000
ROTTEN = 2
"""Segment, of about eight."""
IN_BODY = 300
"""Position in a record."""


def test_every_message_is_right_after_a_repair(
    new_stand: Callable[..., Stand], newest: Distribution, workdir: Path
) -> None:
    """A broker delivers what it has mapped, also a damaged body, until it is started anew; others open the file
    anew, and read the right one at once."""
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    pool = stand.pool
    pool.init()
    pool.start()
    with stand.broker(newest) as master:
        slave = slave_of(stand, newest, master, workdir / "slave")
        copies = slave.commitlog_dirs[0]

        def has(index: int) -> bool:
            copy = copies / pool.path(index).name
            return copy.exists() and copy.read_bytes() == pool.path(index).read_bytes()

        with slave:  # it begins with the newest segment of its master
            send_all(newest, stand.names, "First", 1)
            wait_until(lambda: has(0), "the first message")
            sent = send_all(newest, stand.names, "Repaired", MESSAGES, size_bytes=4096)
            name = pool.path(ROTTEN).name
            right = pool.path(ROTTEN).read_bytes()
            wait_until(lambda: has(ROTTEN), "the slave")
            place = records_of(right, int(name))[3].position + IN_BODY
            read = partial(
                rocketmq.consume,
                newest,
                stand.names.address,
                "Repaired",
                expect=MESSAGES - 1,  # one is damaged for a time
                idle_timeout_s=IDLE_S,
                check=False,
            )
            seen: list[ConsumeResult] = []

            def read_all_again() -> None:
                """Wait for a pass of the consumers that begins now."""
                passes = len(seen)
                wait_until(lambda: len(seen) >= passes + 2, "another pass of the consumers")

            with repeated(lambda: seen.append(read()), pause_s=0.0):
                read_all_again()
                flip(backing(pool, ROTTEN), place)
                assert scrub(pool).keys() == {name}
                read_all_again()
                restore(pool, "--from", copies)
                assert (pool.mountpoint / name).read_bytes() == right
                read_all_again()
            assert scrub(pool) == {}
            assert {one.skipped for one in seen} == {0}
            assert seen[0].corrupted == 0
            assert seen[-1].corrupted == 1
            assert {one.distinct + one.corrupted for one in seen} == {MESSAGES}
        master.kill()
        master.start()
        check_all(newest, stand.names, "Repaired", sent)
        assert scrub(pool) == {}
