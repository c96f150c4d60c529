import os
from pathlib import Path

from commitlogfs.store import layout
from commitlogfs.store.moves.unreadable import (
    MOST_RANGES,
    UnreadableRanges,
    find_unreadable,
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
