"""Disk directories in the middle of a move: two files, one segment."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount

from commitlogfs.pipeline.log.errors import DuplicateSegmentError
from commitlogfs.pipeline.log.segments import list_segments, list_with_twins
from commitlogfs.store.disks.disk import open_directory
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.moves.copy import open_source

pytestmark = pytest.mark.root


@pytest.fixture
def moved(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Its only segment lies on disk 1, and has been copied to disk 2."""
    pool = make_pool(3)
    source = pool.disks[0] / pool.path(0).name
    source.write_bytes(bytes(range(256)) * (MIB // 256))
    copy_to(pool, 1, source.name)
    return pool


def copy_to(pool: PoolMount, index: int, name: str) -> None:
    dirfds = [open_directory(str(disk)) for disk in (pool.disks[0], pool.disks[index])]
    copy = open_source(dirfds[0], os.fsencode(name), (pool.disks[0] / name).stat().st_ino)
    try:
        copy.reserve(dirfds[1])
        while copy.read_chunk():
            copy.write_chunk()
        copy.require_unchanged()
        copy.seal(DiskNumber(1))
        while copy.verify_chunk():
            pass
        copy.publish(os.fsencode(name))
    finally:
        copy.close()
        for dirfd in dirfds:
            os.close(dirfd)


def paths(pool: PoolMount, *numbers: int) -> str:
    return ",".join(str(pool.disks[number - 1]) for number in numbers)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_copy_is_the_segment(moved: PoolMount, order: tuple[int, int]) -> None:
    listing, twins = list_with_twins(paths(moved, *order))
    assert [Path(segment.uri).parent for segment in listing.segments] == [moved.disks[1]]
    assert twins == []


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_source_that_was_written_to_since_is_another_file(moved: PoolMount, order: tuple[int, int]) -> None:
    with (moved.disks[0] / moved.path(0).name).open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(DuplicateSegmentError):
        list_segments(paths(moved, *order))


def test_a_file_of_the_same_name_elsewhere_is_another_file(moved: PoolMount, tmp_path: Path) -> None:
    copied = moved.disks[0] / moved.path(0).name
    (tmp_path / copied.name).write_bytes(copied.read_bytes())
    with pytest.raises(DuplicateSegmentError):
        list_segments(f"{paths(moved, 2)},{tmp_path}")


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3)])
def test_several_copies_of_one_file_are_one_segment(moved: PoolMount, order: tuple[int, ...]) -> None:
    """The disk of the first one was away while the second one was made. One that was written to has more."""
    copy_to(moved, 2, moved.path(0).name)
    listing, twins = list_with_twins(paths(moved, *order))
    assert (len(listing.segments), twins) == (1, [])
    for number in (2, 3):
        with (moved.disks[number - 1] / moved.path(0).name).open("r+b") as file:
            file.write(b"changed")
        if number == 2:
            (segment,) = list_segments(paths(moved, *order)).segments
            assert Path(segment.uri).parent == moved.disks[1]
    with pytest.raises(DuplicateSegmentError):
        list_segments(paths(moved, *order))
