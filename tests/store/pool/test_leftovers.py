"""Files that failed disks have left: known as empty by evidence, removed only if they are."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import open_disk
from support.loop_disks import DiskFarm, mkfs_available
from support.pools import MIB

from commitlogfs.bench.targets_disks import drop_caches
from commitlogfs.store import layout
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.errors import HoldsDataError
from commitlogfs.store.files import allocate
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.pool import leftovers

NAME = b"%020d" % 0
OURS = Owner(os.geteuid(), os.getegid(), 0o644)


@pytest.fixture(params=["ext4", "xfs"])
def disk(disk_farm: DiskFarm, request: pytest.FixtureRequest) -> Iterator[Disk]:
    if not mkfs_available(request.param):
        pytest.skip(f"no mkfs.{request.param}")
    with open_disk(disk_farm.add(request.param).path) as disk:
        yield disk


@pytest.fixture
def made(disk: Disk) -> Iterator[int]:
    """A descriptor of a segment that was linked, as the daemon makes it."""
    fd = allocate.reserve(disk.dirfd, MIB, OURS)
    allocate.publish(disk.dirfd, fd, NAME)
    yield fd
    os.close(fd)


def ino(fd: int) -> int:
    return os.fstat(fd).st_ino


def path(disk: Disk) -> Path:
    return Path(disk.path) / NAME.decode()


@pytest.mark.root
@pytest.mark.alone
def test_reserved_blocks_are_no_data(disk: Disk, made: int) -> None:
    assert leftovers.holds_nothing(made)
    os.ftruncate(made, MIB)
    assert leftovers.holds_nothing(made)
    os.fsync(made)
    drop_caches()
    assert leftovers.name_holds_nothing(disk.dirfd, NAME, ino(made))
    os.pwrite(made, b"x", MIB - 1)
    assert not leftovers.holds_nothing(made)  # still in memory
    os.fsync(made)
    drop_caches()
    assert not leftovers.name_holds_nothing(disk.dirfd, NAME, ino(made))


@pytest.mark.root
def test_a_page_in_memory_shows_that_somebody_has_written(disk: Disk, made: int) -> None:
    assert leftovers.is_unwritten(made, MIB)
    os.ftruncate(made, 4096)
    assert not leftovers.is_unwritten(made, MIB), "of another size"
    os.ftruncate(made, MIB)
    assert leftovers.is_unwritten(made, MIB)
    with mmap.mmap(made, MIB) as mapped:
        mapped[4096] = 1
        assert not leftovers.is_unwritten(made, MIB)


@pytest.mark.root
def test_a_file_with_a_checksum_is_not_asked_for_data(disk: Disk, made: int) -> None:
    os.ftruncate(made, MIB)
    assert leftovers.lacks_data(disk.dirfd, NAME, ino(made))
    os.setxattr(made, layout.XATTR_CHECKSUM, b"x")
    assert not leftovers.lacks_data(disk.dirfd, NAME, ino(made))
    os.removexattr(made, layout.XATTR_CHECKSUM)
    os.pwrite(made, b"x", MIB - 1)
    assert not leftovers.lacks_data(disk.dirfd, NAME, ino(made))


@pytest.mark.root
def test_the_size_is_known_without_asking_the_disk(disk_farm: DiskFarm) -> None:
    """xfs answers fstat with EIO after a shutdown."""
    if not mkfs_available("xfs"):
        pytest.skip("no mkfs.xfs")
    failing = disk_farm.add("xfs")
    with open_disk(failing.path) as disk:
        fds = [allocate.reserve(disk.dirfd, MIB, OURS) for _ in range(2)]
        os.ftruncate(fds[1], MIB)
        failing.vanish()
        with pytest.raises(OSError, match="Input/output"):
            os.fstat(fds[0])
        assert [leftovers.size_in_memory(fd) for fd in fds] == [0, MIB]
        for fd in fds:
            os.close(fd)


@pytest.mark.root
@pytest.mark.parametrize("size", [0, MIB])
def test_a_leftover_goes_once_nobody_has_it_open(disk: Disk, made: int, size: int) -> None:
    os.ftruncate(made, size)
    again = os.open(path(disk), os.O_RDWR)
    assert leftovers.remove_leftover(disk.dirfd, NAME, ino(made)) is None
    assert path(disk).exists()
    number = ino(made)
    os.close(again)
    os.dup2(os.open(os.devnull, os.O_RDONLY), made)
    assert leftovers.remove_leftover(disk.dirfd, NAME, number) is not None
    assert not path(disk).exists()
    assert leftovers.remove_leftover(disk.dirfd, NAME, number) is not None, "gone already"


@pytest.mark.root
def test_a_file_with_data_or_another_name_or_of_another_is_kept(disk: Disk, made: int) -> None:
    number = ino(made)
    os.link(path(disk), path(disk).with_name("kept"))
    with pytest.raises(HoldsDataError):
        leftovers.remove_leftover(disk.dirfd, NAME, number)
    path(disk).with_name("kept").unlink()
    os.pwrite(made, b"x", 4096)
    with pytest.raises(HoldsDataError):
        leftovers.remove_leftover(disk.dirfd, NAME, number)
    with pytest.raises(OSError, match="another file"):
        leftovers.remove_leftover(disk.dirfd, NAME, number + 1)
    assert path(disk).exists()
