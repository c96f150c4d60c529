"""Finding the end of what is written in a segment whose space is reserved, on a real filesystem."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlogfs.store import _syscalls
from commitlogfs.store.files.written import find_written

SIZE = 8 << 20
NAME = b"00000000000000000000"


@pytest.fixture
def dirfd(workdir: Path) -> Iterator[int]:
    """A directory with one segment, as a create makes it: reserved, of its whole size, nothing written."""
    fd = os.open(workdir / NAME.decode(), os.O_RDWR | os.O_CREAT, 0o644)
    _syscalls.fallocate(fd, _syscalls.FALLOC_FL_KEEP_SIZE, 0, SIZE)
    os.ftruncate(fd, SIZE)
    os.close(fd)
    directory = os.open(workdir, os.O_RDONLY)
    yield directory
    os.close(directory)


def write(dirfd: int, data: bytes, offset: int = 0) -> None:
    fd = os.open(NAME, os.O_RDWR, dir_fd=dirfd)
    os.pwrite(fd, data, offset)
    os.close(fd)


def test_a_reserved_segment_is_not_written(dirfd: int) -> None:
    assert find_written(dirfd, NAME, SIZE).length == 0
    assert os.stat(NAME, dir_fd=dirfd).st_blocks * 512 >= SIZE


@pytest.mark.parametrize("length", [1, 4095, 65_536, 65_537, 1_000_003, SIZE - 1, SIZE])
def test_the_last_byte_written_is_found(dirfd: int, length: int) -> None:
    write(dirfd, b"x" * length)
    found = find_written(dirfd, NAME, SIZE)
    assert found.length == length
    assert found.mtime_ns == os.stat(NAME, dir_fd=dirfd).st_mtime_ns


def test_a_mapped_write_is_found_before_it_is_flushed(dirfd: int) -> None:
    fd = os.open(NAME, os.O_RDWR, dir_fd=dirfd)
    with mmap.mmap(fd, SIZE) as mapped:
        mapped[:300_000] = b"m" * 300_000
        assert find_written(dirfd, NAME, SIZE).length == 300_000
    os.close(fd)


def test_pages_that_were_read_or_touched_do_not_count(dirfd: int) -> None:
    """Readers ahead of the end, and a broker with warmMapedFileEnable."""
    write(dirfd, b"x" * 5000)
    fd = os.open(NAME, os.O_RDWR, dir_fd=dirfd)
    os.pread(fd, SIZE, 0)
    with mmap.mmap(fd, SIZE) as mapped:
        for page in range(8192, SIZE, mmap.PAGESIZE):
            mapped[page] = 0
        mapped.flush()
    os.close(fd)
    assert find_written(dirfd, NAME, SIZE).length == 5000


def test_bodies_of_zeros_are_written(dirfd: int) -> None:
    record = b"header".ljust(100) + bytes(60_000)
    write(dirfd, record * 50 + b"!")
    assert find_written(dirfd, NAME, SIZE).length == 50 * len(record) + 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=12))
def test_a_known_length_is_a_place_to_begin(dirfd: int, appends: list[int]) -> None:
    fd = os.open(NAME, os.O_RDWR, dir_fd=dirfd)
    os.ftruncate(fd, 0)
    os.ftruncate(fd, SIZE)
    known = written = 0
    for length in appends:
        os.pwrite(fd, b"y" * length, written)
        written += length
        assert find_written(dirfd, NAME, SIZE).length == written
        known = find_written(dirfd, NAME, SIZE, known).length
        assert known == written
    os.close(fd)
