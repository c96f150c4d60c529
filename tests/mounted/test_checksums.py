"""Checksums of sealed segments: which segments get one, when it is dropped, and that none is ever stale."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import checksums, page_cache
from support.checksums import NAME, NEWEST, await_checksums, backing, counts, required, shown
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

from commitlogfs.bench.page_cache import cached_pages_of
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]

BOTH_MODES = True
COUNT = 9
SEALED = range(COUNT - NEWEST)


@pytest.fixture(scope="module")
def filled(shared: PoolMount) -> PoolMount:
    """Nine segments; each test leaves them, and checksums of all sealed ones."""
    checksums.fill(shared, range(COUNT))
    await_checksums(shared, len(SEALED))
    return shared


def test_all_but_the_newest_get_one(filled: PoolMount) -> None:
    checksums.require_right(filled, SEALED)
    for index in range(COUNT):
        assert filled.path(index).stat().st_mtime_ns == checksums.LONG_AGO_NS + index
        assert (NAME in os.listxattr(filled.path(index))) == (index in SEALED)
        assert (shown(filled, index) is None) == (index not in SEALED)
        assert checksums.is_valid(backing(filled, index)) == (index in SEALED)
    assert counts(filled) == {"with": len(SEALED), "without": 0, "unread": 0, "computing": 0, "mismatches": []}
    metrics = filled.metrics()
    assert f'commitlogfs_checksum_segments{{pool="test",state="with"}} {len(SEALED)}.0' in metrics
    assert f'commitlogfs_checksums_computed_total{{pool="test"}} {len(SEALED)}.0' in metrics
    assert 'commitlogfs_checksum_bytes_total{pool="test"} 6.291456e+06' in metrics


def test_it_cannot_be_changed_through_the_mount(filled: PoolMount) -> None:
    with pytest.raises(PermissionError):
        os.setxattr(filled.path(1), NAME, b"")
    with pytest.raises(PermissionError):
        os.removexattr(filled.path(1), NAME)


def test_one_is_dropped_when_its_segment_is_among_the_newest_again(filled: PoolMount) -> None:
    gone = range(COUNT - 2, COUNT)
    for index in gone:
        filled.path(index).unlink()
    again = SEALED[-2:]
    assert [shown(filled, index) for index in again] == [None, None]
    eventually(lambda: not any(checksums.recorded(backing(filled, index)) for index in again))
    assert counts(filled)["with"] == len(SEALED) - 2
    checksums.fill(filled, gone)
    await_checksums(filled, len(SEALED))
    checksums.require_right(filled, SEALED)


@pytest.mark.parametrize("change", [checksums.write, checksums.store])
def test_a_changed_segment_shows_none_until_it_has_another(
    filled: PoolMount, change: Callable[[Path, bytes, int], None]
) -> None:
    before = shown(filled, 1)
    change(filled.path(1), change.__name__.encode(), time.time_ns() - 10**10)
    assert shown(filled, 1) in (None, required(backing(filled, 1)))
    await_checksums(filled, len(SEALED))
    assert shown(filled, 1) == required(backing(filled, 1)) != before


def test_a_store_to_an_open_mapping_is_never_missed(filled: PoolMount) -> None:
    """With passthrough, it reaches the disk's file without a request to the daemon."""
    if not filled.passes_through:
        pytest.skip("the store reaches the daemon with msync only")
    with filled.path(1).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        for number in range(1, 20):
            mapping[number] = number
            assert shown(filled, 1) in (None, required(backing(filled, 1)))
            time.sleep(0.05)
    os.utime(filled.path(1), ns=(checksums.LONG_AGO_NS, checksums.LONG_AGO_NS + 1))
    await_checksums(filled, len(SEALED))
    checksums.require_right(filled, SEALED)


def test_a_damaged_value_counts_as_absent(filled: PoolMount) -> None:
    path = backing(filled, 1)
    value = bytearray(os.getxattr(path, layout.XATTR_CHECKSUM))
    value[5] ^= 1
    os.setxattr(path, layout.XATTR_CHECKSUM, bytes(value))
    assert shown(filled, 1) is None
    assert NAME not in os.listxattr(filled.path(1))
    await_checksums(filled, len(SEALED))
    checksums.require_right(filled, SEALED)


@page_cache.kept()
def test_cold_segments_and_read_only_disks(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    """Segments from before the first mount: cached pages stay, no others come; a read-only disk is left alone."""
    disks = [disk_farm.add(fstype).path / "commitlog" for fstype in ("ext4", "ext4", "ext4")]
    for disk in disks:
        disk.mkdir()
    pool = make_pool(disks=disks, disk_settings={1: {"readonly": "true"}})
    hot = [0, 2, 3]
    for index in range(COUNT):
        path = disks[index % 3] / pool.path(index).name
        path.write_bytes(segment_bytes(index, MIB))
        os.utime(path, ns=(checksums.LONG_AGO_NS, checksums.LONG_AGO_NS))
        if index not in hot:
            cool(path)
    pool.start()
    on_it = [index for index in SEALED if index % 3 == 1]
    await_checksums(pool, len(SEALED) - len(on_it))
    eventually(lambda: counts(pool)["without"] == len(on_it))
    pages = {index: cached_pages_of([backing(pool, index)]) for index in SEALED}
    assert not any(pages[index] for index in SEALED if index not in hot)
    assert MIB // mmap.PAGESIZE in [pages[index] for index in hot], "those of all files have gone, not of one only"
    assert not any(checksums.recorded(backing(pool, index)) for index in on_it)


def cool(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
