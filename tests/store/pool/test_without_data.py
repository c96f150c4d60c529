"""Whole files without data beside a missing disk, as the start of their pool finds them."""

import os
import shutil
import threading
from collections.abc import Set
from contextlib import closing
from pathlib import Path

import pytest
from support.member_directories import SIZE, Directories
from support.waiting import PATIENCE_S

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.pool import leftovers
from commitlogfs.store.segment import BaseOffset, format_segment_name

SEGMENTS = 6
"""On the first two disks in turn; the third one is missing."""


class DegradedLog:
    def __init__(self, workdir: Path) -> None:
        self.directories = Directories(workdir)
        shutil.rmtree(self.directories.specs[2].path)
        self.opened: set[tuple[DiskNumber, int]] = set()
        for index in range(SEGMENTS):
            self._path(index).write_bytes(b"x" * SIZE)
        for spec in self.directories.specs[:2]:
            newest = identity.format_newest(BaseOffset((SEGMENTS - 1) * SIZE))
            os.setxattr(spec.path, layout.XATTR_NEWEST, newest)

    def _path(self, index: int) -> Path:
        name = format_segment_name(BaseOffset(index * SIZE)).decode()
        return Path(self.directories.specs[index % 2].path) / name

    def empty(self, *indexes: int) -> None:
        for index in indexes:
            os.truncate(self._path(index), 0)
            os.truncate(self._path(index), SIZE)

    def file(self, index: int) -> tuple[DiskNumber, int]:
        return DiskNumber(index % 2 + 1), self._path(index).stat().st_ino

    def served(self, opened: Set[tuple[DiskNumber, int]] = frozenset()) -> list[int]:
        with closing(self.directories.open(*self.directories.specs, opened=opened)) as pool:
            return [segment.base_offset // SIZE for segment in pool.inventory.catalog]


@pytest.fixture
def log(workdir: Path) -> DegradedLog:
    return DegradedLog(workdir)


def test_only_the_newest_is_served_without_data(log: DegradedLog) -> None:
    log.empty(1, 2, 5)
    assert log.served() == [0, 3, 4, 5]


def test_all_disks_are_asked_at_once(log: DegradedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    lacks_data, first = leftovers.lacks_data, {b"%020d" % 0, b"%020d" % SIZE}

    def together(dirfd: int, name: bytes, ino: int) -> bool:
        if name in first:
            both.wait(PATIENCE_S)
        return lacks_data(dirfd, name, ino)

    monkeypatch.setattr(leftovers, "lacks_data", together)
    log.empty(1, 2)
    assert log.served() == [0, 3, 4, 5]


def test_files_that_a_process_has_open_are_not_asked(log: DegradedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a takeover, which a broker waits for."""
    asked: set[bytes] = set()
    lacks_data = leftovers.lacks_data

    def asking(dirfd: int, name: bytes, ino: int) -> bool:
        asked.add(name)
        return lacks_data(dirfd, name, ino)

    monkeypatch.setattr(leftovers, "lacks_data", asking)
    log.empty(1, 2)
    assert log.served({log.file(index) for index in range(SEGMENTS) if index != 2}) == [0, 1, 3, 4, 5]
    assert asked == {b"%020d" % (2 * SIZE)}
