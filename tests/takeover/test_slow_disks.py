"""A slow disk is known to the next daemon, which goes on to keep new segments away from it, and to probe it."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.filling import status
from support.flaky_disks import AgeingDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.segment_writers import written
from support.timings import SOON_PROBED
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.timing,
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available()),
]

FOUND_WITHIN_S = 60.0
BACK_WITHIN_S = 100.0
"""The next daemon observes for 30 s before it probes; a busy machine may spoil two probes."""


def first(kept: KeptMount) -> Any:
    return status(kept.pool)["disks"][0]


def test_a_slow_disk_is_known_to_the_next_daemon(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """It is slow from the start, and more so than a sound disk can be."""
    disks = [disk_farm.add_of(AgeingDisk), *(disk_farm.add() for _ in range(3))]
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    kept = keep(
        disks=[disk.path / "commitlog" for disk in disks], variables=SOON_PROBED, retention={"interval": '"10m"'}
    )
    ageing = disks[0]
    assert isinstance(ageing, AgeingDisk)
    ageing.take(0.3)
    with written(kept.pool):
        eventually(lambda: first(kept)["state"] == "slow", FOUND_WITHIN_S)
        found = first(kept)["slowness"]
        for how in ("kill", "restart"):
            kept.change(how)
            known = first(kept)
            assert known["state"] == "slow"
            assert known["refusal"] in ("slow", "in-backoff")
            assert known["slowness"]["operation"] == found["operation"]
            assert known["slowness"]["since"] == pytest.approx(found["since"], abs=3)
            assert known["slowness"]["seconds"] > 0.1 > known["slowness"]["peers_seconds"]
        time.sleep(45)
        assert first(kept)["state"] == "slow", "a probe of the last daemon has found it so"
        ageing.heal()
        eventually(lambda: first(kept)["state"] == "rw", BACK_WITHIN_S)
