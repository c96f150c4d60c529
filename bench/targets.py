"""Targets of the data path measurement: the disks' own directories, our mount, mergerfs, on the same disks."""

import dataclasses
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.served import CommandFailedError, ServedPool
from commitlogfs.mount.linux import mountinfo
from commitlogfs.store import _syscalls
from commitlogfs.store.segment import format_segment_name

NATIVE, MOUNT, PLAIN, MERGERFS = "native", "mount", "plain", "mergerfs"
CONTROL = "native-2"
"""NATIVE again in other directories: the distance of its ratio from 1 is the noise of a ratio."""

MERGERFS_OPTIONS = (
    "allow_other,use_ino,cache.files=partial,dropcacheonclose=true,category.create=mfs,minfreespace=0,fsname=bench"
)
"""Options that its README recommends for programs that map files. minfreespace: the default, 4 GiB, refuses small
disks."""

_UNMOUNT_TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class DataTarget:
    """One way to access segments. Segment k is in directory k modulo their number; a mount has one directory."""

    name: str
    description: str
    directories: tuple[Path, ...]
    segment_size: int
    reserves: bool
    """Whether a create reserves the segment's space; on a bare disk the caller reserves it."""

    def path(self, index: int) -> Path:
        name = format_segment_name(index * self.segment_size).decode()
        return self.directories[index % len(self.directories)] / name

    def create(self, index: int) -> int:
        """A descriptor of a new segment, reserved in full and of full size."""
        fd = os.open(self.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            if not self.reserves:
                _syscalls.fallocate(fd, _syscalls.FALLOC_FL_KEEP_SIZE, 0, self.segment_size)
            os.ftruncate(fd, self.segment_size)
        except BaseException:
            os.close(fd)
            raise
        return fd


def native(disks: Sequence[Path], segment_size: int, name: str = NATIVE) -> DataTarget:
    """A directory on each disk, used directly."""
    directories = tuple(disk / name for disk in disks)
    for directory in directories:
        directory.mkdir(exist_ok=True)
    about = "a directory on each disk, used directly" + ("" if name == NATIVE else ": the noise of this machine")
    return DataTarget(name, about, directories, segment_size, reserves=False)


@contextmanager
def served(
    name: str, work: Path, disks: Sequence[Path], segment_size: int, *, adopt: bool = False
) -> Iterator[DataTarget]:
    """Our mount: MOUNT with passthrough, which is verified, PLAIN without.

    `adopt`: the directories already hold segments, which are only listed. Raises CommandFailedError,
    WrongResultError.
    """
    work.mkdir(parents=True)
    settings = {"passthrough": "required" if name == MOUNT else "off"}
    directories = [disk / name for disk in disks]
    with ServedPool(work, directories, segment_size=segment_size, settings=settings) as pool:
        pool.run("adopt" if adopt else "init", pool.config)
        pool.mount()
        description = f"commitlogfs, passthrough = {settings['passthrough']}"
        target = DataTarget(name, description, (pool.mountpoint,), segment_size, reserves=True)
        if name == MOUNT and not adopt:
            _prove_passthrough(pool, target)
        yield target
        pool.unmount()


@contextmanager
def mergerfs(work: Path, disks: Sequence[Path], segment_size: int) -> Iterator[DataTarget]:
    """Debian's mergerfs on a directory of each disk. Raises CommandFailedError."""
    directories = [disk / MERGERFS for disk in disks]
    for directory in directories:
        directory.mkdir(exist_ok=True)
    mountpoint = work / "mountpoint"
    mountpoint.mkdir(parents=True)
    branches = ":".join(map(str, directories))
    command = ["mergerfs", "-o", MERGERFS_OPTIONS, branches, str(mountpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        raise CommandFailedError(f"mergerfs: {done.stderr.strip() or done.returncode}")
    try:
        description = f"mergerfs {mergerfs_version()}, -o {MERGERFS_OPTIONS}"
        yield DataTarget(MERGERFS, description, (mountpoint,), segment_size, reserves=False)
    finally:
        _unmount(mountpoint)


def mergerfs_version() -> str:
    """Version of the installed mergerfs; empty if it is not installed."""
    if shutil.which("mergerfs") is None:
        return ""
    done = subprocess.run(["mergerfs", "-V"], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.split()[-1] for line in lines if "version" in line), "unknown")


def _prove_passthrough(pool: ServedPool, target: DataTarget) -> None:
    """Checks that the mount uses passthrough: its figures would otherwise have the wrong name."""
    fd = target.create(0)
    try:
        daemon = pool.status()["daemon"]
    finally:
        os.close(fd)
        target.path(0).unlink()
    if daemon["passthrough"] != "on" or not daemon["passthrough_files"]:
        raise WrongResultError(f"passthrough is requested, but the mount is plain: {daemon}")


def _unmount(mountpoint: Path) -> None:
    deadline = time.monotonic() + _UNMOUNT_TIMEOUT_S
    while mountinfo.find_mount(mountpoint) is not None:
        done = subprocess.run(["umount", str(mountpoint)], capture_output=True, text=True, check=False)
        if done.returncode != 0 and time.monotonic() > deadline:
            raise CommandFailedError(f"{mountpoint}: {done.stderr.strip()}")
        if done.returncode != 0:
            time.sleep(0.1)
