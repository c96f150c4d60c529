"""A disk that turns read-only: a broker that starts again opens its segments, whichever daemon serves them."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

HEAD = 4096


@pytest.fixture
def disk(disk_farm: DiskFarm) -> LoopDisk:
    return disk_farm.add()


@pytest.fixture
def kept(disk: LoopDisk, disk_farm: DiskFarm, keep: Callable[..., KeptMount], mode: str) -> KeptMount:
    """Segments 0 and 2 are sealed on the disk, 1 and 3 lie on another one."""
    other = disk_farm.add()
    directories = [each.path / "commitlog" for each in (disk, other)]
    for directory in directories:
        directory.mkdir()
    kept = keep(disks=directories, settings={"passthrough": f'"{mode}"'})
    kept.pool.make_segments(range(4))
    assert [kept.pool.disk_of(index) for index in range(4)] == [0, 1, 0, 1]
    return kept


def open_all(kept: KeptMount) -> list[int]:
    """As a broker does at its start."""
    return [os.open(kept.pool.path(index), os.O_RDWR) for index in range(4)]


def opens(path: Path) -> bool:
    """For reading and writing. A daemon hears of the close before a moment later."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def let_go_of(fds: list[int]) -> None:
    """Recent writes may not have reached a disk that has become read-only: the first close reports an error."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.mark.parametrize("takeover", ["before", "between", "after", "never"])
def test_a_broker_starts_again(kept: KeptMount, disk: LoopDisk, takeover: str) -> None:
    """It had all its segments open when the daemon died."""
    first = open_all(kept)
    if takeover == "before":
        kept.replace()
    disk.turn_read_only()
    if takeover == "between":
        kept.replace()
    let_go_of(first)
    if takeover == "after":
        kept.replace()
    eventually(lambda: opens(kept.pool.path(0)) and opens(kept.pool.path(2)))
    again = open_all(kept)
    assert [os.pread(fd, HEAD, 0) for fd in again] == [segment_bytes(index, HEAD) for index in range(4)]
    others = open_all(kept)
    kept.replace()
    assert [os.pread(fd, HEAD, 0) for fd in (*again, *others)] == 2 * [
        segment_bytes(index, HEAD) for index in range(4)
    ]
    let_go_of([*others, *again])
    close_all(open_all(kept))


def test_who_has_it_open_continues(kept: KeptMount, disk: LoopDisk) -> None:
    """The kernel knows of one way only for a file in use, so nobody else writes there; readers come and go."""
    first = os.open(kept.pool.path(0), os.O_RDWR)
    kept.replace()
    disk.turn_read_only()
    if kept.pool.passes_through:
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.open(kept.pool.path(0), os.O_RDWR)
        assert refused.value.errno == errno.EIO
    reader = os.open(kept.pool.path(0), os.O_RDONLY)
    assert os.pread(reader, HEAD, 0) == segment_bytes(0, HEAD)
    assert os.pread(first, HEAD, MIB - HEAD) == bytes(HEAD)
    let_go_of([reader, first])
    eventually(lambda: opens(kept.pool.path(0)))
