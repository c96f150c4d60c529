"""The next daemon knows the state of a disk with problems, and checks it again at once."""

from collections.abc import Callable
from typing import Any

import pytest
from support.filling import status
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.timings import WITHOUT_CHECKS
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

NEVER = {"interval": '"10m"'}
"""Between the looks of two daemons at their start no other one comes."""


def on_disks(disk_farm: DiskFarm, keep: Callable[..., Any], **options: object) -> tuple[Any, list[LoopDisk]]:
    disks = [disk_farm.add() for _ in range(2)]
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    return keep(disks=[disk.path / "commitlog" for disk in disks], **options), disks


def first(kept: KeptMount) -> Any:
    return status(kept.pool)["disks"][0]


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_failed_disk_is_still_failed(disk_farm: DiskFarm, keep: Callable[..., KeptMount], how: str) -> None:
    kept, disks = on_disks(disk_farm, keep, retention={"interval": '"1s"'})
    pool = kept.pool
    pool.make_segments(range(2))
    disks[0].turn_read_only()
    pool.make_segments([2])
    eventually(lambda: first(kept)["state"] == "failed")
    pool.retention = NEVER
    pool.write_config()
    for _ in range(2):
        kept.change(how)
        assert first(kept)["state"] == "failed"
        assert first(kept)["last_error"]
    moved_on = pool.log_since_start().count("event=create_moved_on")
    pool.make_segments([3, 4])
    assert pool.log_since_start().count("event=create_moved_on") == moved_on, "it is tried last"


def test_a_disk_that_failed_unseen_is_found_at_once(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    kept, disks = on_disks(disk_farm, keep, retention=NEVER, variables=WITHOUT_CHECKS)
    disks[0].turn_read_only()
    assert first(kept)["state"] == "rw"
    kept.replace()
    eventually(lambda: first(kept)["state"] == "failed")
    assert "read-only" in first(kept)["last_error"]
