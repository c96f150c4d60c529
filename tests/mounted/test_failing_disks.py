"""A disk that refuses a create is passed over, and the caller notices nothing. Every failure is a real one."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filling import await_disk, status
from support.loop_disks import DiskFarm, DiskWithoutExtents, LoopDisk, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.timings import WITHOUT_CHECKS
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

MakePool = Callable[..., PoolMount]


def member_directory(disk: LoopDisk) -> Path:
    directory = disk.path / "commitlog"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def pool_on(make_pool: MakePool, disks: list[LoopDisk], **options: object) -> PoolMount:
    pool = make_pool(disks=[member_directory(disk) for disk in disks], variables=WITHOUT_CHECKS, **options)
    pool.start()
    return pool


def assert_next_create_lands_elsewhere(pool: PoolMount, index: int, bad: int, good: int) -> None:
    """Segment `index` is due on the disk `bad` and comes to lie on `good`, whole."""
    assert status(pool)["placement"]["next_disk"] == str(pool.disks[bad])
    retries = created_elsewhere(pool)
    pool.make_segments([index])
    assert place(pool, index) == good
    assert not os.path.exists(Path(pool.disks[bad]) / pool.path(index).name)  # False, too, where it fails with EIO
    assert (Path(pool.disks[good]) / pool.path(index).name).read_bytes().startswith(segment_bytes(index, 4096))
    assert created_elsewhere(pool) == retries + 1
    assert status(pool)["disks"][bad]["last_error"]


def place(pool: PoolMount, index: int) -> int:
    """Which disk holds a segment, by the mount's own word: a failing disk cannot be asked."""
    directory = os.getxattr(pool.path(index), "user.commitlogfs.disk")
    return [os.fsencode(disk) for disk in pool.disks].index(directory)


def created_elsewhere(pool: PoolMount) -> int:
    return pool.log_since_start().count("event=create_moved_on")


def test_no_inodes_left(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    bad, good = disk_farm.add(), disk_farm.add()
    bad.unmount()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-N", "16", str(bad.image)], check=True)
    bad.mount()
    pool = pool_on(make_pool, [bad, good])
    with contextlib.suppress(OSError):
        for number in range(1000):
            (bad.path / f"foreign{number}").touch()
    st = os.statvfs(bad.path)
    assert (st.f_favail, st.f_bavail > st.f_blocks // 2) == (0, True)
    assert_next_create_lands_elsewhere(pool, 0, bad=0, good=1)
    (bad.path / "foreign0").unlink()
    pool.path(0).unlink()
    pool.stop()


def test_a_member_that_cannot_reserve_space(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    """It was copied to another filesystem, extended attributes included."""
    former, good, bad = disk_farm.add(), disk_farm.add(), disk_farm.add_of(DiskWithoutExtents)
    pool = pool_on(make_pool, [former, good])
    pool.stop()
    for name in os.listxattr(pool.disks[0]):
        os.setxattr(member_directory(bad), name, os.getxattr(pool.disks[0], name))
    pool.disks = [member_directory(bad), pool.disks[1]]
    pool.start()
    assert_next_create_lands_elsewhere(pool, 0, bad=0, good=1)
    assert "fallocate" in status(pool)["disks"][0]["last_error"]


def test_remounted_read_only_under_the_mount(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    bad, good = disk_farm.add(), disk_farm.add()
    pool = pool_on(make_pool, [bad, good])
    pool.make_segments(range(2))
    bad.turn_read_only()
    assert_next_create_lands_elsewhere(pool, 2, bad=0, good=1)
    assert pool.path(0).read_bytes().startswith(segment_bytes(0, 4096))
    fd = os.open(pool.path(0), os.O_RDWR)  # as the broker opens everything
    try:
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.pwrite(fd, b"x", 0)
        assert refused.value.errno == errno.EROFS
    finally:
        os.close(fd)
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.path(0).unlink()
    assert refused.value.errno == errno.EROFS
    assert len(os.listdir(pool.mountpoint)) == 3


def test_all_disks_read_only_is_erofs(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    disk = disk_farm.add()
    pool = pool_on(make_pool, [disk])
    pool.make_segments([0])
    disk.turn_read_only()
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.make_segments([1])
    assert refused.value.errno == errno.EROFS
    eventually(lambda: pool.cli("status", "--check").status == 1)
    assert [line for line in pool.cli("status").out.splitlines()[:4] if line.startswith("ALERT: ")]


def test_ext4_that_aborted_its_journal(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    bad, good = disk_farm.add(), disk_farm.add()
    bad.unmount()
    bad.mount("errors=remount-ro")
    pool = pool_on(make_pool, [bad, good])
    pool.make_segments(range(2))
    Path(f"/sys/fs/ext4/{Path(bad.device).name}/trigger_fs_error").write_text("test\n")
    assert_next_create_lands_elsewhere(pool, 2, bad=0, good=1)
    assert pool.path(0).read_bytes().startswith(segment_bytes(0, 4096))
    assert pool.path(0).stat().st_size == MIB


@pytest.mark.alone
@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_a_disk_that_vanished(disk_farm: DiskFarm, make_pool: MakePool, fstype: str) -> None:
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    bad, good = disk_farm.add(fstype), disk_farm.add()
    pool = pool_on(make_pool, [bad, good])
    pool.make_segments(range(2))
    os.sync()
    try:
        bad.vanish()
        assert_next_create_lands_elsewhere(pool, 2, bad=0, good=1)
        assert_its_segments_are_still_answered_for(pool)
    finally:
        pool.abandon()
        # Not unmounted by the farm, which would resolve the path of a mountpoint that answers EIO.
        subprocess.run(["umount", str(bad.path)], check=True)


def assert_its_segments_are_still_answered_for(pool: PoolMount) -> None:
    # Attributes of what it held answer still: a stat that fails makes a broker delete the last segment.
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(3)]
    assert pool.path(0).stat().st_size == MIB
    assert pool.path(1).read_bytes().startswith(segment_bytes(1, 4096))
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.path(0).read_bytes()
    assert refused.value.errno == errno.EIO
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.path(0).unlink()
    assert refused.value.errno in (errno.EIO, errno.EROFS)
    assert pool.path(0).exists()


def test_a_disk_that_fills_up_after_it_was_chosen(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    """ENOSPC comes from the reservation itself: the last measurement, a moment old, promised room."""
    bad, good = disk_farm.add(), disk_farm.add()
    pool = pool_on(make_pool, [bad, good])
    foreign = os.open(bad.path / "foreign", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for attempt in range(20):  # where the machine is so slow that the fill is measured in time, try again
            pool.make_segments([0, 1])  # measures all disks
            st = os.fstatvfs(foreign)
            os.posix_fallocate(foreign, 0, st.f_bavail * st.f_frsize - MIB // 2)
            pool.make_segments([2])
            assert place(pool, 2) == 1, f"attempt {attempt}"
            if "No space left" in pool.log_since_start():
                break
            os.ftruncate(foreign, 0)
            for index in range(3):
                pool.path(index).unlink()
            await_disk(pool, 0, lambda disk: disk["eligible"])
    finally:
        os.close(foreign)
    (moved_on,) = [line for line in pool.log_since_start().splitlines() if "event=create_moved_on" in line]
    assert "No space left" in moved_on
    assert str(pool.disks[0]) in moved_on
