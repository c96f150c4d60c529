"""The disks themselves, and that a run which was killed is cleared away by the next."""

import os
import shutil
from pathlib import Path

import psutil
import pytest
from support.flaky_disks import CachingDisk, FlakyDisk, flaky_available
from support.loop_disks import MIB, XFS_MIN_BYTES, DiskFarm, LoopDisk, mkfs_available

from commitlogfs.mount.linux import mountinfo

pytestmark = pytest.mark.root


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_a_disk_is_real(disk_farm: DiskFarm, fstype: str):
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    disk = disk_farm.add(fstype)
    entry = mountinfo.find_mount(disk.path)
    assert entry is not None
    assert entry.fstype == fstype
    assert disk.device.startswith("/dev/loop")
    assert shutil.disk_usage(disk.path).total > disk.size_bytes * 0.7
    (disk.path / "file").write_bytes(b"kept")

    disk.remount_ro()
    with pytest.raises(OSError, match="Read-only"):
        (disk.path / "other").touch()
    disk.remount_rw()
    (disk.path / "other").touch()

    disk.unmount()
    assert os.listdir(disk.path) == []
    disk.mount()
    assert (disk.path / "file").read_bytes() == b"kept"
    disk.destroy()
    assert not disk.directory.exists()
    disk_farm.disks.clear()


def test_a_small_disk_can_be_filled_to_the_last_block(disk_farm: DiskFarm):
    disk = disk_farm.add("ext4", 16 * MIB)
    usage = os.statvfs(disk.path)
    # mkfs would have reserved 5 % for root; what is left are ext4's own 2 %, which nobody gets.
    assert usage.f_bfree - usage.f_bavail < 0.03 * usage.f_blocks
    with (disk.path / "filler").open("wb") as file, pytest.raises(OSError, match="No space"):
        os.posix_fallocate(file.fileno(), 0, 17 * MIB)


def test_what_cannot_be_made_is_refused_and_leaves_nothing(workdir: Path):
    with pytest.raises(ValueError, match="refuses less"):
        LoopDisk.create(workdir, "xfs", XFS_MIN_BYTES - 1)
    with pytest.raises(ValueError, match="no btrfs disks"):
        LoopDisk.create(workdir, "btrfs", XFS_MIN_BYTES)
    with pytest.raises(RuntimeError, match=r"mkfs\.ext4"):
        LoopDisk.create(workdir, "ext4", 4096)
    assert os.listdir(workdir) == []


def test_a_busy_disk_names_its_holder(disk_farm: DiskFarm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("support.loop_disks.PATIENCE_S", 0.1)
    disk = disk_farm.add()
    with (disk.path / "file").open("w"), pytest.raises(AssertionError, match=f"pid {os.getpid()}"):
        disk.unmount()


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
def test_a_busy_disk_leaves_no_server_and_no_other_disk(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("support.loop_disks.PATIENCE_S", 0.1)
    farm = DiskFarm(workdir)
    other, busy = farm.add(), farm.add_of(FlakyDisk)
    with (busy.path / "file").open("w"), pytest.raises(AssertionError, match=f"pid {os.getpid()}"):
        farm.close()
    assert not other.directory.exists()
    running = [process.name() for process in psutil.Process().children() if process.status() != "zombie"]
    assert not {"nbdkit", "nbdfuse"} & set(running)
    busy.destroy()


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_a_power_cut_loses_what_was_not_synced(disk_farm: DiskFarm, fstype: str):
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    disk = disk_farm.add_of(CachingDisk, fstype)
    if fstype == "ext4":
        disk.unmount()
        disk.mount("commit=600")  # not in between
    synced = os.open(disk.path / "synced", os.O_RDWR | os.O_CREAT)
    os.pwrite(synced, b"first", 0)
    os.fsync(synced)
    os.pwrite(synced, b"later", 0)
    os.close(synced)
    (disk.path / "not-synced").write_bytes(b"lost")
    disk.lose_power()
    disk.restore_power()
    assert (disk.path / "synced").read_bytes() == b"first"
    assert not (disk.path / "not-synced").exists()
    (disk.path / "after").write_bytes(b"works")
