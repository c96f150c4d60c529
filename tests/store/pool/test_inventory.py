"""Directories with everything that can go wrong in them, scanned and judged."""

import os
import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.files import open_disk, packed_attributes

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.losses import Loss, Run
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.filesystem import FilesystemKind, Suitability
from commitlogfs.store.findings import FindingCode, Severity
from commitlogfs.store.pool.catalog import Role
from commitlogfs.store.pool.inventory import Inventory, take_inventory
from commitlogfs.store.pool.scan import DiskScan, scan_directory, sizes_present
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096


def name(index: int) -> str:
    return format_segment_name(index * SIZE).decode()


@pytest.fixture
def disks(workdir):
    with ExitStack() as stack:
        opened = []
        for number in (1, 2, 3):
            directory = workdir / f"disk{number}"
            directory.mkdir()
            opened.append(stack.enter_context(open_disk(directory, number)))
        yield opened


def put(disk: Disk, file: str, content: bytes = b"x" * SIZE) -> Path:
    path = Path(disk.path) / file
    path.write_bytes(content)
    return path


def look(disks: list[Disk]) -> Inventory:
    return take_inventory([(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks], SIZE)


def served(inventory: Inventory) -> dict[int, int]:
    return {segment.base_offset // SIZE: segment.disk for segment in inventory.catalog}


def codes(inventory: Inventory) -> list[FindingCode]:
    return [finding.code for finding in inventory.findings]


def test_a_sound_pool_has_no_findings(disks):
    for index in range(9):
        put(disks[index % 3], name(index))
    (Path(disks[0].path) / "lost+found").mkdir()
    (Path(disks[1].path) / ".commitlogfs").mkdir()
    inventory = look(disks)
    assert inventory.findings == []
    assert inventory.quarantined == {}
    assert served(inventory) == {index: index % 3 + 1 for index in range(9)}


def test_an_empty_pool_has_no_findings(disks):
    assert look(disks).findings == []
    assert look([]).findings == []


def test_a_duplicate_is_quarantined_and_named_with_both_places(disks):
    for index in range(3):
        put(disks[index], name(index))
    put(disks[2], name(1))
    inventory = look(disks)
    assert served(inventory) == {0: 1, 2: 3}
    assert name(1).encode() in inventory.quarantined
    duplicate = next(f for f in inventory.findings if f.code is FindingCode.DUPLICATE_SEGMENT)
    assert duplicate.severity is Severity.REFUSES
    assert disks[1].path in duplicate.message
    assert disks[2].path in duplicate.message
    assert duplicate.file == name(1)


def test_even_equal_copies_three_times_are_one_finding(disks):
    for disk in disks:
        put(disk, name(0))
    inventory = look(disks)
    assert served(inventory) == {}
    assert codes(inventory) == [FindingCode.DUPLICATE_SEGMENT]


@pytest.mark.parametrize(("newest_missing", "expected"), [(2, {1, 3}), (0, {1, 2, 3})])
def test_empty_files_that_a_missing_disk_may_hold(disks, newest_missing, expected):
    put(disks[0], name(0), b"")
    put(disks[1], name(1))
    put(disks[2], name(2), b"")
    opened = put(disks[0], name(3), b"").stat().st_ino
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(
        scans, SIZE, {(disks[0].number, opened)}, newest_missing=BaseOffset(newest_missing * SIZE)
    )
    assert set(served(inventory)) == expected
    assert inventory.leftovers == []  # which would be removed
    warned = [f.file for f in inventory.findings if "a missing disk may hold" in f.message]
    assert warned == [name(index) for index in (0, 2) if index not in expected]


class Undone:
    """Segments 0 to 2 with data, then one that is missing, and `ahead` without data."""

    def __init__(self, disks: list[Disk], ahead: int = 1) -> None:
        self.disks = disks
        for index in range(3):
            put(disks[index], name(index))
        self.inodes = {
            (disks[0].number, put(disks[0], name(4 + index), b"\0" * SIZE).stat().st_ino) for index in range(ahead)
        }

    def look(self, undone_after: int | None = 2, *, opened: bool = False, **more: Any) -> Inventory:
        return take_inventory(
            [(disk, scan_directory(disk.dirfd, SIZE)) for disk in self.disks],
            SIZE,
            self.inodes if opened else frozenset(),
            lambda segment: (segment.disk, segment.ino) in self.inodes,
            undone_after=None if undone_after is None else undone_after * SIZE,
            **more,
        )


@pytest.mark.parametrize("ahead", [1, 2])
def test_what_was_made_ahead_of_an_undone_segment_is_a_leftover(disks, ahead):
    inventory = Undone(disks, ahead).look()
    assert set(served(inventory)) == {0, 1, 2}
    assert codes(inventory) == [FindingCode.EMPTY_LEFTOVER] * ahead
    assert [one.base_offset // SIZE for one in inventory.leftovers] == list(range(4, 4 + ahead))


def test_an_undone_size_leaves_a_leftover_too(disks):
    undone = Undone(disks)
    put(disks[1], name(3), b"")
    inventory = undone.look(undone_after=4)
    assert set(served(inventory)) == {0, 1, 2, 3}
    assert codes(inventory) == [FindingCode.EMPTY_LEFTOVER, FindingCode.UNSIZED_SEGMENT]


def test_a_segment_that_all_disks_have_recorded_was_not_undone(disks):
    for inventory in (Undone(disks).look(undone_after=3), Undone(disks).look(undone_after=None)):
        assert set(served(inventory)) == {0, 1, 2, 4}
        assert codes(inventory) == [FindingCode.GAP]


def test_a_gap_before_data_is_no_undone_segment(disks):
    undone = Undone(disks)
    put(disks[1], name(5))
    inventory = undone.look()
    assert set(served(inventory)) == {0, 1, 2, 4, 5}
    assert FindingCode.GAP in codes(inventory)


def test_more_than_a_broker_makes_ahead_is_not_set_aside(disks):
    inventory = Undone(disks, 3).look()
    assert set(served(inventory)) == {0, 1, 2, 4, 5, 6}
    assert codes(inventory) == [FindingCode.GAP]


def test_what_was_made_ahead_and_is_open_is_served(disks):
    inventory = Undone(disks).look(opened=True)
    assert set(served(inventory)) == {0, 1, 2, 4}


def test_a_quarantined_segment_was_not_undone(disks):
    undone = Undone(disks)
    for disk in disks[:2]:
        put(disk, name(3))
    inventory = undone.look()
    assert set(served(inventory)) == {0, 1, 2, 4}
    assert {FindingCode.DUPLICATE_SEGMENT, FindingCode.GAP} == set(codes(inventory))


def test_a_gap_of_an_accepted_loss_is_no_undone_segment(disks):
    inventory = Undone(disks).look(losses=(Loss(4, "/data4", 1, (Run(3, 1, 1, 1),)),))
    assert set(served(inventory)) == {0, 1, 2, 4}
    assert codes(inventory) == [FindingCode.ACCEPTED_LOSS]


@pytest.mark.parametrize(("newest_missing", "expected"), [(2, {1, 2, 3}), (1, {1, 2, 3}), (3, {1, 3})])
def test_whole_files_without_data_that_a_missing_disk_may_hold(disks, newest_missing, expected):
    """Only the newest segment can be one: a broker makes one ahead. Another one may be a leftover."""
    files = [(disks[index % 3].number, put(disks[index % 3], name(index)).stat().st_ino) for index in range(4)]
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(
        scans,
        SIZE,
        {files[3]},
        newest_missing=BaseOffset(newest_missing * SIZE),
        without_data={files[0], files[2], files[3]},
    )
    assert set(served(inventory)) == expected
    assert inventory.leftovers == []  # which would be removed
    warned = [f.file for f in inventory.findings if "a missing disk may hold" in f.message]
    assert warned == [name(index) for index in (0, 2) if index not in expected]


def test_a_leftover_of_the_segment_being_written_is_not_served(disks):
    """The newest segment is made ahead, and the one before it holds the latest messages: those are on the missing
    disk, if the file here has none."""
    files = [(disks[index % 3].number, put(disks[index % 3], name(index)).stat().st_ino) for index in range(4)]
    inventory = take_inventory(
        [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks],
        SIZE,
        newest_missing=BaseOffset(3 * SIZE),
        without_data=set(files[2:]),
    )
    assert set(served(inventory)) == {0, 1, 3}
    assert FindingCode.GAP in codes(inventory)
    assert inventory.leftovers == []


def test_an_empty_file_in_use_beside_a_missing_disk(disks):
    ino = put(disks[0], name(0), b"").stat().st_ino
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, {(disks[0].number, ino)}, newest_missing=BaseOffset(0))
    assert served(inventory) == {0: 1}


@pytest.mark.parametrize("real", [0, 2])
def test_an_empty_copy_gives_way_to_the_one_with_content(disks, real):
    for index in range(3):
        put(disks[index], name(index))
    put(disks[2 - real], name(real), b"")
    inventory = look(disks)
    assert served(inventory) == {0: 1, 1: 2, 2: 3}
    assert inventory.quarantined == {}
    (left,) = inventory.leftovers
    assert (left.name, left.disk, left.role) == (name(real).encode(), 3 - real, Role.GIVEN_UP)
    assert [(f.code, f.severity) for f in inventory.findings] == [(FindingCode.EMPTY_LEFTOVER, Severity.NOTE)]


def scanned(*files: tuple[int, int, int, int]) -> list[tuple[Disk, DiskScan]]:
    """Made-up disks, each with one file of segment 0: (inode, size, links, birth time)."""
    return [
        (_disk(number), DiskScan([(BaseOffset(0), packed_attributes(ino, size, nlink=nlink, btime_ns=btime))]))
        for number, (ino, size, nlink, btime) in enumerate(files, start=1)
    ]


@pytest.mark.parametrize(
    ("files", "opened", "kept"),
    [
        ([(7, 0, 1, 50), (8, 0, 1, 90)], [], 2),  # the younger one: a leftover was there first
        ([(7, 0, 1, 90), (8, 0, 1, 50)], [], 1),
        ([(7, 0, 1, 50), (8, 0, 1, 90)], [(1, 7)], 1),  # somebody may write there
        ([(7, 0, 1, 50), (8, SIZE, 1, 90)], [(1, 7)], None),  # both may be the segment
        ([(7, 0, 1, 50), (8, 0, 2, 90)], [], 2),  # a file with another name: not understood
        ([(7, 0, 2, 50), (8, SIZE, 1, 90)], [], None),
        ([(7, 0, 1, 50), (8, SIZE, 1, 90), (9, SIZE, 1, 90)], [], None),
    ],
)
def test_which_of_two_copies_is_the_segment(files, opened, kept):
    inventory = take_inventory(scanned(*files), SIZE, frozenset(opened))
    assert served(inventory) == ({} if kept is None else {0: kept})
    assert len(inventory.leftovers) == (0 if kept is None else len(files) - 1)
    assert len(inventory.quarantined) == (kept is None)


def test_a_full_copy_that_was_never_written_gives_way():
    scans = scanned((7, SIZE, 1, 50), (8, SIZE, 1, 90))
    assert served(take_inventory(scans, SIZE, holds_nothing=lambda file: file.ino == 7)) == {0: 2}
    assert served(take_inventory(scans, SIZE, holds_nothing=lambda file: file.ino == 8)) == {0: 1}
    assert served(take_inventory(scans, SIZE, holds_nothing=lambda file: True)) == {0: 2}


def test_an_empty_file_before_the_log_is_left_over(disks):
    put(disks[0], name(3), b"")
    put(disks[1], name(4))
    inventory = look(disks)
    assert served(inventory) == {4: 2}
    assert [file.name for file in inventory.leftovers] == [name(3).encode()]


def test_an_empty_file_before_the_log_that_is_open_is_served(disks):
    opened = put(disks[0], name(3), b"").stat().st_ino
    put(disks[1], name(4))
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, frozenset({(disks[0].number, opened)}))
    assert served(inventory) == {3: 1, 4: 2}
    assert inventory.leftovers == []


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1, 2 * SIZE])
def test_a_wrong_size_is_quarantined(disks, size):
    put(disks[0], name(0), b"x" * size)
    inventory = look(disks)
    assert served(inventory) == {}
    assert codes(inventory) == [FindingCode.WRONG_SIZE]
    assert str(size) in inventory.findings[0].message
    assert str(size) in inventory.quarantined[name(0).encode()]


def test_one_wrong_size_of_all_segments_puts_the_pool_in_doubt(disks):
    put(disks[0], name(0), b"x" * 2 * SIZE)
    put(disks[1], name(2), b"x" * 2 * SIZE)
    put(disks[1], name(4), b"")
    remedies = {f.remedy for f in look(disks).findings if f.code is FindingCode.WRONG_SIZE}
    assert len(remedies) == 1
    assert f"write segment_size = {2 * SIZE}, and run `commitlogfs adopt`" in remedies.pop()


@pytest.mark.parametrize("other", [SIZE, 3 * SIZE, 0])
@pytest.mark.parametrize(
    ("size", "remedy"), [(SIZE // 2, "complete or repeat the copy"), (2 * SIZE, f"`truncate -s {SIZE} FILE`")]
)
def test_a_wrong_size_of_some_segments_is_their_own(disks, size, other, remedy):
    put(disks[0], name(0), b"x" * size)
    put(disks[1], name(2), b"x" * other)
    remedies = [f.remedy for f in look(disks).findings if f.code is FindingCode.WRONG_SIZE]
    assert remedy in remedies[0]


def test_a_long_segment_of_a_served_pool_is_whole(disks):
    put(disks[0], name(0), b"x" * 2 * SIZE)
    put(disks[1], name(1), b"x" * (SIZE // 2))
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, is_served=True)
    assert served(inventory) == {0: disks[0].number}
    assert list(inventory.quarantined) == [name(1).encode()]


@pytest.mark.parametrize("size", [1, SIZE + 1])
def test_a_wrong_size_of_an_opened_file_is_for_its_users_to_put_right(disks, size):
    opened = put(disks[0], name(0), b"x" * size).stat().st_ino
    put(disks[0], name(1), b"x" * size)
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, frozenset({(disks[0].number, opened)}))
    assert served(inventory) == {0: disks[0].number}
    assert list(inventory.quarantined) == [name(1).encode()]


def test_an_unsized_segment_is_served_and_is_no_gap(disks):
    put(disks[0], name(0))
    put(disks[1], name(1), b"")
    inventory = look(disks)
    assert served(inventory) == {0: 1, 1: 2}
    assert [(f.code, f.severity) for f in inventory.findings] == [(FindingCode.UNSIZED_SEGMENT, Severity.NOTE)]


def test_an_unsized_segment_does_not_close_a_gap(disks):
    put(disks[0], name(0))
    put(disks[1], name(1), b"")
    put(disks[2], name(2))
    assert FindingCode.GAP in codes(look(disks))


@pytest.mark.parametrize(
    ("present", "gaps"),
    [
        ([0, 2], [name(1)]),
        ([5, 9], [f"{name(6)} to {name(8)}"]),
        ([0, 1, 3, 4, 7], [name(2), f"{name(5)} to {name(6)}"]),
        ([7, 8, 9], []),  # a log may begin anywhere
    ],
)
def test_gaps_are_named(disks, present, gaps):
    for index in present:
        put(disks[index % 3], name(index))
    found = [f for f in look(disks).findings if f.code is FindingCode.GAP]
    assert [f.file for f in found] == gaps
    assert all(f.severity is Severity.REFUSES for f in found)


def test_a_quarantined_segment_in_the_middle_is_a_gap_too(disks):
    for index in range(3):
        put(disks[index], name(index))
    put(disks[1], name(1), b"short")
    assert codes(look(disks)) == [FindingCode.WRONG_SIZE, FindingCode.GAP]


def _plant(path: Path, kind: str) -> None:
    match kind:
        case "symbolic link":
            path.symlink_to("/etc/passwd")
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                fd = os.open(path.parent, os.O_RDONLY)
                sock.bind(f"/proc/self/fd/{fd}/{path.name}")
                os.close(fd)
        case "character device":
            os.mknod(path, 0o20600, os.makedev(1, 3))


@pytest.mark.root
@pytest.mark.parametrize("kind", ["symbolic link", "directory", "fifo", "socket", "character device"])
@pytest.mark.parametrize("file", [name(1), f".{name(1)}.abc"])
def test_what_only_looks_like_a_segment_is_never_served(disks, kind, file):
    put(disks[0], name(0))
    _plant(Path(disks[1].path) / file, kind)
    inventory = look(disks)
    assert served(inventory) == {0: 1}
    assert inventory.temporaries == {}
    assert codes(inventory) == [FindingCode.NOT_A_REGULAR_FILE]
    assert kind in inventory.findings[0].message
    assert kind in inventory.quarantined[file.encode()]


@pytest.mark.parametrize("file", ["README", name(0)[1:], f"{SIZE + 1:020d}", "x" * 200, ".hidden", "sub"])
def test_aliens_are_reported_and_not_served(disks, file):
    put(disks[0], file)
    inventory = look(disks)
    assert served(inventory) == {}
    assert [(f.code, f.file) for f in inventory.findings] == [(FindingCode.ALIEN_FILE, file)]


def test_names_that_are_no_text_are_reported_readably(disks):
    fd = os.open(os.fsencode(disks[0].path) + b"/\xff\n\xfe", os.O_CREAT | os.O_WRONLY)
    os.close(fd)
    inventory = look(disks)
    assert codes(inventory) == [FindingCode.ALIEN_FILE]
    inventory.findings[0].file.encode()


def test_unfinished_copies_are_kept_and_noted(disks):
    file = f".{name(1)}.Ab12"
    put(disks[0], file, b"part")
    inventory = look(disks)
    assert list(inventory.temporaries) == [file.encode()]
    assert inventory.temporaries[file.encode()].base_offset == SIZE
    assert [(f.code, f.severity) for f in inventory.findings] == [(FindingCode.UNFINISHED_COPY, Severity.NOTE)]


@pytest.mark.parametrize("count", [2, 3])
def test_one_temporary_on_several_disks_is_quarantined(disks, count):
    file = f".{name(1)}.Ab12"
    for disk in disks[:count]:
        put(disk, file, b"part")
    inventory = look(disks)
    assert inventory.temporaries == {}
    assert file.encode() in inventory.quarantined


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("content", [b"part", b""])
def test_of_a_temporary_on_two_disks_the_one_in_use_is_served(disks, kept, content):
    """A disk that failed keeps the empty file of a copy that was then begun on another disk."""
    file = f".{name(1)}.Ab12"
    paths = [put(disk, file, content if index == kept else b"") for index, disk in enumerate(disks[:2])]
    opened = {(disks[kept].number, paths[kept].stat().st_ino)}
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, opened)
    assert inventory.temporaries[file.encode()].disk == disks[kept].number
    assert inventory.quarantined == {}
    assert [(one.name, one.disk) for one in inventory.leftovers] == [(file.encode(), disks[1 - kept].number)]
    assert set(codes(inventory)) == {FindingCode.EMPTY_LEFTOVER, FindingCode.UNFINISHED_COPY}


def test_a_temporary_with_data_on_two_disks_is_quarantined_although_one_is_in_use(disks):
    file = f".{name(1)}.Ab12"
    paths = [put(disk, file, b"part") for disk in disks[:2]]
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, {(disks[0].number, paths[0].stat().st_ino)})
    assert inventory.temporaries == {}
    assert inventory.leftovers == []
    assert file.encode() in inventory.quarantined


def test_a_half_made_rename_is_told_from_a_copy_with_the_same_content(disks):
    path = put(disks[0], name(0))
    os.link(path, Path(disks[0].path) / f".{name(0)}.stale")
    put(disks[0], f".{name(0)}.copy")
    inventory = look(disks)
    assert [file.placed_as for file in inventory.stale_temporaries] == [f".{name(0)}.stale".encode()]
    assert list(inventory.temporaries) == [f".{name(0)}.copy".encode()]


def test_a_scan_is_complete_or_it_fails(workdir):
    directory = workdir / "gone"
    directory.mkdir()
    with open_disk(directory) as disk:
        put(disk, name(0))
        (directory / name(0)).unlink()
        directory.rmdir()
        assert scan_directory(disk.dirfd, SIZE) == DiskScan()
        os.close(disk.dirfd)
        disk.dirfd = os.open("/dev/null", os.O_RDONLY)
        with pytest.raises(NotADirectoryError):
            scan_directory(disk.dirfd, SIZE)


def test_sizes_present_tell_the_segment_size(disks):
    put(disks[0], name(0))
    put(disks[0], name(1), b"")
    put(disks[0], "README", b"four")
    put(disks[0], name(2))
    put(disks[0], name(3), b"four")
    assert sizes_present(disks[0].dirfd) == {SIZE: 2, 4: 1}


entries = st.tuples(st.integers(0, 12), st.sampled_from([0, SIZE, SIZE, SIZE, 17]))
pools = st.lists(st.lists(entries, max_size=8, unique_by=lambda entry: entry[0]), min_size=1, max_size=3)


@settings(max_examples=60)
@given(pools)
def test_each_file_is_served_or_quarantined_or_left_over(described):
    """Without directories: the same judgement from made-up scans."""
    scans = []
    ino = 0
    where: dict[int, list[tuple[int, int]]] = {}
    for number, entries in enumerate(described, start=1):
        scan = DiskScan()
        for index, size in entries:
            ino += 1
            scan.segments.append((BaseOffset(index * SIZE), packed_attributes(ino, size)))
            where.setdefault(index, []).append((number, size))
        scans.append((_disk(number), scan))
    inventory = take_inventory(scans, SIZE)
    # Of several files with one name those without content give way to the one that has some.
    with_content = {index: [place for place in places if place[1]] or places[:1] for index, places in where.items()}
    begins = min((index for index, places in with_content.items() if places == [(places[0][0], SIZE)]), default=0)
    good = {
        index: places[0][0]
        for index, places in with_content.items()
        if len(places) == 1 and (places[0][1] == SIZE or (not places[0][1] and index >= begins))
    }
    bad = {index for index, places in with_content.items() if len(places) > 1 or places[0][1] == 17}
    left = {(index, number) for index, places in where.items() for number, size in places if not size}
    left -= set(good.items())
    left = {(index, number) for index, number in left if len(with_content[index]) == 1}
    assert served(inventory) == good
    assert {(file.base_offset // SIZE, file.disk) for file in inventory.leftovers} == left
    assert set(inventory.quarantined) == {name(index).encode() for index in bad}
    refusing = [f for f in inventory.findings if f.severity >= Severity.REFUSES and f.code is not FindingCode.GAP]
    assert len(refusing) == len(inventory.quarantined)
    whole = sorted(index for index in good if with_content[index][0][1])
    missing = sum(b - a - 1 for a, b in pairwise(whole))
    told = 0
    for finding in inventory.findings:
        if finding.code is FindingCode.GAP:
            told += int(finding.message.split()[0])
    assert told == missing


def _disk(number: int) -> Disk:
    kind = FilesystemKind("ext4", Suitability.FULL, "")
    return Disk(DiskNumber(number), f"id{number}", f"/data{number}", -1, kind, Thresholds())
