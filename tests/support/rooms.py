"""How full the disks of a pool are, as a test wants it: figures of statvfs that follow the segments on them."""

import contextlib
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from support.pooled import SIZE, Parts

_FULL = 90
"""Segments with which a disk is full, of the hundred that it has space for."""


class Room:
    """Figures of all disks, which are empty at first."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._foreign: Counter[int] = Counter()
        self._statvfs = os.statvfs

    def leave(self, number: int, segments: int) -> None:
        """Data of others leave space on a disk for that many more segments."""
        self._foreign[number] = _FULL - self._count(number) - segments

    def statvfs(self, path: int | str) -> object:
        """In place of os.statvfs."""
        number = next((one for one, disk in self._parts.commitlog.disks.items() if disk.dirfd == path), None)
        if number is None:
            return self._statvfs(path)
        free = 100 - self._foreign[number] - self._count(number)
        return SimpleNamespace(f_frsize=SIZE, f_blocks=100, f_bfree=free, f_bavail=free)

    def _count(self, number: int) -> int:
        """Segments and copies on a disk, with those that were removed and are still open, or have no name yet."""
        directory = self._parts.directories[number - 1]
        retired = directory / ".commitlogfs"
        names = os.listdir(directory) + (os.listdir(retired) if retired.is_dir() else [])
        return sum(name.lstrip(".")[:20].isdigit() for name in names) + _count_unnamed(directory)


def _count_unnamed(directory: Path) -> int:
    """Open files with blocks that have no name there."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            path = f"/proc/self/fd/{entry}"
            if os.readlink(path).startswith(f"{directory}/#"):
                st = os.stat(path)
                count += st.st_nlink == 0 and st.st_blocks > 0
    return count
