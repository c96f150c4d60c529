import os
from pathlib import Path

import pytest

from commitlogfs.store import layout
from commitlogfs.store.moves.unreadable import (
    MOST_RANGES,
    UnreadableRanges,
    find_unreadable,
    parse_unreadable,
    read_unreadable,
    write_unreadable,
)


def test_neighbours_become_one_range() -> None:
    unreadable = UnreadableRanges([(8, 12), (0, 4), (4, 8), (20, 24)])
    assert unreadable.ranges == [(0, 12), (20, 24)]
    assert len(unreadable) == 16


def test_of_too_many_ranges_the_nearest_become_one() -> None:
    unreadable = UnreadableRanges((1000 * number, 1000 * number + 4) for number in range(MOST_RANGES))
    unreadable.add(1000 * MOST_RANGES, 1000 * MOST_RANGES + 4)
    unreadable.add(1000 * MOST_RANGES + 8, 1000 * MOST_RANGES + 12)
    assert len(unreadable.ranges) == MOST_RANGES
    assert unreadable.ranges[-1] == (1000 * MOST_RANGES, 1000 * MOST_RANGES + 12)


def test_the_ranges_are_an_attribute_that_ext4_has_room_for(workdir: Path) -> None:
    most = UnreadableRanges((2**30 - 1000 * number - 4, 2**30 - 1000 * number) for number in range(MOST_RANGES))
    for name in ("a", "b", "c"):
        (workdir / name).touch()
    with (workdir / "b").open("rb") as file:
        write_unreadable(file.fileno(), most)
        assert read_unreadable(file.fileno()).ranges == most.ranges
    assert len(os.getxattr(workdir / "b", layout.XATTR_UNREADABLE)) < 3000
    os.setxattr(workdir / "c", layout.XATTR_UNREADABLE, b"damaged")
    dirfd = os.open(workdir, os.O_RDONLY)
    try:
        ((name_found, found),) = find_unreadable(dirfd, [b"a", b"b", b"c", b"gone"])
    finally:
        os.close(dirfd)
    assert (name_found, found.ranges) == (b"b", most.ranges)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"x", b"3", b"null", b"{}", b"[3]", b"[[1]]", b'["ab"]', b"[" * 100_000, b"[[0,1],[2,1e999]]"),
        *(b"[[-1,2]]", b"[[2,1]]", b"[[1,1]]", b"[[0,true]]", b"[[0,1.5]]", b"[[0,9223372036854775808]]"),
        b"[[0," + b"9" * 5000 + b"]]",
    ],
)
def test_an_odd_value_counts_as_none(raw: bytes) -> None:
    assert parse_unreadable(raw).ranges == []
