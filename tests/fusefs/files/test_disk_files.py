"""File operations of one disk: which errors are counted, and what they become. Real files, no mount."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from support.files import open_disk
from support.pooled import OURS, PATIENT
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.kernel.inodes import StaleInodeError
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.clock import SYSTEM_CLOCK
from commitlogfs.store.errors import DiskFailedError, ForeignFileError
from commitlogfs.store.files import allocate
from commitlogfs.store.files.allocate import Owner

NAME = b"%020d" % 0


class Counting(SilentObserver):
    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []

    def disk_error(self, disk: str, op: str, errno_name: str) -> None:
        self.errors.append((op, errno_name))


@pytest.fixture
def counted() -> Counting:
    return Counting()


@pytest.fixture
def disk(workdir: Path, counted: Counting) -> Iterator[DiskFiles]:
    with open_disk(workdir) as member:
        yield DiskFiles(member, DiskThreads([member.number]), counted, SYSTEM_CLOCK, PATIENT.requests)


def test_a_planted_symlink_is_a_foreign_file(disk: DiskFiles, counted: Counting, workdir: Path) -> None:
    (workdir / NAME.decode()).symlink_to("/etc/passwd")

    async def main() -> None:
        with pytest.raises(ForeignFileError):
            await disk.open(NAME, 4711)

    trio.run(main)
    assert counted.errors == [("open", "ELOOP")]


def test_a_file_that_vanished_is_reported_when_it_is_opened(disk: DiskFiles, counted: Counting) -> None:
    async def main() -> None:
        with pytest.raises(ForeignFileError, match="has vanished"):
            await disk.open(NAME, 4711)
        assert await disk.stat(NAME) is None
        assert await disk.is_open_elsewhere(NAME) is False
        assert await disk.is_certainly_absent(NAME)

    trio.run(main)
    assert counted.errors == [("open", "ENOENT"), ("stat", "ENOENT"), ("lease", "ENOENT")]


def test_a_file_that_left_while_its_checksum_is_read_is_looked_up_again(disk: DiskFiles) -> None:
    async def main() -> None:
        with pytest.raises(StaleInodeError):
            await disk.read_checksum(NAME, 4711)

    trio.run(main)


def test_a_reservation_that_comes_too_late_is_closed(
    disk: DiskFiles, counted: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, go_on = allocate.reserve, threading.Event()
    made: list[int] = []

    def waiting(dirfd: int, segment_size: int, owner: Owner) -> int:
        assert go_on.wait(PATIENCE_S)
        made.append(reserve(dirfd, segment_size, owner))
        return made[0]

    def is_closed() -> bool:
        try:
            os.fstat(made[0])
        except OSError as error:
            return error.errno == errno.EBADF
        return False

    async def main() -> None:
        monkeypatch.setattr(allocate, "reserve", waiting)
        with pytest.raises(DiskFailedError, match="no answer"):
            await disk.reserve(4096, OURS, 0.05)
        go_on.set()
        await until(lambda: bool(made) and is_closed())

    trio.run(main)
    assert counted.errors == [("reserve", "ETIMEDOUT")]


def test_errors_of_data_are_the_callers_and_not_counted(disk: DiskFiles, counted: Counting, workdir: Path) -> None:
    async def main() -> None:
        fd = os.open(workdir, os.O_RDONLY)
        try:
            with pytest.raises(IsADirectoryError):
                await disk.read(fd, 10, 0)
        finally:
            os.close(fd)
        with pytest.raises(StaleInodeError):
            await disk.has_data(NAME, PATIENCE_S)

    trio.run(main)
    assert counted.errors == []
