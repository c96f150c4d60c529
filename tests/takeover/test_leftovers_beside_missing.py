"""An empty file has the name of a segment on a missing disk: a takeover serves nothing under that name."""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filling import status
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

from commitlogfs.store.disks import identity

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

RETENTION = {"interval": '"1s"'}
"""How often leftovers of disks that are well are removed."""


def on_disks(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> tuple[KeptMount, list[LoopDisk]]:
    disks = [disk_farm.add() for _ in range(3)]
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    return keep(disks=[disk.path / "commitlog" for disk in disks], retention=RETENTION), disks


def bare(pool: PoolMount, disk: int, index: int) -> Path:
    return Path(pool.disks[disk]) / pool.path(index).name


def place(pool: PoolMount, index: int) -> int:
    directory = os.getxattr(pool.path(index), "user.commitlogfs.disk")
    return [os.fsencode(disk) for disk in pool.disks].index(directory)


def await_record(pool: PoolMount, disk: int, index: int) -> None:
    """Until the disk has on record that this segment is the newest."""
    fd = os.open(pool.disks[disk], os.O_RDONLY)
    try:
        eventually(lambda: identity.read_newest(fd) == index * MIB)
    finally:
        os.close(fd)


def is_gone(path: Path) -> bool:
    """The kernel may remember the file on the missing disk, as it was, for a second."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return True
    assert size == MIB
    return False


def assert_not_served(pool: PoolMount, index: int) -> None:
    path = pool.path(index)
    assert path.name not in os.listdir(pool.mountpoint)
    eventually(lambda: is_gone(path))
    with pytest.raises(FileExistsError):
        os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def assert_whole(pool: PoolMount, count: int) -> None:
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(count)]
    for index in range(count):
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    assert not [finding for finding in status(pool)["findings"] if finding["severity"].startswith("refuses")]


@pytest.mark.alone
def test_a_given_up_file_while_the_segment_is_missing(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """Segment 3 was given up on the first disk, made and written on another, and that one vanishes."""
    kept, disks = on_disks(disk_farm, keep)
    pool = kept.pool
    pool.make_segments(range(3))
    fd = os.open(pool.path(3), os.O_RDWR | os.O_CREAT, 0o644)
    assert place(pool, 3) == 0
    os.sync()
    disks[0].turn_read_only()
    with pytest.raises(OSError) as refused:  # noqa: PT011
        os.ftruncate(fd, MIB)
    assert refused.value.errno in (errno.EROFS, errno.EIO)
    pool.make_segments([3])
    second = place(pool, 3)
    third = 3 - second
    await_record(pool, third, 3)
    os.sync()
    disks[second].vanish()

    for _ in range(2):
        kept.replace()
        assert_not_served(pool, 3)
        assert bare(pool, 0, 3).stat().st_size == 0
    pool.make_segments([4])
    assert place(pool, 4) == third
    with contextlib.suppress(OSError):  # its file is served no longer
        os.close(fd)

    pool.stop()
    disks[0].repair()
    disks[second].repair()
    pool.start()
    assert_whole(pool, 5)
    eventually(lambda: not bare(pool, 0, 3).exists())


@pytest.mark.alone
@pytest.mark.parametrize("index", [3, 0], ids=["newest", "oldest"])
def test_an_empty_file_stays_while_a_disk_is_missing(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], index: int
) -> None:
    """On a disk that is well, where leftovers are removed: this one may be all that is left of the segment."""
    kept, disks = on_disks(disk_farm, keep)
    pool = kept.pool
    pool.make_segments(range(4))
    assert place(pool, index) == 0
    await_record(pool, 1, 3)
    os.sync()
    empty = bare(pool, 1, index)
    empty.touch(mode=0o644)
    disks[0].vanish()

    kept.replace()
    assert_not_served(pool, index)
    time.sleep(3.0)
    assert empty.exists()
    kept.replace()
    assert_not_served(pool, index)
    assert empty.exists()

    pool.stop()
    disks[0].repair()
    pool.start()
    assert_whole(pool, 4)
    eventually(lambda: not empty.exists())
    assert pool.disk_of(index) == 0


def test_a_segment_made_a_moment_ago_beside_a_missing(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """The file is open and has no size: its creator continues with it."""
    kept, disks = on_disks(disk_farm, keep)
    pool = kept.pool
    pool.make_segments(range(3))
    fd = os.open(pool.path(3), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        assert place(pool, 3) == 0
        await_record(pool, 2, 3)
        disks[1].vanish()
        kept.replace()
        os.ftruncate(fd, MIB)
        os.pwrite(fd, segment_bytes(3, 4096), 0)
        assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    finally:
        os.close(fd)
