"""The disks that every target of a measurement shares, made so that nothing but the targets differs.

A loop device lies on a file of another filesystem. So that it behaves as a disk does, that file is read and
written directly where the kernel allows it (no second cache), every block of it is allocated before (the first
write to a hole would cost more than the second) and ext4's background initialisation is off.
"""

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
        """Have the journals written, so that nobody pays for what another one has made or removed."""
        for path in self.paths:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @contextmanager
    def part(self, name: str) -> "Iterator[BenchDisks]":
        """A folder of that name on each disk, gone afterwards with all that was made in it, so that each part of a
        run finds the disks empty."""
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
def loop_disks(folder: Path, fstype: str, count: int, size_bytes: int, tell: Tell) -> Iterator[BenchDisks]:
    """`count` disks beneath `folder`. Raises DisksUnavailableError, OSError."""
    with ExitStack() as stack:
        disks = [stack.enter_context(LoopDisk(folder / f"disk{n}", fstype, size_bytes)) for n in range(count)]
        direct = [_settle(disk, tell) for disk in disks]
        cached = "direct I/O" if all(direct) else "cached a second time: no direct I/O here"
        description = f"{count} loop devices of {format_size(size_bytes)}, {fstype}, {cached}, on {_where(folder)}"
        yield BenchDisks(tuple(disk.path for disk in disks), description)


@contextmanager
def folder_disks(folder: Path, count: int) -> Iterator[BenchDisks]:
    """Folders of the one real disk on which `folder` lies."""
    paths = tuple(folder / f"disk{number}" for number in range(count))
    for path in paths:
        path.mkdir(parents=True)
    yield BenchDisks(paths, f"{count} folders on {_where(folder)}")


def drop_caches() -> None:
    """Forget all clean pages, of every filesystem at both levels. Root only; the whole machine feels it."""
    DROP_CACHES.write_text("1\n")


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
    tell(f"writing {disk.path.name} full once, so that no later write allocates")
    _fill(disk.path)
    return Path(f"/sys/block/{device.name}/loop/dio").read_text().strip() == "1"


def _fill(disk: Path) -> None:
    """Every block of the image, through one big file that is deleted again."""
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


def _where(folder: Path) -> str:
    """The filesystem beneath: found by device number, because a mountpoint need not be near."""
    device = folder.stat().st_dev
    entry = next((entry for entry in mountinfo.read_mounts() if entry.device == device), None)
    return f"{entry.fstype} ({entry.source})" if entry is not None else "an unknown filesystem"
