"""Which disks are too small for a pool."""

import pytest

from commitlogfs.store.disks.capacity import compare_size, require_room
from commitlogfs.store.errors import PoolError
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

SEGMENT = 1000


def of(total_bytes: int) -> DiskUsage:
    return DiskUsage(total_bytes, 0, 0)  # it is full of other files


def test_min_free_counts_if_it_leaves_less_than_full() -> None:
    thresholds = Thresholds(min_free_bytes=8000)
    (finding,) = compare_size("/data1", of(10_000), thresholds, SEGMENT)
    assert "below full = 90 % and beside min_free = 8,000, it has room for only 2 of them" in finding.message
    assert compare_size("/data1", of(11_000), thresholds, SEGMENT) == []
    with pytest.raises(PoolError, match=r"\[disk-too-small\]"):
        require_room("/data1", of(7000), thresholds, SEGMENT)


@pytest.mark.parametrize(
    ("total_bytes", "full", "room"),
    [
        (1111, 90, "none of them"),
        (1112, 90, "only 1 of them"),
        (3333, 90, "only 2 of them"),
        (3334, 90, ""),
        (6000, 50, ""),
        (5999, 50, "only 2 of them"),
        (0, 90, "none of them"),
    ],
)
def test_a_disk_has_room_for_what_is_never_removed(total_bytes: int, full: int, room: str) -> None:
    thresholds = Thresholds(clean=full - 10, force=full - 5, full=full)
    findings = compare_size("/data1", of(total_bytes), thresholds, SEGMENT)
    assert [room in finding.message for finding in findings] == ([True] if room else [])
    if room.startswith("none"):
        with pytest.raises(PoolError, match="/data1: its filesystem has"):
            require_room("/data1", of(total_bytes), thresholds, SEGMENT)
    else:
        require_room("/data1", of(total_bytes), thresholds, SEGMENT)
