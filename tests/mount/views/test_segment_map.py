"""The picture of the stripes: what every cell says, and that it fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.mount.views.segment_map import ASCII, BLOCKS, draw, symbols_for

SIZE = 4096


def picture(owners, width=80, first=0, disks=3, symbols=ASCII, path="/data{}"):
    """`owners`: the disk of each segment in order, 0 for a missing one."""
    segments = [(first + index * SIZE, owner) for index, owner in enumerate(owners) if owner]
    return draw([(n, path.format(n)) for n in range(1, disks + 1)], segments, SIZE, width, symbols)


def lines_of(drawn):
    rows = [row.label + row.cells for row in (*drawn.rows, *([drawn.gaps] if drawn.gaps else []))]
    return [*rows, *drawn.axis, *drawn.legend]


def test_twelve_segments_on_three_disks():
    assert lines_of(picture([1, 2, 3] * 4, width=60)) == [
        "1 /data1 4  ### ... ... ### ... ... ### ... ... ### ... ...",
        "2 /data2 4  ... ### ... ... ### ... ... ### ... ... ### ...",
        "3 /data3 4  ... ... ### ... ... ### ... ... ### ... ... ###",
        "            |-----------------------+---------------------|",
        "            0                       24576             49152",
        "# a segment   . on another disk",
    ]


def test_gaps_have_a_row_of_their_own():
    assert lines_of(picture([1, 2, 0, 0, 2, 3], width=18)) == [
        "1 /data1 1  #.....",
        "2 /data2 2  .#..#.",
        "3 /data3 1  .....#",
        "      gaps    xx",
        "            |----|",
        "        0 to 24576",
        "# a segment   . on another disk   x missing: no disk holds it",
    ]


def test_more_segments_than_columns_are_shaded_by_count():
    # 12 columns of 10; disk 1 holds all of them at first, then half, a tenth, none.
    owners = [1] * 30 + [1, 2] * 15 + ([1] + [2] * 9) * 3 + [2] * 30
    assert lines_of(picture(owners, width=26, disks=2)) == [
        "1 /data1 48  ###+++---...",
        "2 /data2 72  ...+++######",
        "             |----------|",
        "             0     491520",
        "a column is 10 segments; of these the disk holds:",
        ". none   - 1 to 2   + 3 to 5   * 6 to 7   # 8 to 10",
    ]


def test_a_gap_shows_in_a_shaded_column():
    drawn = picture([1] * 5 + [0] + [1] * 94, width=62, disks=1)
    assert drawn.gaps is not None
    assert drawn.gaps.cells == " x"
    assert drawn.legend[-1] == "x some are missing on all disks"


def test_one_segment():
    assert lines_of(picture([2], first=5 * SIZE)) == [
        "1 /data1 0  ...",
        "2 /data2 1  ###",
        "3 /data3 0  ...",
        "            |-|",
        "            20480 to 24576",
        "# a segment   . on another disk",
    ]


def test_a_disk_without_segments_is_a_row_too():
    assert [row.cells for row in picture([1, 3], disks=4).rows] == ["### ...", "... ...", "... ###", "... ..."]


def test_a_gap_wider_than_any_memory():
    drawn = draw([(1, "/d")], [(0, 1), (2**62, 1)], SIZE, 80, ASCII)
    assert drawn.gaps is not None
    assert max(map(len, lines_of(drawn))) <= 80


def test_long_paths_keep_both_ends():
    (row, *_) = picture([1], path="/a/very/long/way/to/the/directory/of/disk{}/commitlog").rows
    assert row.label.startswith("1 /a/very/long")
    assert "1/commitlog 1" in row.label
    assert "~" in row.label


@given(
    owners=st.lists(st.integers(0, 12), min_size=1, max_size=400).filter(lambda o: o[0] and o[-1]),
    width=st.integers(40, 200),
    path=st.sampled_from(["/d{}", "/data{}/rocketmq/commitlog", "/x" * 60 + "{}"]),
)
def test_it_fits_and_every_segment_and_gap_shows(owners, width, path):
    drawn = picture(owners, width=width, disks=12, path=path)
    assert all(len(row.label + row.cells) <= width for row in drawn.rows)
    assert all(len(line) <= width for line in drawn.axis)
    for number, row in enumerate(drawn.rows, start=1):
        assert any(symbol in row.cells for symbol in ASCII.shades) == (number in owners)
        assert f" {owners.count(number)} " in f"{row.label} "
    assert (drawn.gaps is not None) == (0 in owners)


@pytest.mark.parametrize(
    ("encoding", "symbols"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("iso-8859-1", ASCII), (None, ASCII), ("unheard-of", ASCII)],
)
def test_symbols_are_what_the_output_can_take(encoding, symbols):
    assert symbols_for(encoding) is symbols
