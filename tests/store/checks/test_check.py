"""Check of a disk: blocks with data are read, a little is written, and nothing stays."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from commitlogfs.store.checks.check import BLOCK, DiskCheck, Stage, check_disk, read_block
from commitlogfs.store.files import safe_open

NAME = b"00000000000000000000"


@pytest.fixture
def dirfd(workdir):
    fd = os.open(workdir, os.O_RDONLY)
    yield fd
    os.close(fd)


def nothing(_: Stage) -> None:
    pass


@pytest.fixture
def positions(monkeypatch):
    """Where blocks are read."""
    found: list[int] = []
    original = os.preadv

    def preadv(fd: int, buffers: list[mmap.mmap], position: int) -> int:
        found.append(position)
        return original(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    return found


def make(workdir: Path, content: bytes, size: int = 0) -> None:
    path = workdir / NAME.decode()
    path.write_bytes(content)
    os.truncate(path, max(size, len(content)))


def test_a_check_reads_and_writes_and_leaves_nothing(workdir, dirfd):
    make(workdir, bytes(4 * BLOCK))
    stages: list[Stage] = []
    assert check_disk(dirfd, [NAME], may_write=True, announce=stages.append) == DiskCheck(3, 0, 0, 0)
    assert stages == [Stage.READING, Stage.WRITING]
    assert os.listdir(workdir) == [NAME.decode()]


def test_a_check_without_writing(workdir, dirfd):
    stages: list[Stage] = []
    assert check_disk(dirfd, [], may_write=False, announce=stages.append) == DiskCheck(0, 0, 0, 0)
    assert stages == [Stage.READING]


def test_a_disk_without_segments_is_read_all_the_same(workdir, dirfd, positions):
    """Its last segment may have been removed while it was unreadable."""
    assert check_disk(dirfd, [], may_write=True, announce=nothing) == DiskCheck(1, 0, 0, 0)
    assert positions == [0]
    assert os.listdir(workdir) == []


def test_a_disk_without_segments_that_cannot_be_read(dirfd, monkeypatch):
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, "as a bad disk")

    monkeypatch.setattr(os, "preadv", preadv)
    assert check_disk(dirfd, [], may_write=True, announce=nothing) == DiskCheck(0, 1, errno.EIO, 0)


def test_a_segment_that_is_removed_meanwhile_proves_nothing(dirfd):
    assert check_disk(dirfd, [NAME], may_write=False, announce=nothing) == DiskCheck(0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["sparse", "reserved", "gone"])
def test_a_disk_whose_segments_have_no_data_is_read_all_the_same(workdir, dirfd, positions, kind):
    if kind != "gone":
        make(workdir, b"", 16 * BLOCK)
    if kind == "reserved":
        with (workdir / NAME.decode()).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, 16 * BLOCK)
    assert check_disk(dirfd, [NAME], may_write=True, announce=nothing) == DiskCheck(1, 0, 0, 0)
    assert positions == [0]


def test_a_disk_that_refuses_its_segments_is_not_read_back(workdir, dirfd, monkeypatch):
    """Many disks return what was written just now, although they refuse older blocks."""

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "as a bad disk")

    make(workdir, b"x" * BLOCK)
    monkeypatch.setattr(os, "lseek", fail)
    assert check_disk(dirfd, [NAME], may_write=True, announce=nothing) == DiskCheck(0, 3, errno.EIO, 0)


def test_only_blocks_with_data_are_read(workdir, dirfd, positions):
    """The kernel answers for a hole by itself."""
    make(workdir, b"x" * BLOCK, 256 * BLOCK)
    assert all(read_block(dirfd, NAME) for _ in range(20))
    assert positions == [0] * 20


def test_a_segment_without_data_is_not_read(workdir, dirfd):
    make(workdir, b"", 16 * BLOCK)
    assert not read_block(dirfd, NAME)
    assert not read_block(dirfd, NAME)


def test_other_blocks_are_read_each_time(workdir, dirfd, positions):
    make(workdir, b"x" * 1024 * BLOCK)
    for _ in range(20):
        read_block(dirfd, NAME)
    assert len(set(positions)) > 10
    assert all(position % BLOCK == 0 for position in positions)


OF_THE_DISK = (
    errno.EIO,
    errno.ENODATA,
    errno.EBADMSG,
    errno.EREMOTEIO,
    errno.ETIMEDOUT,
    errno.ENOLINK,
    errno.ENXIO,
)
"""ENODATA is how a direct read of a bad sector fails."""
OF_OTHERS = (errno.EACCES, errno.ENOENT, errno.ENOMEM, errno.EAGAIN, errno.EMFILE)


@pytest.mark.parametrize("code", OF_OTHERS)
def test_a_disk_is_not_blamed_for_the_errors_of_others(workdir, dirfd, monkeypatch, code):
    """Also when the block that was written is read back."""

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    make(workdir, b"x" * BLOCK)
    monkeypatch.setattr(os, "preadv", fail)
    assert check_disk(dirfd, [NAME], may_write=True, announce=nothing) == DiskCheck(0, 0, 0, 0)


@pytest.mark.parametrize("code", OF_THE_DISK)
def test_a_block_that_is_read_back_proves_nothing_if_segments_were_refused(workdir, dirfd, monkeypatch, code):
    preadv = os.preadv

    def fail(fd: int, buffers: list[mmap.mmap], position: int) -> int:
        if NAME.decode() in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(code, os.strerror(code))
        return preadv(fd, buffers, position)

    make(workdir, b"x" * BLOCK)
    monkeypatch.setattr(os, "preadv", fail)
    assert check_disk(dirfd, [NAME], may_write=True, announce=nothing) == DiskCheck(0, 3, code, 0)


@pytest.mark.parametrize(
    ("code", "counts"), [*((code, 3) for code in OF_THE_DISK), *((code, 0) for code in OF_OTHERS)]
)
def test_errors_of_the_disk_count(workdir, dirfd, monkeypatch, code, counts):
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    make(workdir, b"x" * BLOCK)
    monkeypatch.setattr(os, "preadv", fail)
    found = check_disk(dirfd, [NAME], may_write=False, announce=nothing)
    assert found == DiskCheck(0, counts, code if counts else 0, 0)


def test_a_failed_write_is_reported(dirfd, monkeypatch):
    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(safe_open, "open_unnamed", fail)
    assert check_disk(dirfd, [], may_write=True, announce=nothing) == DiskCheck(0, 0, 0, errno.EROFS)
