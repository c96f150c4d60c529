"""A disk begins to refuse writes between a segment's creation and its ftruncate: the segment is made on another.

The empty file that the failed disk keeps is a leftover: not listed, no duplicate, removed when the disk is well.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.freezing import frozen
from support.loop_disks import DiskFarm, LoopDisk, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.refusals import degrade
from support.timings import WITHOUT_WRITES
from support.waiting import PATIENCE_S, eventually

from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

MakePool = Callable[..., PoolMount]

FAILURES: dict[str, Callable[[LoopDisk], None]] = {"read-only": LoopDisk.turn_read_only, "gone": LoopDisk.vanish}
CASES = [("ext4", "read-only"), ("ext4", "gone"), ("xfs", "gone")]


@pytest.fixture(params=["auto", "off"], ids=["passed", "plain"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pool_on(
    disk_farm: DiskFarm, make_pool: MakePool, fstype: str = "ext4", **options: object
) -> tuple[PoolMount, list[LoopDisk]]:
    """Three disks, of which the first, where segment 3 is due, is of type `fstype`; segments 0 to 2 exist."""
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    disks = [disk_farm.add(fstype), disk_farm.add(), disk_farm.add()]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories, retention={"interval": '"1s"'}, **options)
    pool.start()
    pool.make_segments(range(3))
    return pool, disks


def created(pool: PoolMount, index: int) -> int:
    return os.open(pool.path(index), os.O_RDWR | os.O_CREAT, 0o644)


def place(pool: PoolMount, index: int) -> int:
    """Position of the disk that holds a segment, as the mount says: a failing disk cannot be asked."""
    directory = os.getxattr(pool.path(index), "user.commitlogfs.disk")
    return [os.fsencode(disk) for disk in pool.disks].index(directory)


def bare(pool: PoolMount, disk: int, index: int) -> Path:
    return Path(pool.disks[disk]) / pool.path(index).name


def listed(pool: PoolMount) -> list[int]:
    return sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))


def assert_refused(error: pytest.ExceptionInfo[OSError]) -> None:
    assert error.value.errno in (errno.EROFS, errno.EIO), error.value


@pytest.mark.parametrize(("fstype", "failure"), CASES)
def test_refused_ftruncate_moves_the_segment(
    disk_farm: DiskFarm, make_pool: MakePool, mode: str, fstype: str, failure: str
) -> None:
    pool, disks = pool_on(disk_farm, make_pool, fstype, settings={"passthrough": f'"{mode}"'})
    fd, ahead = created(pool, 3), created(pool, 4)
    assert (place(pool, 3), place(pool, 4)) == (0, 1)
    os.sync()
    os.ftruncate(ahead, MIB)
    os.close(ahead)
    FAILURES[failure](disks[0])
    try:
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.ftruncate(fd, MIB)
        assert_refused(refused)
        pool.make_segments([3])  # while the first descriptor is still open
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.ftruncate(fd, MIB)
        assert refused.value.errno == errno.ESTALE
    finally:
        os.close(fd)
    assert place(pool, 3) != 0
    assert listed(pool) == list(range(5))
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    pool.make_segments([5, 6])
    assert {place(pool, index) for index in (5, 6)} <= {1, 2}
    assert status(pool)["disks"][0]["last_error"]
    repair_and_mount_again(pool, disks[0])
    assert listed(pool) == list(range(7))
    eventually(lambda: not bare(pool, 0, 3).exists())
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    assert place(pool, 3) != 0


def repair_and_mount_again(pool: PoolMount, disk: LoopDisk) -> None:
    """The daemon ends, whatever its disks do; the disk is well again before the next one starts."""
    pool.kill()
    pool.abandon()
    disk.repair()
    pool.start()


@pytest.mark.parametrize(
    ("fstype", "failure", "is_held"), [(*case, False) for case in CASES] + [("ext4", "read-only", True)]
)
def test_refused_open_is_answered_by_another_disk(
    disk_farm: DiskFarm, make_pool: MakePool, fstype: str, failure: str, is_held: bool
) -> None:
    """As a writer that died between open and ftruncate leaves it, or one that is slow: one open is enough."""
    pool, disks = pool_on(disk_farm, make_pool, fstype)
    fd = created(pool, 3)
    os.sync()
    if not is_held:
        os.close(fd)
        eventually(lambda: not pool.has_open(bare(pool, 0, 3)))
    FAILURES[failure](disks[0])
    try:
        pool.make_segments([3])
    finally:
        if is_held:
            os.close(fd)
    assert place(pool, 3) != 0
    assert listed(pool) == list(range(4))
    repair_and_mount_again(pool, disks[0])
    assert listed(pool) == list(range(4))
    eventually(lambda: not bare(pool, 0, 3).exists())


def test_disk_that_hangs_loses_the_segment_and_its_leftover(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    """The late ftruncate is carried out after the thaw: a file of full size without data, which is removed."""
    pool, disks = pool_on(disk_farm, make_pool)
    fd = created(pool, 3)
    with frozen(disks[0], 2 * PATIENCE_S) as thaw:
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.ftruncate(fd, MIB)
        assert refused.value.errno == errno.EIO
        os.close(fd)
        pool.make_segments([3])
        assert place(pool, 3) != 0
        assert bare(pool, 0, 3).exists()
        thaw()
    eventually(lambda: not bare(pool, 0, 3).exists())
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    assert listed(pool) == list(range(4))


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
def test_size_that_shows_before_the_disk_has_it_holds_nobody(
    disk_farm: DiskFarm, make_pool: MakePool, mode: str
) -> None:
    """ext4 changes the size in memory and waits for its journal then, which hangs with the sync of the name."""
    silent = disk_farm.add_of(FlakyDisk)
    directories = [disk.path / "commitlog" for disk in (silent, disk_farm.add(), disk_farm.add())]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories, settings={"passthrough": f'"{mode}"'}, variables=WITHOUT_WRITES)
    pool.start()
    pool.make_segments(range(3))
    for directory in directories:  # what the daemon writes after the last create
        eventually(lambda directory=directory: int(os.getxattr(directory, layout.XATTR_NEWEST)) == 2 * MIB)
    os.sync()
    with silent.hanging():
        fd = created(pool, 3)
        try:
            assert place(pool, 3) == 0
            eventually(silent.holds_a_commit)  # for the sync of its name
            with pytest.raises(OSError) as refused:  # noqa: PT011
                os.ftruncate(fd, MIB)
        finally:
            os.close(fd)
        assert refused.value.errno == errno.EIO
        pool.make_segments([3])
        assert place(pool, 3) != 0
        assert listed(pool) == list(range(4))
    eventually(lambda: not bare(pool, 0, 3).exists())
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)


def test_without_another_disk_the_segment_stays(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    disk = disk_farm.add()
    directory = disk.path / "commitlog"
    directory.mkdir(mode=0o700)
    pool = make_pool(disks=[directory])
    pool.start()
    fd = created(pool, 0)
    os.sync()
    disk.turn_read_only()
    for _ in range(2):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.ftruncate(fd, MIB)
        assert refused.value.errno == errno.EROFS
    os.close(fd)
    repair_and_mount_again(pool, disk)
    pool.make_segments([0])
    assert listed(pool) == [0]


def given_up_and_stopped(pool: PoolMount, disk: LoopDisk, end: int = 6) -> None:
    """Segment 3 lies on another disk than the first, which keeps its empty file; nothing is mounted."""
    fd = created(pool, 3)
    os.sync()
    disk.turn_read_only()
    with pytest.raises(OSError):  # noqa: PT011
        os.ftruncate(fd, MIB)
    os.close(fd)
    pool.make_segments(range(3, end))
    pool.kill()
    pool.abandon()
    disk.repair()
    assert bare(pool, 0, 3).stat().st_size == 0


def test_leftover_of_a_segment_removed_meanwhile_does_not_return(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool, disks = pool_on(disk_farm, make_pool)
    given_up_and_stopped(pool, disks[0])
    for index in range(4):  # as retention does, while the failed disk is away
        for disk in range(3):
            if (disk, index) != (0, 3):
                bare(pool, disk, index).unlink(missing_ok=True)
    pool.start()
    assert listed(pool) == [4, 5]
    eventually(lambda: not bare(pool, 0, 3).exists())
    assert status(pool)["segments"]["gaps"] == []
    assert status(pool)["segments"]["unsized"] == 0


def late_size(pool: PoolMount) -> None:
    """The disk gives the leftover its size after all, when no daemon is there."""
    os.truncate(bare(pool, 0, 3), MIB)
    assert bare(pool, 0, 3).stat().st_blocks * 512 >= MIB


def test_leftover_that_has_got_its_size_is_removed(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool, disks = pool_on(disk_farm, make_pool)
    given_up_and_stopped(pool, disks[0])
    late_size(pool)
    pool.start()
    assert listed(pool) == list(range(6))
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    eventually(lambda: not bare(pool, 0, 3).exists())


def test_leftover_that_has_got_its_size_takes_the_place_of_no_missing_segment(
    disk_farm: DiskFarm, make_pool: MakePool
) -> None:
    """Readers would get zeros, and the gap would not belong to the missing disk."""
    pool, disks = pool_on(disk_farm, make_pool)
    given_up_and_stopped(pool, disks[0], 7)
    late_size(pool)
    missing = next(Path(disk) for disk in pool.disks[1:] if (Path(disk) / pool.path(3).name).exists())
    held = [index for index in range(7) if (missing / pool.path(index).name).exists()]
    assert held[-1] < 6, "the newest segment would refuse the mount"
    aside = missing.with_name("aside")
    missing.rename(aside)
    missing.mkdir()
    degrade(pool)
    pool.start()
    assert listed(pool) == [index for index in range(7) if index not in held]
    assert bare(pool, 0, 3).exists()
    pool.stop()
    missing.rmdir()
    aside.rename(missing)
    pool.start()
    assert pool.path(3).read_bytes()[:4096] == segment_bytes(3, 4096)
    eventually(lambda: not bare(pool, 0, 3).exists())


def test_leftover_that_holds_data_refuses_the_mount(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool, disks = pool_on(disk_farm, make_pool)
    given_up_and_stopped(pool, disks[0])
    bare(pool, 0, 3).write_bytes(b"x")
    ran = pool.cli("mount", pool.config)
    assert ran.status != 0
    assert "the same segment is on" in ran.err
    assert bare(pool, 0, 3).read_bytes() == b"x"


def test_leftover_on_a_cordoned_disk_stays(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool, disks = pool_on(disk_farm, make_pool)
    given_up_and_stopped(pool, disks[0])
    pool.disk_settings[0] = {"readonly": "true"}
    pool.start()
    pool.make_segments([6])
    assert bare(pool, 0, 3).exists()
    assert "empty-leftover" in [finding["code"] for finding in status(pool)["findings"]]
