"""Fills a disk with foreign data to a given percentage, by RocketMQ's arithmetic used / (used + available)."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.pools import PoolMount
from support.waiting import eventually

FOREIGN = "foreign-data"


def used_percent(disk: Path) -> float:
    st = os.statvfs(disk)
    used = st.f_blocks - st.f_bfree
    return 100 * used / (used + st.f_bavail)


def fill_to(disk: Path, percent: float) -> None:
    """Give the foreign file in `disk` the size that brings its filesystem to `percent`, up or down."""
    file = disk / FOREIGN
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(3):  # the file's own metadata counts too
            st = os.statvfs(disk)
            used = (st.f_blocks - st.f_bfree) * st.f_frsize
            wanted = int((used + st.f_bavail * st.f_frsize) * percent / 100)
            before = os.fstat(fd).st_size
            size = max(0, before + (wanted - used)) // 4096 * 4096
            if size > before:
                os.posix_fallocate(fd, before, size - before)
            else:
                os.ftruncate(fd, size)
            os.fsync(fd)
    finally:
        os.close(fd)


def fill_completely(disk: Path) -> None:
    """Give the foreign file in `disk` all blocks that are left."""
    fd = os.open(disk / FOREIGN, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for step in (1 << 20, 1 << 16, 1 << 12, 1 << 10):
            with contextlib.suppress(OSError):  # no space is left
                while True:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, step)
        os.fsync(fd)
    finally:
        os.close(fd)


def status(pool: PoolMount) -> Any:
    """The daemon's own view, measured at most a second ago."""
    return pool.ask("status")


def await_disk(pool: PoolMount, index: int, condition: Callable[[Any], bool]) -> Any:
    """Wait until the daemon's view of one disk (an entry of `disks`) meets the condition."""

    def found() -> Any:
        disk = status(pool)["disks"][index]
        return disk if condition(disk) else None

    return eventually(found, shown=lambda: str(status(pool)["disks"][index]))


def fill_and_await(pool: PoolMount, index: int, percent: float) -> None:
    """Fill the disk under member `index` and wait until the daemon has seen it."""
    directory = Path(pool.disks[index]).parent
    fill_to(directory, percent)
    now = used_percent(directory)
    await_disk(pool, index, lambda disk: disk["used_percent"] is not None and abs(disk["used_percent"] - now) < 0.5)
