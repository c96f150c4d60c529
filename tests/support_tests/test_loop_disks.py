"""The disks themselves, and that a run which was killed is cleared away by the next."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import sweep
from support.loop_disks import MIB, XFS_MIN_BYTES, DiskFarm, LoopDisk, mkfs_available
from support.tiny_fuse import tiny_fuse

from commitlogfs.mount import guard, mountinfo

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
    assert not disk.folder.exists()
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
    monkeypatch.setattr("support.loop_disks.BUSY_TIMEOUT_S", 0.1)
    disk = disk_farm.add()
    with (disk.path / "file").open("w"), pytest.raises(RuntimeError, match=f"pid {os.getpid()}"):
        disk.unmount()


ABORTED_RUN = """
import os, subprocess, sys
from pathlib import Path
from support import sweep
from support.loop_disks import LoopDisk, MIB
from commitlogfs.mount import guard
base = sweep.create_base()
os.environ[sweep.RUN_VARIABLE] = str(base)
LoopDisk.create(base / "some test", "ext4", 16 * MIB)
(base / "raw").write_bytes(bytes(MIB))
subprocess.run(["losetup", "-f", base / "raw"], check=True)
guard.raise_guard(base / "guarded/commitlog")
sleeper = subprocess.Popen(["sleep", "1000"], cwd=base / "some test/disk/disk", stdout=subprocess.DEVNULL)
print(base, sleeper.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def _abort_a_run(parent: Path) -> tuple[Path, int]:
    environment = {
        **os.environ,
        "TMPDIR": str(parent),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "-c", ABORTED_RUN], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -9
    base, pid = done.stdout.split(" ")
    return Path(base), int(pid)


def test_an_aborted_run_is_swept(workdir: Path, monkeypatch: pytest.MonkeyPatch, disk_farm: DiskFarm):
    base, sleeper = _abort_a_run(workdir)
    assert base.parent == workdir
    assert Path(f"/proc/{sleeper}").exists()
    monkeypatch.setenv("TMPDIR", str(workdir))

    found = "\n".join(sweep.sweep_stale())

    assert f"process {sleeper} (sleep)" in found
    assert "(ext4)" in found
    assert "/dev/loop" in found
    assert not base.exists()
    assert mountinfo.mounts_below(workdir) == ()
    backing = [file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert not [line for line in backing if str(workdir) in line]
    assert sweep.sweep_stale() == []


def test_a_living_run_and_doubtful_ones_are_left_alone(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(workdir))
    living = sweep.create_base()
    owner = json.loads((living / "owner.json").read_text())
    doubtful = {
        "nothing": None,
        "torn": "{",
        "elsewhere": json.dumps({**owner, "pid_namespace": "pid:[1]", "start_ticks": 1}),
    }
    for name, text in doubtful.items():
        (workdir / (sweep.PREFIX + name)).mkdir()
        if text is not None:
            (workdir / (sweep.PREFIX + name) / "owner.json").write_text(text)
    (workdir / (sweep.PREFIX + "link")).symlink_to("/")
    before = sorted(os.listdir(workdir))
    assert sweep.sweep_stale() == []
    assert sorted(os.listdir(workdir)) == before

    # The same pid, but another process: its number was used again.
    (living / "owner.json").write_text(json.dumps({**owner, "start_ticks": 1}))
    assert sweep.sweep_stale() == [f"{living.name}: files only"]
    assert not living.exists()


@pytest.mark.mounted
def test_a_fuse_mount_whose_daemon_hangs_is_swept(workdir: Path):
    place = workdir / "mnt"
    place.mkdir()
    with tiny_fuse(place, hang_after_read=True):
        stuck = subprocess.Popen(["stat", "-f", str(place)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while Path(f"/proc/{stuck.pid}/wchan").read_text() != "request_wait_answer":
            time.sleep(0.01)
        assert sweep.detach_mounts(workdir) == [f"mount {place} (fuse.commitlogfs)"]
        assert stuck.wait(5) != 0
    assert mountinfo.find_mount(place) is None


def test_a_tree_with_immutable_folders_can_be_removed_but_not_a_mounted_one(workdir: Path):
    guard.raise_guard(workdir / "tree/a/commitlog")
    (workdir / "tree/link").symlink_to("/etc")
    place = workdir / "tree/mnt"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", str(place)], check=True)
    with pytest.raises(OSError, match="still has mounts"):
        sweep.remove_tree(workdir / "tree")
    subprocess.run(["umount", str(place)], check=True)
    sweep.remove_tree(workdir / "tree")
    assert os.listdir(workdir) == []
