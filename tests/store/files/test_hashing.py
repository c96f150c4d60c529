"""Checksums of files on a disk: content, key, page cache."""

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash
from support import page_cache
from support.loop_disks import DiskFarm, mkfs_available

from commitlogfs.bench.page_cache import cached_pages_of
from commitlogfs.store import layout
from commitlogfs.store.clock import SYSTEM_CLOCK
from commitlogfs.store.errors import SegmentChangedError
from commitlogfs.store.files.hashing import (
    CHUNK_BYTES,
    SegmentHash,
    drop_checksum,
    find_checksums,
    read_checksum_of,
)
from commitlogfs.store.timing import DEFAULT

SIZE = 3 * CHUNK_BYTES + 4096
NAME = b"%020d" % 0
LONG_AGO_NS = 1_600_000_000_123_456_789


@pytest.fixture
def directory(workdir: Path) -> Iterator[int]:
    fd = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def segment(workdir: Path) -> Path:
    return write_segment(workdir)


def write_segment(directory: Path) -> Path:
    path = directory / NAME.decode()
    path.write_bytes(os.urandom(SIZE))
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def begin(directory: int, segment: Path, at_rest_s: float = DEFAULT.checksums.at_rest_s) -> SegmentHash:
    return SegmentHash(directory, NAME, segment.stat().st_ino, SYSTEM_CLOCK, at_rest_s)


def compute(directory: int, segment: Path, between: Callable[[], object] = lambda: None) -> bytes:
    """`between` is called when a part was read."""
    hashing = begin(directory, segment)
    try:
        hashing.sync()
        assert hashing.read_chunk() == CHUNK_BYTES
        between()
        while hashing.read_chunk():
            pass
        return hashing.record()
    finally:
        hashing.close()


def known(directory: int, segment: Path) -> bytes | None:
    return read_checksum_of(directory, NAME, segment.stat().st_ino)


def test_it_is_the_xxh3_of_the_content_and_the_file_stays_as_it_was(directory: int, segment: Path) -> None:
    before, blocks = segment.stat().st_mtime_ns, segment.stat().st_blocks
    assert known(directory, segment) is None
    digest = compute(directory, segment)
    assert digest == xxhash.xxh3_128(segment.read_bytes()).digest() == known(directory, segment)
    assert segment.stat().st_mtime_ns == before
    assert segment.stat().st_blocks == blocks  # ext4 keeps it in the inode
    assert [found.is_valid for found in find_checksums(directory, [NAME, b"absent"])] == [True]


def change_by_write(segment: Path) -> None:
    with segment.open("r+b") as file:
        file.write(b"changed")


def change_by_mapping(segment: Path) -> None:
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[SIZE - 7 :] = b"changed"


def touch(segment: Path) -> None:
    os.utime(segment, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))


@pytest.mark.parametrize("change", [change_by_write, change_by_mapping, touch])
def test_a_changed_file_has_none(directory: int, segment: Path, change: Callable[[Path], None]) -> None:
    compute(directory, segment)
    change(segment)
    assert known(directory, segment) is None
    assert [found.is_valid for found in find_checksums(directory, [NAME])] == [False]


@pytest.mark.parametrize("change", [change_by_write, change_by_mapping, touch])
def test_a_change_meanwhile_is_noticed(directory: int, segment: Path, change: Callable[[Path], None]) -> None:
    with pytest.raises(SegmentChangedError):
        compute(directory, segment, lambda: change(segment))
    assert layout.XATTR_CHECKSUM not in os.listxattr(segment)


def test_a_page_that_was_dirty_before_is_noticed(directory: int, segment: Path) -> None:
    """Without a sync, a further store to it would not change the mtime."""
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0] = 1
        os.utime(segment, ns=(LONG_AGO_NS, LONG_AGO_NS))

        def store() -> None:
            mapping[1] = mapping[1] ^ 1

        with pytest.raises(SegmentChangedError):
            compute(directory, segment, store)


def test_another_file_under_the_name_has_none(directory: int, segment: Path, workdir: Path) -> None:
    compute(directory, segment)
    value = os.getxattr(segment, layout.XATTR_CHECKSUM)
    copy = workdir / "copy"
    copy.write_bytes(segment.read_bytes())
    os.setxattr(copy, layout.XATTR_CHECKSUM, value)
    os.utime(copy, ns=(LONG_AGO_NS, LONG_AGO_NS))
    copy.rename(segment)
    assert known(directory, segment) is None


def test_a_recently_changed_file_is_not_at_rest(directory: int, segment: Path) -> None:
    segment.touch()
    hashing = begin(directory, segment, at_rest_s=3600.0)
    assert not hashing.is_at_rest
    hashing.close()


def test_a_dropped_checksum_is_gone(directory: int, segment: Path) -> None:
    compute(directory, segment)
    assert drop_checksum(directory, NAME, segment.stat().st_ino)
    assert known(directory, segment) is None
    assert not drop_checksum(directory, NAME, segment.stat().st_ino)


@pytest.mark.root
@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
@page_cache.kept()
def test_the_page_cache_stays_as_it_was(disk_farm: DiskFarm, filesystem: str) -> None:
    if not mkfs_available(filesystem):
        pytest.skip(f"no mkfs.{filesystem}")
    place = disk_farm.add(filesystem).path
    segment = write_segment(place)
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    fd = os.open(segment, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, CHUNK_BYTES, CHUNK_BYTES)
        hot = cached_pages_of([segment])
        assert hot == CHUNK_BYTES // mmap.PAGESIZE
        compute(directory, segment)
        assert cached_pages_of([segment]) == hot
    finally:
        os.close(fd)
        os.close(directory)
