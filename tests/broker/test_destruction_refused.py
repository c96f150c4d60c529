"""The guards against a broker destroying its own data that show without a broker.

A broker takes an error for an empty directory and a short listing for the whole log; so the mount is refused,
or what it shows is complete.
"""

import fcntl
import os
import signal
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, segment_name
from support.waiting import PATIENCE_S

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

SMALL = 4096
MANY = 2500


def directories_of(farm: DiskFarm) -> list[Path]:
    return [disk.path / "commitlog" for disk in farm.disks]


def plant(disk: Path, index: int, segment_size: int, size: int | None = None) -> Path:
    """A segment on a bare disk, as a native broker would have left it."""
    path = disk / segment_name(index, segment_size)
    with path.open("wb") as file:
        file.truncate(segment_size if size is None else size)
    return path


def test_all_disks_unmounted_at_boot_refuses_the_mount(disk_farm, make_pool):
    for fstype in ("ext4", "ext4"):
        disk_farm.add(fstype)
    pool = make_pool(disks=directories_of(disk_farm))
    pool.start()
    pool.make_segments(range(4))
    pool.stop()
    for disk in disk_farm.disks:
        disk.unmount()
    absent = pool.cli("mount", pool.config)
    assert absent.status == 4
    # An installer may have made the directories again on the root disk.
    for directory in directories_of(disk_farm):
        directory.mkdir()
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert "mount the disks" in refused.err
    assert not os.path.ismount(pool.mountpoint)
    for directory in directories_of(disk_farm):
        assert os.listdir(directory) == []
        assert os.listxattr(directory) == []
        directory.rmdir()
    for disk in disk_farm.disks:
        disk.mount()
    pool.start()
    assert len(os.listdir(pool.mountpoint)) == 4


def test_listing_never_misses_a_stable_name(make_pool):
    pool = make_pool(3, segment_size=SMALL)
    for index in range(MANY):
        plant(pool.disks[index % 3], index, SMALL)
    pool.start()
    stable = {segment_name(index, SMALL) for index in range(200, MANY)}
    stop = threading.Event()

    def churn() -> int:
        """A broker's life: the oldest go, new ones come."""
        newest, oldest = MANY, 0
        while not stop.is_set():
            pool.make_segments([newest], fill=False)
            newest += 1
            if oldest < 200:
                os.unlink(pool.path(oldest))
                oldest += 1
        return newest - MANY

    def look() -> int:
        for count in range(15):
            with os.scandir(pool.mountpoint) as entries:
                seen = [entry.name for entry in entries]
            assert stable <= set(seen), f"look {count}: missing {sorted(stable - set(seen))[:3]}"
            assert len(seen) == len(set(seen)), "a name was listed twice"
        return len(seen)

    with ThreadPoolExecutor(4) as executor:
        churning = executor.submit(churn)
        try:
            looks = [executor.submit(look) for _ in range(2)]
            assert all(look.result() >= len(stable) for look in looks)
        finally:
            stop.set()
        assert churning.result() > 20


@pytest.mark.timing
def test_listed_names_answer_on_a_hung_disk(disk_farm, make_pool):
    """Frozen under twenty writers, more than the threads a disk has: names and sizes come from memory."""
    for fstype in ("ext4", "xfs"):
        disk_farm.add(fstype)
    pool = make_pool(disks=directories_of(disk_farm))
    pool.start()
    pool.make_segments(range(40))
    frozen = disk_farm.disks[0]
    writers = []
    subprocess.run(["fsfreeze", "-f", str(frozen.path)], check=True)
    try:
        held = [pool.path(index) for index in range(40) if pool.disk_of(index) == 0]
        writers = [
            subprocess.Popen(["dd", "if=/dev/zero", f"of={path}", "bs=4k", "count=1", "conv=notrunc,nocreat"])
            for path in held
        ]
        time.sleep(1.5)  # longer than the kernel keeps attributes, so that every answer below is the daemon's
        assert all(writer.poll() is None for writer in writers), "the disk is not hung"
        started = time.monotonic()
        sizes = {name: os.stat(pool.mountpoint / name).st_size for name in os.listdir(pool.mountpoint)}
        assert len(sizes) == 40
        assert set(sizes.values()) == {MIB}
        with ThreadPoolExecutor(8) as executor:
            paths = [pool.path(index) for index in range(40)]
            assert [st.st_size for st in executor.map(os.stat, paths)] == [MIB] * 40
        assert time.monotonic() - started < 10
        # A new segment goes to the disk that answers, before the broker's 5 s are over.
        started = time.monotonic()
        pool.make_segments([40], fill=False)
        assert time.monotonic() - started < 5
        assert pool.disk_of(40) == 1
    finally:
        subprocess.run(["fsfreeze", "-u", str(frozen.path)], check=True)
        assert [writer.wait(PATIENCE_S) for writer in writers] == [0] * len(writers)


def test_listing_is_complete_on_a_failed_disk(disk_farm, make_pool):
    """A disk that has shut itself down: either all its names with their sizes, or an error; never a few."""
    for fstype in ("ext4", "xfs"):
        disk_farm.add(fstype)
    pool = make_pool(disks=directories_of(disk_farm))
    pool.start()
    pool.make_segments(range(8))
    expected = sorted(os.listdir(pool.mountpoint))
    shut_down(disk_farm.disks[1].path)
    time.sleep(1.2)  # until the kernel's own attributes have expired
    assert sorted(os.listdir(pool.mountpoint)) == expected
    assert {os.stat(pool.mountpoint / name).st_size for name in expected} == {MIB}
    pool.make_segments(range(8, 12), fill=False)
    survivor = directories_of(disk_farm)[0]
    assert all((survivor / segment_name(index, MIB)).exists() for index in range(8, 12))
    pool.stop()
    # At the next start a disk that cannot be read completely refuses the mount.
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert str(disk_farm.disks[1].path) in refused.err


def test_segment_to_append_to_on_a_read_only_disk_is_not_opened_for_writing(disk_farm, make_pool):
    """A broker that mapped it would acknowledge what can never be written. Sealed ones it may open."""
    for fstype in ("ext4", "xfs"):
        disk_farm.add(fstype)
    pool = make_pool(disks=directories_of(disk_farm))
    pool.start()
    pool.make_segments(range(4))
    pool.make_segments([4, 5], fill=False)
    pool.stop()
    for disk in disk_farm.disks:
        disk.remount_ro()
    pool.start()
    for index in range(6):
        os.close(os.open(pool.path(index), os.O_RDONLY))
    for index in (0, 1, 2):
        os.close(os.open(pool.path(index), os.O_RDWR | os.O_CREAT))
    for index in (3, 4, 5):
        with pytest.raises(OSError, match="Read-only file system"):
            os.open(pool.path(index), os.O_RDWR | os.O_CREAT)
    assert len(os.listdir(pool.mountpoint)) == 6
    pool.stop()
    for disk in disk_farm.disks:
        disk.remount_rw()
    pool.start()
    for index in range(6):
        os.close(os.open(pool.path(index), os.O_RDWR | os.O_CREAT))


def shut_down(path: Path) -> None:
    """XFS_IOC_GOINGDOWN without flushing the log."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 2))
    finally:
        os.close(fd)


def test_duplicate_segment_refuses_the_mount(make_pool):
    pool = make_pool(3)
    for index in range(6):
        plant(pool.disks[index % 3], index, MIB).write_bytes(b"message" + bytes(MIB - 7))
    twin = plant(pool.disks[2], 3, MIB)
    twin.write_bytes(b"another" + bytes(MIB - 7))
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert twin.name in refused.err
    assert str(pool.disks[0]) in refused.err
    assert str(pool.disks[2]) in refused.err
    assert twin.exists()


def test_short_segment_refuses_the_mount(make_pool):
    pool = make_pool(3)
    for index in range(6):
        plant(pool.disks[index % 3], index, MIB)
    short = plant(pool.disks[1], 1, MIB, size=MIB // 2)
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert str(short) in refused.err
    assert short.stat().st_size == MIB // 2


def test_missing_disk_refuses_the_mount(disk_farm, make_pool):
    for fstype in ("ext4", "ext4"):
        disk_farm.add(fstype)
    pool = make_pool(disks=directories_of(disk_farm))
    pool.start()
    pool.make_segments(range(4))
    pool.stop()
    disk_farm.disks[1].unmount()
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert str(directories_of(disk_farm)[1]) in refused.err
    assert os.listdir(disk_farm.disks[1].path) == []


def test_gap_refuses_the_mount_and_degraded_shouts(make_pool):
    pool = make_pool(3)
    for index in (0, 1, 2, 5, 6):
        plant(pool.disks[index % 3], index, MIB)
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert segment_name(3, MIB) in refused.err
    assert segment_name(4, MIB) in refused.err
    pool.settings["on_missing"] = '"degraded"'
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == [segment_name(index, MIB) for index in (0, 1, 2, 5, 6)]
    gap = [[3 * MIB, 5 * MIB]]
    assert pool.status()["segments"]["gaps"] == gap
    assert [finding["code"] for finding in pool.status()["findings"] if finding["code"] == "gap"] == ["gap"]
    words = pool.cli("status", pool.name).out
    assert "1 GAP" in words
    metrics = pool.metrics()
    assert f'commitlogfs_log_gaps{{pool="{pool.name}"}} 1.0' in metrics
    pool.require_logged("code=gap")
    # A hole torn into the running log is shouted about as well.
    os.unlink(pool.path(1))
    assert pool.status()["segments"]["gaps"] == [[MIB, 2 * MIB], *gap]
    assert "2 GAPS" in pool.cli("status", pool.name).out
    with pytest.raises(OSError, match="Input/output error"):
        read_log(pool, 3 * MIB)


def read_log(pool: PoolMount, offset: int) -> bytes:
    fd = os.open(pool.mountpoint / ".commitlogfs" / "log", os.O_RDONLY)
    try:
        return os.pread(fd, 16, offset)
    finally:
        os.close(fd)


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "still-open"])
def test_freed_space_shows_at_once(disk_farm, make_pool, fstype, is_open):
    """The broker measures right after its deletion: space that shows late makes it delete ten more."""
    disk_farm.add(fstype)
    size = 16 * MIB
    pool = make_pool(disks=directories_of(disk_farm), segment_size=size)
    pool.start()
    pool.make_segments(range(3))
    reader = os.open(pool.path(0), os.O_RDWR) if is_open else -1
    try:
        before = os.statvfs(pool.mountpoint)
        os.unlink(pool.path(0))
        after = os.statvfs(pool.mountpoint)
        freed = (after.f_bfree - before.f_bfree) * before.f_frsize
        # Scaled to the ratio of one disk in multiples of 100 blocks: exact to a few blocks.
        assert abs(freed - size) < 100 * before.f_frsize, freed
        assert after.f_bavail - before.f_bavail == after.f_bfree - before.f_bfree
        time.sleep(1.1)  # measured anew, it stays
        again = os.statvfs(pool.mountpoint)
        assert abs(again.f_bfree - after.f_bfree) * before.f_frsize < 100 * before.f_frsize
    finally:
        if is_open:
            os.close(reader)
    if is_open:
        # The descriptor is given up in the background; at no moment does the space seem taken again.
        for _ in range(20):
            now = os.statvfs(pool.mountpoint)
            assert abs(now.f_bfree - after.f_bfree) * before.f_frsize < 100 * before.f_frsize
            time.sleep(0.05)


def test_second_daemon_on_the_same_disks_is_refused(make_pool, workdir):
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(3))
    other = PoolMount(workdir / "other", pool.disks, name="second")
    other.workdir.mkdir()
    other.write_config()
    refused = other.cli("mount", other.config)
    assert refused.status == 4
    assert "in use by another commitlogfs" in refused.err
    assert not os.path.ismount(other.mountpoint)
    again = other.cli("adopt", other.config)
    assert again.status == 4
    assert pool.cli("ready", pool.config).status == 0


def test_killed_daemon_leaves_disks_that_the_next_one_may_lock(make_pool):
    """A dead mount stays dead until the next mount clears it; ready says so all the while."""
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(3))
    assert pool.daemon is not None
    pool.daemon.send_signal(signal.SIGKILL)
    pool.daemon.wait()
    pool.daemon = None
    assert pool.cli("ready", pool.config).status == 3
    assert pool.cli("ready", pool.mountpoint).status == 3
    pool.start()
    assert pool.cli("ready", pool.config).status == 0
    assert len(os.listdir(pool.mountpoint)) == 3
