"""Disks become empty by the broker's own expiry, or while they fail, and the broker works meanwhile."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.brokers import IDLE_S, Stand, check_all, complaints, line_count, roll, send_all, wait_until
from support.flaky_disks import BadBlocksDisk, flaky_available
from support.pools import MIB, PoolMount

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

SIZE = 2 * MIB
RESERVED_H = 72
CLEANS_AT_ALL_HOURS = {
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "fileReservedTime": RESERVED_H,
    "cleanResourceInterval": 1000,
}
CLEANED_S = 120.0
"""A broker cleans for the first time a minute after its start."""
BLOCK = 4096
FAST = "100MiB"
PULLED_AT_ONCE = 32
"""Messages of one pull of a consumer, by default."""


def disk(pool: PoolMount, number: int) -> dict[str, Any]:
    found: dict[str, Any] = pool.ask("status")["disks"][number - 1]
    return found


def on_disk(pool: PoolMount, number: int) -> list[str]:
    return sorted(name for name in os.listdir(pool.disks[number - 1]) if name.isdecimal())


def drain(pool: PoolMount, number: int, *options: str) -> None:
    ran = pool.cli("disk", "drain", number, pool.name, *options)
    assert ran.status == 0, ran.err


def safe_to_remove(pool: PoolMount, number: int) -> tuple[int, str]:
    ran = pool.cli("disk", "safe-to-remove", number, pool.name)
    return ran.status, ran.out


def age(pool: PoolMount, names: list[str]) -> None:
    """From now on these segments are too old for the broker, which judges by the mtime that the mount shows."""
    old_s = time.time() - (RESERVED_H + 1) * 3600
    for name in names:
        os.utime(pool.mountpoint / name, (old_s, old_s))


def test_segments_that_were_moved_or_wait_leave_by_the_brokers_age_rule(new_stand, newest, workdir: Path) -> None:
    """Disk 1 drains by copying, disk 2 by expiry. The broker deletes by path: the moved copies, and so their old
    files, which it has mapped until then."""
    stand: Stand = new_stand(("ext4", "xfs", "ext4", "xfs"), segment_size=SIZE, disk_bytes=512 * MIB)
    pool = stand.pool
    pool.init()
    pool.start("--watchdog", "0")
    acked = workdir / "acked"
    with stand.broker(newest, CLEANS_AT_ALL_HOURS) as broker:
        with rocketmq.start_sender(
            newest, stand.names.address, "During", size_bytes=4096, rate=1000, acked=acked
        ) as sender:
            wait_until(lambda: line_count(acked) >= 4000, "some segments on each disk")
            drain(pool, 2, "--by-expiry")
            assert pool.cli("disk", "cordon", 1, pool.name).status == 0
            roll(stand, 4)  # both have none of the newest segments any more
            moving = {name: (pool.mountpoint / name).stat().st_mtime_ns for name in on_disk(pool, 1)}
            drain(pool, 1, "--rate", FAST)
            wait_until(lambda: not disk(pool, 1)["drain"]["segments_left"], "the moves", 120)
            assert {name: (pool.mountpoint / name).stat().st_mtime_ns for name in moving} == moving
            moved_bytes = pool.ask("status")["moves"]["bytes"]
            assert disk(pool, 1)["held_segments"] == len(moving) > 1
            waiting = on_disk(pool, 2)
            assert len(waiting) > 1
            status, said = safe_to_remove(pool, 2)
            assert (status, f"{len(waiting)} segments" in said) == (1, True), said
            expired = [name for name in sorted(os.listdir(pool.mountpoint)) if name <= max(*moving, *waiting)]
            age(pool, expired)
            wait_until(lambda: not {*expired} & {*os.listdir(pool.mountpoint)}, "the broker's cleaning", CLEANED_S)
            for number in (1, 2):
                wait_until(lambda n=number: safe_to_remove(pool, n)[0] == 0, f"disk {number} to be free")
                assert on_disk(pool, number) == []
            assert pool.ask("status")["moves"]["bytes"] == moved_bytes == len(moving) * SIZE
            totals = sender.stop()
        assert (totals.failed, totals.abandoned) == (0, 0), totals.last_error
        names = sorted(os.listdir(pool.mountpoint))
        assert [int(name) for name in names] == list(range(int(names[0]), int(names[-1]) + 1, SIZE))
        assert complaints(broker) == []
        for number in (1, 2):
            ran = pool.cli("disk", "remove", number, pool.name)
            assert ran.status == 0, ran.err
        pool.disks = pool.disks[2:]
        broker.kill()
        broker.start()
        check_all(newest, stand.names, "After", send_all(newest, stand.names, "After", 100))


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
def test_a_failing_disk_is_saved_while_the_broker_works(
    new_stand: Callable[..., Stand], newest, workdir: Path
) -> None:
    """One block of it cannot be read. RocketMQ's client does not check bodies, so it delivers the message in which
    the lost range begins; and it drops the rest of a pull after a record that it cannot decode."""
    stand = new_stand(("ext4", "ext4", "ext4"), segment_size=SIZE, disk_bytes=256 * MIB, bad_blocks=[0])
    pool, bad = stand.pool, stand.disks[0]
    assert isinstance(bad, BadBlocksDisk)
    pool.init()
    pool.start("--watchdog", "0")
    acked = workdir / "acked"
    with stand.broker(newest) as broker:
        with rocketmq.start_sender(
            newest, stand.names.address, "During", size_bytes=4096, rate=500, acked=acked
        ) as sender:
            wait_until(lambda: line_count(acked) >= 4000, "some segments on each disk")
            segment = on_disk(pool, 1)[1]
            bad.damage(f"commitlog/{segment}", 64 * BLOCK, 65 * BLOCK)
            drain(pool, 1, "--failing", "--rate", FAST)
            roll(stand, 4)
            wait_until(lambda: not disk(pool, 1)["drain"]["segments_left"], "the moves", 120)
            totals = sender.stop()
        assert (totals.failed, totals.abandoned) == (0, 0), totals.last_error
        lost = pool.status()["unreadable"]
        assert lost
        assert all(int(segment) <= begin < end <= int(segment) + SIZE for begin, end in lost)
        status, said = safe_to_remove(pool, 1)
        assert (status, f"java (pid {broker.pid})" in said) == (1, True), said
        broker.kill()
        broker.start()
        wait_until(lambda: safe_to_remove(pool, 1)[0] == 0, "the disk to be free")
        ran = pool.cli("disk", "remove", "--lost", "--yes", 1, pool.name)
        assert ran.status == 0, ran.err
        pool.disks = pool.disks[1:]
        assert pool.status()["segments"]["gaps"] == []
        most_lost = (sum(end - begin for begin, end in lost) // BLOCK + 2) * PULLED_AT_ONCE
        seen = rocketmq.consume(
            newest,
            stand.names.address,
            "During",
            expect=totals.sent - most_lost,
            idle_timeout_s=IDLE_S,
            check=False,
        )
        assert seen.corrupted <= len(lost)
        assert seen.duplicates == 0
        assert totals.sent - most_lost <= seen.distinct <= totals.sent
        check_all(newest, stand.names, "After", send_all(newest, stand.names, "After", 100))
