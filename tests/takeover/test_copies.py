"""A copy is durable when its writer's close returns, whichever daemon has answered the writes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB, segment_bytes

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.slow]


def test_written_before_the_death_and_closed_after_it(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], mode: str
) -> None:
    disk = disk_farm.add("ext4")
    folder = disk.path / "commitlog"
    folder.mkdir(mode=0o700)
    kept = keep(disks=[folder], settings={"passthrough": f'"{mode}"'})
    fd = os.open(kept.pool.path(0), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    content = segment_bytes(0, MIB)
    for position in range(0, MIB, 64 << 10):
        os.pwrite(fd, content[position : position + (64 << 10)], position)
    kept.replace()
    os.close(fd)
    name = kept.pool.path(0).name
    disk.vanish()  # what is not on the disk by now is lost
    kept.pool.abandon()
    disk.unmount()
    disk.mount()
    assert (Path(folder) / name).read_bytes() == content
