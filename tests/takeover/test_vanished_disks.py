"""The daemon dies while the disk of the newest segment is gone: its successor serves what is there."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.filling import status
from support.kept import KeptMount
from support.loop_disks import XFS_MIN_BYTES, DiskFarm, LoopDisk
from support.pools import MIB, segment_bytes
from support.waiting import eventually

from commitlogfs.store.disks import identity

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]


@pytest.fixture(params=["ext4", pytest.param("xfs", marks=pytest.mark.soak)])
def vanished(
    request: pytest.FixtureRequest, disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> Iterator[tuple[KeptMount, LoopDisk, int]]:
    """Four segments on three disks. The first disk, which holds segments 0 and 3, is gone. Segment 3 is open, and
    on record as the newest."""
    size = XFS_MIN_BYTES if request.param == "xfs" else None
    disks = [disk_farm.add(request.param, size), disk_farm.add(), disk_farm.add()]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    kept = keep(disks=directories)
    kept.pool.make_segments(range(4))
    assert kept.pool.disk_of(3) == 0
    fd = os.open(kept.pool.path(3), os.O_RDWR)
    eventually(lambda: recorded(directories[1]) == recorded(directories[2]) == 3 * MIB)
    os.sync()
    disks[0].vanish()
    yield kept, disks[0], fd
    close(fd)


def close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def recorded(directory: Path) -> int | None:
    """The base offset of the newest segment, as a disk knows it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        return identity.read_newest(fd)
    finally:
        os.close(fd)


def assert_not_made_again(kept: KeptMount) -> None:
    """Segment 3 is made on no other disk."""
    with pytest.raises(FileExistsError):
        os.open(kept.pool.path(3), os.O_RDWR | os.O_CREAT, 0o644)


def test_a_takeover_without_the_newest_segment(vanished: tuple[KeptMount, LoopDisk, int]) -> None:
    """The broker that has it mapped continues with the next one, and nobody makes it a second time."""
    kept, disk, fd = vanished
    pool = kept.pool
    kept.replace()
    assert_not_made_again(kept)
    pool.make_segments([4])
    kept.replace()
    pool.path(4).unlink()
    # What may lie on the missing disk stays on record, for the next takeover and the next mount.
    eventually(lambda: recorded(Path(pool.disks[1])) == 3 * MIB)
    kept.replace()
    assert_not_made_again(kept)
    pool.make_segments([4])
    close(fd)
    pool.stop()
    disk.repair()
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(5)]
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    assert not [finding for finding in status(pool)["findings"] if finding["severity"].startswith("refuses")]


def test_a_vanished_disk_comes_back_by_restart(vanished: tuple[KeptMount, LoopDisk, int]) -> None:
    """Once nobody has files of it open, it can be mounted again beside the running mount."""
    kept, disk, fd = vanished
    pool = kept.pool
    kept.replace()
    assert status(pool)["missing_disks"] == [str(pool.disks[0])]
    close(fd)
    disk.repair()
    kept.change("restart")
    assert status(pool)["missing_disks"] == []
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(4)]
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    pool.make_segments([4])
