"""A drain of a read-only disk, and a disk with its copies that goes away and returns."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.kept import KeptMount
from support.pools import MIB
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

COUNT = 12


def on(disk: Path) -> set[int]:
    return {int(name) // MIB for name in os.listdir(disk) if name.isdecimal()}


@pytest.mark.parametrize("how", ["live", "mount"])
def test_copies_that_return_beside_others_are_one_segment(keep: Callable[..., KeptMount], how: str) -> None:
    kept: Any = keep(4)
    pool = kept.pool
    pool.make_segments(range(COUNT))
    for number in (1, 2):
        assert pool.cli("disk", "cordon", number, pool.name).status == 0
    pool.make_segments(range(COUNT, COUNT + 4))  # a disk with copies does not have the newest
    assert pool.cli("disk", "uncordon", 2, pool.name).status == 0
    pool.disk_settings = {0: {"readonly": "true"}}
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    assert pool.cli("restart", pool.name).status == 0
    on_failing = on(pool.disks[0])
    assert pool.cli("disk", "drain", "--failing", 1, pool.name, "--rate", "1GiB").status == 0
    eventually(lambda: pool.ask("status")["disks"][0]["segments"] == 0)
    assert on(pool.disks[0]) == on_failing  # nothing can be removed there
    returning = next(disk for disk in pool.disks[1:] if on_failing & on(disk) and COUNT + 3 not in on(disk))
    contents = {index: pool.path(index).read_bytes() for index in range(COUNT + 4)}
    copied = on_failing & on(returning)
    hidden = returning.with_name("away")
    returning.rename(hidden)
    kept.await_handover()
    kept.replace()
    others = [disk for disk in pool.disks[1:] if disk != returning]
    eventually(lambda: copied <= {index for disk in others for index in on(disk)})
    if how == "live":
        hidden.rename(returning)
        eventually(lambda: not pool.status()["degraded"])
    else:
        pool.stop()
        hidden.rename(returning)
        del pool.settings["on_missing"]
        pool.write_config()
        kept.start()
    assert all(pool.path(index).read_bytes() == content for index, content in contents.items())
    assert pool.status()["segments"]["gaps"] == []
    assert "duplicate-segment" not in [finding["code"] for finding in pool.status()["findings"]]

    def holders(index: int) -> list[Path]:
        return [disk for disk in pool.disks[1:] if index in on(disk)]

    eventually(lambda: all(len(holders(index)) == 1 for index in copied))
