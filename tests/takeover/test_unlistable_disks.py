"""A disk opens, but its names or its files' attributes cannot be read: it is missing, and the others are served."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.timings import WITHOUT_CHECKS
from support.waiting import eventually

from commitlogfs.store import layout
from commitlogfs.store.disks import identity

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

COUNT = 40
"""So many that no filesystem keeps the names in the directory's inode."""
NEWEST = COUNT - 1
LARGE = 512 * MIB
"""Blocks of 4 KiB even on ext4: no two of them in one page of the image."""


@dataclass
class Unreadable:
    """Three disks. The first one, which holds every third segment and the newest, can be made unreadable."""

    kept: KeptMount
    disk: FlakyDisk

    @property
    def pool(self) -> PoolMount:
        return self.kept.pool

    @property
    def directory(self) -> Path:
        return Path(self.pool.disks[0])

    def fail(self, what: str) -> None:
        """Unreadable part: the "names" in the directory, or only the "attributes" of the files."""
        eventually(lambda: self._fails(what))  # the daemon may bring some back into memory

    def _fails(self, what: str) -> bool:
        os.sync()
        self.disk.heal()
        self.disk.drop_caches()
        os.getxattr(self.directory, layout.XATTR_IDENTITY)  # in memory again, as the directory's inode is
        if what == "attributes":
            os.listdir(self.directory)
        self.disk.fail_reads()
        try:
            for entry in self.directory.iterdir():
                entry.stat()
        except OSError as error:
            return error.errno == errno.EIO
        return False

    def names(self, *disks: int) -> list[str]:
        return [self.pool.path(index).name for index in range(COUNT) if index % 3 in disks]


@pytest.fixture(params=["ext4", pytest.param("xfs", marks=pytest.mark.soak)])
def unreadable(
    request: pytest.FixtureRequest, disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> Iterator[Unreadable]:
    lack = flaky_available() or ("" if mkfs_available(request.param) else f"no mkfs.{request.param}")
    if lack:
        pytest.skip(lack)
    flaky = disk_farm.add_of(FlakyDisk, request.param, LARGE)
    flaky.unmount()
    # xfs would shut down, as a changed access time makes it read the inode, and ext4 reads attributes ahead.
    flaky.mount("noatime", *(["inode_readahead_blks=0"] if request.param == "ext4" else []))
    disks = [flaky, disk_farm.add(), disk_farm.add()]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    kept = keep(disks=directories, variables=WITHOUT_CHECKS)
    kept.pool.make_segments(range(COUNT))
    assert kept.pool.disk_of(NEWEST) == 0
    eventually(lambda: recorded(directories[1]) == recorded(directories[2]) == NEWEST * MIB)
    kept.pool.stop()
    kept.start()  # no file of it is in use, which would keep its attributes in memory
    yield Unreadable(kept, flaky)
    flaky.heal()


def recorded(directory: Path) -> int | None:
    """The base offset of the newest segment, as a disk knows it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        return identity.read_newest(fd)
    finally:
        os.close(fd)


def reasons(pool: PoolMount) -> str:
    return "\n".join(line for line in pool.log_since_start().splitlines() if "event=finding" in line)


def assert_not_made_again(pool: PoolMount, index: int) -> None:
    with pytest.raises(FileExistsError):
        os.open(pool.path(index), os.O_RDWR | os.O_CREAT, 0o644)


def assert_whole(pool: PoolMount, count: int) -> None:
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(count)]
    for index in range(count):
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    assert not [finding for finding in status(pool)["findings"] if finding["severity"].startswith("refuses")]


@pytest.mark.parametrize("what", ["names", "attributes"])
def test_killed_beside_an_unreadable_disk(unreadable: Unreadable, what: str) -> None:
    """The other disks are served, and no segment is made a second time. When the disk answers again, `restart`
    brings it back, and nothing was lost."""
    kept, pool = unreadable.kept, unreadable.pool
    unreadable.fail(what)
    kept.replace()
    assert sorted(os.listdir(pool.mountpoint)) == unreadable.names(1, 2)
    assert pool.path(1).read_bytes()[:4096] == segment_bytes(1, 4096)
    assert status(pool)["missing_disks"] == [str(unreadable.directory)]
    assert f"{unreadable.directory}: cannot be read completely (Input/output error)" in reasons(pool)
    for index in (0, NEWEST):
        assert_not_made_again(pool, index)
    pool.make_segments([COUNT])
    kept.replace()
    assert_not_made_again(pool, NEWEST)

    unreadable.disk.heal()
    kept.change("restart")
    assert_whole(pool, COUNT + 1)
    assert status(pool)["missing_disks"] == []


def test_restart_is_refused_beside_an_unreadable_disk(unreadable: Unreadable) -> None:
    """The running daemon continues, and serves all that the kernel or the daemon still can."""
    kept, pool = unreadable.kept, unreadable.pool
    unreadable.fail("names")
    ran = pool.cli("restart", pool.name)
    assert ran.status == 4
    assert f"{unreadable.directory}: cannot be read completely (Input/output error)" in ran.err
    before = kept.daemon
    assert kept.newest_daemon() == before
    assert pool.path(1).read_bytes()[:4096] == segment_bytes(1, 4096)
    unreadable.disk.heal()
    kept.change("restart")
    assert_whole(pool, COUNT)


def test_a_fresh_mount_beside_an_unreadable_disk(unreadable: Unreadable) -> None:
    """As with a missing disk: refused; with `on_missing = "degraded"` only while the newest segment lies there."""
    kept, pool = unreadable.kept, unreadable.pool
    pool.stop()
    unreadable.fail("names")
    ran = pool.cli("mount", "--daemon", pool.config)
    assert ran.status == 4
    assert f"{unreadable.directory}: cannot be read completely (Input/output error)" in ran.err
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    ran = pool.cli("mount", "--daemon", pool.config)
    assert ran.status == 4
    assert "the newest segment is on a missing disk" in ran.err

    unreadable.disk.heal()
    kept.start()
    pool.make_segments([COUNT])
    eventually(lambda: recorded(Path(pool.disks[2])) == COUNT * MIB)
    pool.stop()
    unreadable.fail("names")
    kept.start()
    assert sorted(os.listdir(pool.mountpoint)) == sorted([*unreadable.names(1, 2), pool.path(COUNT).name])
    assert_not_made_again(pool, NEWEST)
    unreadable.disk.heal()
    kept.change("restart")
    assert_whole(pool, COUNT + 1)


def test_a_file_open_on_a_disk_that_comes_back(unreadable: Unreadable) -> None:
    """A broker that has the newest segment mapped keeps it while its disk is missing, and after that."""
    kept, pool = unreadable.kept, unreadable.pool
    fd = os.open(pool.path(NEWEST), os.O_RDWR)
    try:
        unreadable.fail("names")
        kept.replace()
        unreadable.disk.heal()
        kept.change("restart")
        os.pwrite(fd, b"goes", 0)
        os.fsync(fd)
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
    assert pool.path(NEWEST).read_bytes()[:4] == b"goes"
