"""A disk that becomes slow under real writes is found and passed over, and comes back when it is well."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.filling import status
from support.flaky_disks import AgeingDisk, flaky_available
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount
from support.segment_writers import newest, written
from support.timings import SOON_PROBED
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.timing,
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available()),
]

KNOWN_AFTER_S = 50.0
"""Three windows with a load, after the first one of the daemon."""
FOUND_WITHIN_S = 60.0
BACK_WITHIN_S = 60.0
"""A probe every 15 s in these tests, two of which a busy machine may spoil."""

MakePool = Callable[..., PoolMount]


def pool_on(make_pool: MakePool, disks: list[Any]) -> PoolMount:
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories, variables=SOON_PROBED, retention={"interval": '"1s"'})
    pool.start()
    return pool


def first(pool: PoolMount) -> Any:
    return status(pool)["disks"][0]


def places_after(pool: PoolMount, offset: int) -> set[str]:
    """Disks of the segments that were made after that offset."""
    places = set()
    for name in os.listdir(pool.mountpoint):
        if name.isdigit() and int(name) > offset:
            with contextlib.suppress(FileNotFoundError):
                places.add(os.fsdecode(os.getxattr(pool.mountpoint / name, "user.commitlogfs.disk")))
    return places


def metric(pool: PoolMount, name: str, more: str) -> float:
    wanted = f'commitlogfs_{name}{{disk="{pool.disks[0]}",{more}}} '
    return next(float(line.removeprefix(wanted)) for line in pool.metrics().splitlines() if line.startswith(wanted))


@pytest.mark.parametrize("seconds", [0.1, 1.0], ids=["ten times", "a hundred times"])
def test_a_disk_that_becomes_slow(disk_farm: DiskFarm, make_pool: MakePool, seconds: float) -> None:
    ageing = disk_farm.add_of(AgeingDisk)
    pool = pool_on(make_pool, [ageing, *(disk_farm.add() for _ in range(3))])
    with written(pool):
        time.sleep(KNOWN_AFTER_S)
        assert [disk["state"] for disk in status(pool)["disks"]] == ["rw"] * 4, "slower than others from the start"
        began = time.monotonic()
        ageing.take(seconds)
        eventually(lambda: first(pool)["state"] == "slow", FOUND_WITHIN_S, pool.log_since_start)
        assert time.monotonic() - began < FOUND_WITHIN_S
        slow_from = newest(pool)
        found = first(pool)
        assert found["refusal"] in ("slow", "in-backoff"), "a create may have had no answer in time"
        slowness = found["slowness"]
        assert slowness["seconds"] > seconds / 2 > 3 * slowness["peers_seconds"] > 0
        assert 0 <= slowness["probe_in_seconds"] <= 15
        assert metric(pool, "disk_state", 'pool="test",state="slow"') == 1
        pool.require_logged("event=disk_slow")
        said = " ".join(pool.cli("status", pool.name).out.split())
        assert f"slow: {slowness['seconds'] * 1000:,.1f} ms for a {slowness['operation']}" in said
        assert f"peers {slowness['peers_seconds'] * 1000:,.1f} ms" in said
        assert "gets no new segments, next probe in" in said
        eventually(lambda: [alert["code"] for alert in status(pool)["retention"]["alerts"]] == ["disk-slow"])
        time.sleep(40)  # at least one probe
        others = {str(disk) for disk in pool.disks[1:]}
        eventually(
            lambda: places_after(pool, slow_from + MIB) == others, 60
        )  # the writer may be held up by the disk
        assert first(pool)["state"] == "slow"
        assert metric(pool, "disk_operation_seconds", 'op="write",pool="test"') > seconds / 2
        ageing.heal()
        eventually(lambda: first(pool)["state"] == "rw", BACK_WITHIN_S, pool.log_since_start)
        pool.require_logged("event=disk_not_slow")
        back_from = newest(pool)
        eventually(lambda: str(pool.disks[0]) in places_after(pool, back_from), 120)
        assert metric(pool, "disk_state", 'pool="test",state="rw"') == 1
    assert Path(pool.disks[0]).is_dir()
