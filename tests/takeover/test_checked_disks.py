"""Findings of checks are known to the next daemon, and a disk that hangs holds up no takeover."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.filling import status
from support.flaky_disks import BadBlocksDisk, flaky_available
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

FOUND_WITHIN_S = 40.0
"""Disks in trouble are found within 30 s; a busy machine that runs tests gets a margin."""
FOUND_BEFORE_S = 15.0
"""The first check of a daemon finds what was there before it."""
NEVER = {"interval": '"10m"'}

Keep = Callable[..., KeptMount]


def on(disks: list[Any], keep: Keep) -> KeptMount:
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    return keep(disks=[disk.path / "commitlog" for disk in disks], retention=NEVER)


def make_full(kept: KeptMount) -> None:
    """Six segments that are written completely."""
    kept.pool.make_segments(range(6))
    for index in range(6):
        with kept.pool.path(index).open("r+b") as file:
            file.write(bytes([index + 1]) * MIB)
            os.fsync(file.fileno())


def first(kept: KeptMount) -> Any:
    return status(kept.pool)["disks"][0]


def await_state(kept: KeptMount, state: str, seconds: float = PATIENCE_S) -> None:
    eventually(lambda: first(kept)["state"] == state, seconds)


def places(kept: KeptMount, indexes: range) -> set[bytes]:
    return {os.getxattr(kept.pool.path(index), "user.commitlogfs.disk") for index in indexes}


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize(
    ("how", "found_s"),
    [
        pytest.param("kill", PATIENCE_S, id="kill"),
        pytest.param("restart", PATIENCE_S, id="restart"),
        pytest.param("kill", FOUND_WITHIN_S, id="in_time", marks=pytest.mark.timing),
    ],
)
def test_an_unreadable_disk_is_known_to_the_next_daemon(
    disk_farm: DiskFarm, keep: Keep, how: str, found_s: float
) -> None:
    """Its directory can be read, so the next daemon serves it."""
    bad, good = disk_farm.add_of(BadBlocksDisk), disk_farm.add()
    kept = on([bad, good], keep)
    make_full(kept)
    for index in (0, 2, 4):
        bad.damage(f"commitlog/{kept.pool.path(index).name}", 0, MIB)
    await_state(kept, "unreadable", found_s)
    for indexes in (range(6, 8), range(8, 10)):
        kept.change(how)
        assert first(kept)["state"] == "unreadable"
        kept.pool.make_segments(indexes)
        assert places(kept, indexes) == {os.fsencode(kept.pool.disks[1])}
    bad.mend()
    await_state(kept, "rw", found_s)
    kept.change(how)
    assert first(kept)["state"] == "rw"


@pytest.mark.timing
@pytest.mark.parametrize("how", ["kill", "restart"])
def test_daemons_change_beside_an_unresponsive_disk(disk_farm: DiskFarm, keep: Keep, how: str) -> None:
    """A restart only if it is forced: another disk that hangs would hold the next daemon."""
    disks = [disk_farm.add() for _ in range(2)]
    kept = on(disks, keep)
    kept.pool.make_segments(range(4))
    os.sync()
    checksums = eventually(lambda: (sums := status(kept.pool)["checksums"])["with"] and sums)
    assert checksums["without"] + checksums["unread"] == 0  # nothing else of the daemon waits for the disk
    with frozen(disks[0], 60) as thaw:
        await_state(kept, "unresponsive", FOUND_WITHIN_S)
        for index in (4, 5):
            started = time.monotonic()
            if how == "restart":
                assert kept.pool.cli("restart", kept.pool.name).status == 4
                assert kept.pool.cli("restart", "--force", kept.pool.name).status == 0
                kept.await_handover()
            else:
                kept.replace()
            assert first(kept)["state"] == "unresponsive"
            kept.pool.make_segments([index])
            assert time.monotonic() - started < 15, "nothing waits for it"
        assert places(kept, range(4, 6)) == {os.fsencode(kept.pool.disks[1])}
        thaw()
    await_state(kept, "rw", 15)
    kept.pool.make_segments(range(6, 8))
    assert len(places(kept, range(6, 8))) == 2


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize(
    "found_s",
    [
        pytest.param(PATIENCE_S, id="works"),
        pytest.param(FOUND_BEFORE_S, id="in_time", marks=pytest.mark.timing),
    ],
)
def test_a_disk_that_failed_before_the_mount_is_found(disk_farm: DiskFarm, keep: Keep, found_s: float) -> None:
    bad, good = disk_farm.add_of(BadBlocksDisk), disk_farm.add()
    kept = on([bad, good], keep)
    make_full(kept)
    kept.pool.stop()
    for index in (0, 2, 4):
        bad.damage(f"commitlog/{kept.pool.path(index).name}", 0, MIB)
    kept.start()
    await_state(kept, "unreadable", found_s)
