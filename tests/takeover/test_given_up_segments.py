"""The daemon dies, or is restarted, while a failed disk holds an empty segment: its successor gives it up, too."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.filling import status
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]


@pytest.fixture
def failing(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> Iterator[tuple[KeptMount, LoopDisk, int]]:
    """Three disks with one segment each; the first has aborted its journal after segment 3 was made there, which is
    open and has no size."""
    disks = [disk_farm.add() for _ in range(3)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    kept = keep(disks=directories, retention={"interval": '"1s"'})
    kept.pool.make_segments(range(3))
    fd = os.open(kept.pool.path(3), os.O_RDWR | os.O_CREAT, 0o644)
    assert place(kept.pool, 3) == 0
    os.sync()
    disks[0].turn_read_only()
    yield kept, disks[0], fd
    with contextlib.suppress(OSError):
        os.close(fd)


def place(pool: PoolMount, index: int) -> int:
    directory = os.getxattr(pool.path(index), "user.commitlogfs.disk")
    return [os.fsencode(disk) for disk in pool.disks].index(directory)


def bare(pool: PoolMount, disk: int, index: int) -> Path:
    return Path(pool.disks[disk]) / pool.path(index).name


def assert_moved_and_cleared_away(kept: KeptMount, disk: LoopDisk, fd: int) -> None:
    """Segment 3 lies on a healthy disk; the failed one, repaired, loses its empty file and nothing else."""
    pool = kept.pool
    assert place(pool, 3) != 0
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(4)]
    assert bare(pool, 0, 3).exists()
    os.close(fd)
    pool.stop()
    disk.repair()
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(4)]
    eventually(lambda: not bare(pool, 0, 3).exists())
    for index in range(4):
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    assert not [finding for finding in status(pool)["findings"] if finding["severity"].startswith("refuses")]


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_killed_before_the_failure_is_noticed(failing: tuple[KeptMount, LoopDisk, int], how: str) -> None:
    kept, disk, fd = failing
    kept.change(how)
    with pytest.raises(OSError) as refused:  # noqa: PT011
        os.ftruncate(fd, MIB)
    assert refused.value.errno in (errno.EROFS, errno.EIO)
    kept.pool.make_segments([3])
    assert_moved_and_cleared_away(kept, disk, fd)


def test_killed_between_giving_up_and_the_next_create(failing: tuple[KeptMount, LoopDisk, int]) -> None:
    kept, disk, fd = failing
    with pytest.raises(OSError):  # noqa: PT011
        os.ftruncate(fd, MIB)
    kept.replace()
    kept.pool.make_segments([3])
    assert_moved_and_cleared_away(kept, disk, fd)


def test_killed_while_both_files_are_empty(failing: tuple[KeptMount, LoopDisk, int]) -> None:
    kept, disk, fd = failing
    with pytest.raises(OSError):  # noqa: PT011
        os.ftruncate(fd, MIB)
    second = os.open(kept.pool.path(3), os.O_RDWR | os.O_CREAT, 0o644)
    kept.replace()
    with pytest.raises(OSError):  # noqa: PT011
        os.ftruncate(fd, MIB)
    os.ftruncate(second, MIB)
    os.pwrite(second, segment_bytes(3, 4096), 0)
    os.close(second)
    assert_moved_and_cleared_away(kept, disk, fd)


def test_killed_after_the_segment_was_written_elsewhere(failing: tuple[KeptMount, LoopDisk, int]) -> None:
    kept, disk, fd = failing
    with pytest.raises(OSError):  # noqa: PT011
        os.ftruncate(fd, MIB)
    kept.pool.make_segments([3])
    second = os.open(kept.pool.path(3), os.O_RDWR)
    kept.replace()
    os.pwrite(second, segment_bytes(3, 4096), 0)
    assert os.fstat(fd).st_size == 0
    os.close(second)
    assert_moved_and_cleared_away(kept, disk, fd)
