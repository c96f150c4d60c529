"""Segments move between disks while a broker produces and consumes, and daemons die meanwhile."""

import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.brokers import Stand, appending, check_all, complaints, roll, send_all, slave_of, wait_until
from support.faults import FaultPlan
from support.kept import KeptMount
from support.pools import MIB, PoolMount

from commitlogfs.console.errors import UnreachableError

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

FAST = 200 * MIB
STEPS = 24
"""System calls of a daemon that moves one segment, and some more."""


@pytest.fixture
def stand(new_stand: Callable[..., Stand]) -> Stand:
    return born(new_stand, 1024 * MIB)


def born(new_stand: Callable[..., Stand], disk_bytes: int) -> Stand:
    stand = new_stand(("ext4", "xfs", "ext4", "xfs"), segment_size=2 * MIB, disk_bytes=disk_bytes)
    stand.pool.init()
    return stand


def disk(pool: PoolMount, number: int) -> dict[str, Any]:
    found: dict[str, Any] = pool.ask("status")["disks"][number - 1]
    return found


def left(pool: PoolMount, number: int) -> int:
    """Segments that a disk still has to lose; many while its daemon is being replaced."""
    try:
        drain = disk(pool, number)["drain"]
    except UnreachableError:
        return 1000
    assert drain is not None
    return int(drain["segments_left"] - drain["segments_kept"])


def ask(pool: PoolMount, verb: str, number: int, **arguments: int) -> None:
    """Until a daemon has answered."""

    def asked() -> bool:
        try:
            return "refused" not in pool.ask(verb, disk=str(number), **arguments)
        except UnreachableError:
            return False

    wait_until(asked, verb)


def hash_of(pool: PoolMount, names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update((pool.mountpoint / name).read_bytes())
    return digest.hexdigest()


def move_round_and_round(stand: Stand, kept: KeptMount, plan: FaultPlan, deaths: int) -> None:
    """Drain one disk after the other; the daemon dies at random steps all the time."""
    pool, chance = stand.pool, random.Random(7)  # noqa: S311  repeatable
    sealed = sorted(os.listdir(pool.mountpoint))[:-3]
    before = hash_of(pool, sealed)
    number = 1
    ask(pool, "disk-drain", number)
    for _ in range(deaths):
        plan.die_at(kept.newest_daemon(), chance.randint(1, STEPS))
        deadline = time.monotonic() + 2.0
        while plan.steps < STEPS and time.monotonic() < deadline and left(pool, number):
            time.sleep(0.02)
        if plan.disarm() < STEPS and not left(pool, number):
            ask(pool, "disk-cancel", number)
            number = number % 4 + 1
            ask(pool, "disk-drain", number)
        wait_until(lambda: is_served(pool), "the next daemon")
    ask(pool, "disk-drain", number, rate=FAST)  # without a rate, it would give way to the broker
    wait_until(lambda: not left(pool, number), "the drain to end")
    ask(pool, "disk-cancel", number)
    assert hash_of(pool, sealed) == before


def is_served(pool: PoolMount) -> bool:
    try:
        return bool(pool.ask("status"))
    except UnreachableError:
        return False


@pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
@pytest.mark.parametrize("deaths", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_daemons_die_while_segments_move(
    new_stand: Callable[..., Stand], newest, workdir: Path, deaths: int
) -> None:
    stand = born(new_stand, (1024 + 20 * deaths) * MIB)  # the broker keeps the space of what was moved, too
    pool, plan = stand.pool, FaultPlan(workdir)
    pool.variables.update(plan.variables)
    kept = KeptMount(pool)
    kept.start()
    with stand.broker(newest, {"waitTimeMillsInSendQueue": 10_000}) as broker:
        sent = send_all(newest, stand.names, "Before", 5000, size_bytes=4096)
        with appending(stand, broker, newest, "During", workdir):
            roll(stand, 8)
            move_round_and_round(stand, kept, plan, deaths)
        assert pool.status()["daemon"]["restarts"] > deaths // 2
        check_all(newest, stand.names, "Before", sent)
        broker.kill()
        broker.start()
        check_all(newest, stand.names, "Before", sent)
        broker.stop()
    wait_until(
        lambda: not any(disk["held_segments"] for disk in pool.status()["disks"]), "closed files to be freed"
    )
    pool.stop()
    names = sorted(name for directory in stand.directories() for name in os.listdir(directory) if name.isdecimal())
    assert len(set(names)) == len(names)


def test_a_drained_disk_is_held_until_the_broker_starts_anew(stand: Stand, newest, workdir: Path) -> None:
    pool = stand.pool
    pool.start("--watchdog", "0")
    with stand.broker(newest) as broker:
        with appending(stand, broker, newest, "During", workdir):
            roll(stand, 10)
            names = sorted(os.listdir(pool.mountpoint))[:-3]
            before = hash_of(pool, names)
            ran = pool.cli("disk", "drain", 2, pool.name)
            assert ran.status == 0, ran.err
            wait_until(lambda: not disk(pool, 2)["drain"]["segments_left"], "the drain to end", 120)
        ran = pool.cli("disk", "safe-to-remove", 2, pool.name)
        assert ran.status == 1
        assert f"open there: java (pid {broker.pid})" in ran.out
        broker.kill()
        broker.start()
        wait_until(lambda: pool.cli("disk", "safe-to-remove", 2, pool.name).status == 0, "the disk to be free")
        ran = pool.cli("disk", "remove", 2, pool.name)
        assert ran.status == 0, ran.err
        pool.disks = [path for path in pool.disks if path != stand.disks[1].path / "commitlog"]
        stand.disks[1].unmount()
        assert hash_of(pool, names) == before
        check_all(newest, stand.names, "After", send_all(newest, stand.names, "After", 100))
        assert complaints(broker) == []


@pytest.mark.soak
def test_a_native_broker_in_the_middle_of_a_drain(stand: Stand, newest) -> None:
    """After a plain unmount its disks hold one whole log, some of it moved already."""
    pool = stand.pool
    pool.start()
    with stand.broker(newest) as broker:
        sent = send_all(newest, stand.names, "Mounted", 10_000, size_bytes=4096)
        assert pool.cli("disk", "drain", 1, pool.name, "--rate", "8MiB").status == 0
        wait_until(lambda: pool.status()["moves"]["segments"] >= 2, "some moves")
        broker.kill()
        assert left(pool, 1), "it was too fast"
        pool.stop()
        broker.config["storePathCommitLog"] = ",".join(map(str, stand.directories()))
        broker.start()
        check_all(newest, stand.names, "Mounted", sent)
        more = send_all(newest, stand.names, "Native", 1000, size_bytes=4096)
        broker.kill()
        pool.start()
        broker.config["storePathCommitLog"] = str(pool.mountpoint)
        broker.start()
        wait_until(lambda: not left(pool, 1), "the drain to end")
        check_all(newest, stand.names, "Mounted", sent)
        check_all(newest, stand.names, "Native", more)


@pytest.mark.soak
def test_a_slave_copies_what_its_master_has_mapped(stand: Stand, newest, workdir: Path) -> None:
    """It was away while the segments were moved; the master reads their old files, which it keeps mapped."""
    pool = stand.pool
    pool.start("--watchdog", "0")
    with stand.broker(newest) as master:
        slave = slave_of(stand, newest, master, workdir / "slave")
        copies = slave.commitlog_dirs[0]

        def has(names: list[str]) -> bool:
            return all((copies / name).exists() for name in names) and all(
                (copies / name).read_bytes() == (pool.mountpoint / name).read_bytes() for name in names
            )

        with slave:
            send_all(newest, stand.names, "Replicated", 100)
            wait_until(lambda: has(sorted(os.listdir(pool.mountpoint))[:1]), "the first messages")
            slave.kill()
            send_all(newest, stand.names, "Replicated", 5000, size_bytes=4096)
            sealed = sorted(os.listdir(pool.mountpoint))[:-2]
            assert pool.cli("disk", "drain", 1, pool.name).status == 0
            wait_until(lambda: not left(pool, 1), "the drain to end")
            assert disk(pool, 1)["held_segments"] > 1
            slave.start()
            wait_until(lambda: has(sealed), "the slave to have every sealed segment")
