"""A copy is durable when its writer's close, or rename, returns, whichever daemon has answered the writes."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, segment_bytes

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]


def test_written_before_the_death_and_closed_after_it(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], mode: str
) -> None:
    disk = disk_farm.add("ext4")
    directory = disk.path / "commitlog"
    directory.mkdir(mode=0o700)
    kept = keep(disks=[directory], settings={"passthrough": f'"{mode}"'})
    fd = os.open(kept.pool.path(0), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    content = segment_bytes(0, MIB)
    for position in range(0, MIB, 64 << 10):
        os.pwrite(fd, content[position : position + (64 << 10)], position)
    kept.replace()
    os.close(fd)
    name = kept.pool.path(0).name
    disk.vanish()  # what is not on the disk by now is lost
    kept.pool.abandon()
    disk.repair()
    assert (Path(directory) / name).read_bytes() == content


@pytest.mark.parametrize("way", ["in place", "renamed"])
def test_a_copy_by_somebody_who_also_reads(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], mode: str, way: str
) -> None:
    """As rsync: opened for reading and writing, so that with passthrough no write comes to the daemon."""
    disk = disk_farm.add("ext4")
    directory = disk.path / "commitlog"
    directory.mkdir(mode=0o700)
    pool = make_pool(disks=[directory], settings={"passthrough": f'"{mode}"'})
    pool.start()
    path, content = pool.path(0), segment_bytes(0, MIB)
    written = path if way == "in place" else path.with_name(f".{path.name}.aB3xYz")
    fd = os.open(written, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    for position in range(0, MIB, 64 << 10):
        os.pwrite(fd, content[position : position + (64 << 10)], position)
    if way == "in place":
        os.close(fd)
    else:
        written.rename(path)
    disk.vanish()
    pool.kill()
    if way == "renamed":
        with contextlib.suppress(OSError):  # nobody answers any longer
            os.close(fd)
    pool.abandon()
    disk.repair()
    assert (directory / path.name).read_bytes() == content
