"""Real ext4 and xfs disks for tests: sparse image files, mounted through loop devices. Needs root.

A disk holds a loop device only while it is mounted (`mount -o loop` frees it with the mount), and everything
of it lies in its work directory, so that `bench.sweep` can clear away what an aborted run leaves.
"""

import array
import fcntl
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import holders, mountinfo

MIB = 1024 * 1024
XFS_MIN_BYTES = 300 * MIB
"""mkfs.xfs refuses anything smaller."""

SHUTDOWN_IOCTL = 0x8004587D
"""EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: one number, made for tests of crashes."""
WITHOUT_LOG_FLUSH = 2


_MKFS = {
    # No reserved blocks, inode tables and journal written lazily: an image stays small and is ready at once.
    "ext4": [
        *("mkfs.ext4", "-q", "-F", "-m", "0"),
        *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L"),
    ],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K", "-L"],
}
_MAX_LABEL = 12
_TOOL_DIRECTORIES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
"""Not on everybody's PATH."""


def loop_available() -> str:
    """Why loop disks cannot be made here, in words; empty if they can."""
    if os.geteuid() != 0:
        return "loop devices need root"
    if not Path("/dev/loop-control").exists():
        return "no /dev/loop-control"
    if not mkfs_available("ext4"):
        return "no mkfs.ext4"
    free = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    return "" if free.returncode == 0 else f"no free loop device ({free.stderr.strip()})"


def mkfs_available(fstype: str) -> bool:
    """Whether disks of this type can be made."""
    return fstype in _MKFS and shutil.which(f"mkfs.{fstype}", path=_TOOL_DIRECTORIES) is not None


class LoopDisk:
    """One disk. `path` is the directory it is mounted at (on ext4 with a `lost+found` in it)."""

    MKFS_OPTIONS: tuple[str, ...] = ()

    def __init__(self, directory: Path, fstype: str, size_bytes: int) -> None:
        self.directory = directory
        self.fstype = fstype
        self.size_bytes = size_bytes
        self.image = directory / "image"
        self.path = directory / "disk"

    @classmethod
    def create(cls, workdir: Path, fstype: str, size_bytes: int, label: str = "disk") -> Self:
        """Make and mount a disk in the new directory `workdir/label`. Raises ValueError if it cannot be."""
        if fstype not in _MKFS:
            raise ValueError(f"no {fstype} disks, only {', '.join(_MKFS)}")
        if fstype == "xfs" and size_bytes < XFS_MIN_BYTES:
            raise ValueError(f"mkfs.xfs refuses less than {XFS_MIN_BYTES} bytes, got {size_bytes}")
        disk = cls(workdir / label, fstype, size_bytes)
        disk.directory.mkdir(parents=True)
        try:
            disk.path.mkdir()
            with disk.image.open("wb") as image:
                image.truncate(size_bytes)
            _run(*_MKFS[fstype], label[:_MAX_LABEL], *cls.MKFS_OPTIONS, str(disk.image))
            disk.mount()
        except BaseException:
            disk.destroy()
            raise
        return disk

    @property
    def is_mounted(self) -> bool:
        return mountinfo.find_mount(self.path) is not None

    @property
    def device(self) -> str:
        """The loop device, such as /dev/loop3, of the mounted disk."""
        entry = mountinfo.find_mount(self.path)
        if entry is None:
            raise ValueError(f"{self.path} is not mounted")
        return entry.source

    def mount(self, *options: str) -> None:
        """Mount it (again), at `path`. Does nothing if it is mounted."""
        if not self.is_mounted:
            # Inode tables that ext4 writes in the background would be I/O that no test expects.
            quiet = ["noinit_itable"] if self.fstype == "ext4" else []
            chosen = ",".join(["loop", *quiet, *options])
            _run("mount", "-t", self.fstype, "-o", chosen, str(self.image), str(self.path))

    def unmount(self) -> None:
        """Unmount it; its contents stay. Raises AssertionError, naming the holders, if it stays busy."""
        eventually(self._is_unmounted, PATIENCE_S, self._describe_holders)

    def _describe_holders(self) -> str:
        return holders.describe_holders(holders.find_holders(self.path))

    def _is_unmounted(self) -> bool:
        """Try to unmount it; whether it is unmounted."""
        if self.is_mounted:
            done = subprocess.run(["umount", str(self.path)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip())
        return not self.is_mounted

    def repair(self) -> None:
        """Unmount it and mount it again, after which a failed one is writable: once nobody has it mounted, which
        another mount namespace (a container that starts) may for a while."""
        eventually(self._is_repaired)

    def _is_repaired(self) -> bool:
        """Try to mount it anew; whether it is writable."""
        if not self._is_unmounted():
            return False
        self.mount()
        try:
            (self.path / ".probe").touch()
            (self.path / ".probe").unlink()
        except OSError as error:
            raise RuntimeError(f"{self.path}: not writable: {error}") from error
        return True

    def remount_ro(self) -> None:
        """Make its filesystem read-only under the feet of its users (fails while files are open to write)."""
        _run("mount", "-o", "remount,ro", str(self.path))

    def turn_read_only(self) -> None:
        """ext4's own reaction to an error, which no open file holds up. Only a new mount makes it writable."""
        _run("mount", "-o", "remount,errors=remount-ro", str(self.path))
        Path(f"/sys/fs/ext4/{Path(self.device).name}/trigger_fs_error").write_text("1")

    def remount_rw(self) -> None:
        _run("mount", "-o", "remount,rw", str(self.path))

    def vanish(self) -> None:
        """From now on every access fails, as if the cable were pulled, until it is unmounted."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN_IOCTL, array.array("I", [WITHOUT_LOG_FLUSH]))
        finally:
            os.close(fd)

    def detach(self) -> None:
        """Unmount it under its users, who keep the filesystem as long as they use it."""
        _run("umount", "--lazy", str(self.path))

    def come_back(self) -> None:
        """Detached, it is back as another block device, and mounted at `path`. Its former users keep the former
        filesystem."""
        device = _run("losetup", "--find", "--show", str(self.image))
        try:
            options = ["-o", "nouuid"] if self.fstype == "xfs" else []  # the former filesystem has the same
            _run("mount", "-t", self.fstype, *options, device, str(self.path))
        finally:
            _run("losetup", "--detach", device)  # with the mount, if there is one

    def destroy(self) -> None:
        """Unmount it and delete its directory, image included."""
        self.unmount()
        shutil.rmtree(self.directory)


class LargeBlockDisk(LoopDisk):
    """An ext4 disk with blocks as on a large one, so that a directory can have the identity of a pool of many
    disks."""

    MKFS_OPTIONS = ("-b", "4096")


class DiskWithoutExtents(LoopDisk):
    """An ext4 as ext3 was: it cannot reserve space for a file."""

    MKFS_OPTIONS = ("-O", "^extents,^64bit,^metadata_csum")


Kind = TypeVar("Kind", bound=LoopDisk)


class DiskFarm:
    """Makes disks in one directory and destroys all of them at the end, even if some fail to go."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.disks: list[LoopDisk] = []

    def add(self, fstype: str = "ext4", size_bytes: int | None = None, label: str | None = None) -> LoopDisk:
        """A new mounted disk, by default of 64 MiB (xfs: 300 MiB)."""
        return self.add_of(LoopDisk, fstype, size_bytes, label)

    def add_of(
        self, kind: type[Kind], fstype: str = "ext4", size_bytes: int | None = None, label: str | None = None
    ) -> Kind:
        """The same of a special kind."""
        size_bytes = size_bytes or (XFS_MIN_BYTES if fstype == "xfs" else 64 * MIB)
        disk = kind.create(self.workdir, fstype, size_bytes, label or f"disk{len(self.disks) + 1}")
        self.disks.append(disk)
        return disk

    def close(self) -> None:
        """Destroy every disk, whatever happens to one of them, also if the test's time is over. Raises the last
        error."""
        with ExitStack() as stack:
            for disk in self.disks:
                stack.callback(disk.destroy)
            self.disks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def commitlog_directories(*disks: LoopDisk) -> list[Path]:
    """A new directory on each of these disks, for a pool."""
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    return directories


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()
