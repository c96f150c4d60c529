"""The disks that all targets of a measurement share, so that only the targets differ.

A loop device uses a file of another filesystem. To make it behave like a disk, that file is read and written
directly if the kernel allows it (no second cache), every block of it is allocated before (the first write to a
hole costs more than the second), and ext4's background initialisation is off.
"""

import fcntl
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.bench.disks import LoopDisk
from commitlogfs.console.units import format_size
from commitlogfs.mount.linux import mountinfo

_FILL_BYTES = 4 << 20
_KEEP_FREE_BYTES = 16 << 20
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchDisks:
    paths: tuple[Path, ...]
    description: str

    def commit(self) -> None:
        """Write the journals, so that no target pays for the changes of another one."""
        for path in self.paths:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @contextmanager
    def part(self, name: str) -> "Iterator[BenchDisks]":
        """A directory of that name on each disk, removed afterwards with its content, so that each part of a run
        begins with empty disks."""
        paths = tuple(path / name for path in self.paths)
        try:
            for path in paths:
                path.mkdir()
            yield BenchDisks(paths, self.description)
        finally:
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)
            self.commit()


@contextmanager
def loop_disks(directory: Path, fstype: str, count: int, size_bytes: int, tell: Tell) -> Iterator[BenchDisks]:
    """`count` disks below `directory`. Raises DisksUnavailableError, OSError."""
    with ExitStack() as stack:
        disks = [stack.enter_context(LoopDisk(directory / f"disk{n}", fstype, size_bytes)) for n in range(count)]
        direct = [_settle(disk, tell) for disk in disks]
        cached = "direct I/O" if all(direct) else "cached twice, because direct I/O is not supported here"
        description = (
            f"{count} loop devices of {format_size(size_bytes)}, {fstype}, {cached}, on {_where(directory)}"
        )
        yield BenchDisks(tuple(disk.path for disk in disks), description)


@contextmanager
def directory_disks(directory: Path, count: int) -> Iterator[BenchDisks]:
    """Directories of the real disk that contains `directory`."""
    paths = tuple(directory / f"disk{number}" for number in range(count))
    for path in paths:
        path.mkdir(parents=True)
    yield BenchDisks(paths, f"{count} directories on {_where(directory)}")


def drop_caches(*, inodes: bool = False, first: Callable[[], object] = lambda: None) -> None:
    """Drop all clean pages of every filesystem at both levels, and the `inodes` that are not in use.

    Root only; it affects the whole machine, so it waits while another process holds a lock on the kernel's file.
    `first` is called just before, after that wait.
    """
    with DROP_CACHES.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first()
        file.write("3\n" if inodes else "1\n")


def _settle(disk: LoopDisk, tell: Tell) -> bool:
    """Whether the loop device reads and writes its file directly."""
    entry = mountinfo.find_mount(disk.path)
    if entry is None:
        raise OSError(f"{disk.path}: is not mounted")
    device = Path(entry.source)
    if disk.fstype == "ext4":
        options = ["mount", "-o", "remount,noinit_itable", str(disk.path)]
        subprocess.run(options, capture_output=True, check=True, start_new_session=True)
    subprocess.run(["losetup", "--direct-io=on", str(device)], capture_output=True, check=False)
    tell(f"filling {disk.path.name} once, so that later writes need no allocation")
    _fill(disk.path)
    return Path(f"/sys/block/{device.name}/loop/dio").read_text().strip() == "1"


def _fill(disk: Path) -> None:
    """Write every block of the image, through one big file that is deleted afterwards."""
    path = disk / "fill"
    with mmap.mmap(-1, _FILL_BYTES) as zeros:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            while os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > _FILL_BYTES + _KEEP_FREE_BYTES:
                os.write(fd, zeros)
            os.fsync(fd)
        finally:
            os.close(fd)
            path.unlink()


def _where(directory: Path) -> str:
    """Filesystem that contains `directory`, found by its device number."""
    device = directory.stat().st_dev
    entry = next((entry for entry in mountinfo.read_mounts() if entry.device == device), None)
    return f"{entry.fstype} ({entry.source})" if entry is not None else "an unknown filesystem"
