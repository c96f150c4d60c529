"""Removing, with every state a crash can leave read again."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.files import names_in, open_disk, pool_of

from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.files import remove
from commitlogfs.store.files.attributes import ino_of
from commitlogfs.store.files.usage import DiskUsage, UsageAfter
from commitlogfs.store.pool.catalog import Role
from commitlogfs.store.pool.inventory import take_inventory
from commitlogfs.store.pool.open import Pool, find_retired, reserve_newest, sweep
from commitlogfs.store.pool.scan import scan_directory
from commitlogfs.store.segment import format_segment_name

SIZE = 4096
NAME = format_segment_name(SIZE)
TEMPORARY = b"." + NAME + b".abc"


@pytest.fixture
def disk(workdir):
    with open_disk(workdir) as disk:
        yield disk


def make(disk: Disk, name: bytes = NAME, content: bytes = b"x" * SIZE) -> Path:
    path = Path(disk.path) / os.fsdecode(name)
    path.write_bytes(content)
    return path


def retire(disk: Disk, name: bytes) -> bytes:
    """Its name in the directory of retired files."""
    ino = (Path(disk.path) / os.fsdecode(name)).stat().st_ino
    retired = remove.retire_file(disk.dirfd, name, ino)
    assert not retired.vanished
    return retired.name


def reopened(disk: Disk) -> Pool:
    """The inventory of a fresh mount."""
    inventory = take_inventory([(disk, scan_directory(disk.dirfd, SIZE))], SIZE)
    return pool_of([disk], inventory, SIZE)


def test_an_unopened_file_is_unlinked_and_a_repeated_request_succeeds(disk):
    make(disk)
    usage = remove.remove_file(disk.dirfd, NAME)
    assert usage.total_bytes > 0
    assert names_in(disk.path) == []
    remove.remove_file(disk.dirfd, NAME)


def test_a_retired_file_keeps_its_content_until_it_is_dropped(disk):
    path = make(disk)
    with path.open("rb") as held:
        retired = retire(disk, NAME)
        assert names_in(disk.path) == [".commitlogfs"]
        ((name, base, attributes),) = remove.list_retired(disk.dirfd)
        assert (name, base, ino_of(attributes)) == (retired, SIZE, os.fstat(held.fileno()).st_ino)
        assert held.read() == b"x" * SIZE
    remove.drop_retired(disk.dirfd, retired)
    assert names_in(disk.path) == [], "the directory goes with its last file"
    remove.drop_retired(disk.dirfd, retired)


def test_the_same_name_can_be_retired_many_times(disk):
    retired = set()
    for round_ in range(5):
        make(disk, content=b"%d" % round_)
        retired.add(retire(disk, NAME))
    assert {name for name, _, _ in remove.list_retired(disk.dirfd)} == retired
    assert len(retired) == 5
    for left, name in zip((4, 3, 2, 1, 0), sorted(retired), strict=True):
        remove.drop_retired(disk.dirfd, name)
        assert len(remove.list_retired(disk.dirfd)) == left


@pytest.mark.parametrize("make_it", [os.mkdir, os.mkfifo, lambda path: os.symlink("elsewhere", path)])
def test_only_regular_files_are_retired_segments(disk, make_it):
    make(disk)
    retired = retire(disk, NAME)
    make_it(Path(disk.path) / ".commitlogfs" / f"{NAME.decode()}.0123abcd.damaged")
    assert [name for name, _, _ in remove.list_retired(disk.dirfd)] == [retired]


def test_a_temporary_can_be_retired(disk):
    make(disk, TEMPORARY)
    retired = retire(disk, TEMPORARY)
    assert remove.list_retired(disk.dirfd)[0][:2] == (retired, SIZE)


def test_retiring_what_is_not_there_says_so_and_leaves_no_directory(disk):
    """A process that has it open reads on by the descriptor; the last close finds nothing to free."""
    retired = remove.retire_file(disk.dirfd, NAME, 4711)
    assert retired.vanished
    assert names_in(disk.path) == []
    remove.drop_retired(disk.dirfd, retired.name)
    assert names_in(disk.path) == []


def test_another_file_in_its_place_is_not_retired(disk):
    with make(disk).open("rb") as held:
        (Path(disk.path) / os.fsdecode(NAME)).rename(Path(disk.path) / "aside")
        make(disk, content=b"mine")
        with pytest.raises(OSError, match="another file") as refused:
            remove.retire_file(disk.dirfd, NAME, os.fstat(held.fileno()).st_ino)
    assert refused.value.errno == errno.ELOOP
    assert names_in(disk.path) == [NAME.decode(), "aside"]
    assert (Path(disk.path) / os.fsdecode(NAME)).read_bytes() == b"mine"


@pytest.mark.parametrize("planted_when", ["the directory cannot be made", "the file cannot be moved"])
def test_without_room_only_the_own_file_is_unlinked(disk, monkeypatch, planted_when):
    """Somebody puts a file of his own there while we find that there is no room."""
    place = make(disk)
    ino, rename = place.stat().st_ino, os.rename

    def refuse(*_args: object, **_options: object) -> None:
        rename(place, place.with_name("aside"))
        make(disk, content=b"mine")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir" if planted_when == "the directory cannot be made" else "rename", refuse)
    with pytest.raises(OSError, match="another file"):
        remove.retire_file(disk.dirfd, NAME, ino)
    assert place.read_bytes() == b"mine"
    assert place.with_name("aside").read_bytes() == b"x" * SIZE


def test_a_punch_zeroes_what_nobody_else_has_a_name_for(disk):
    with make(disk).open("rb") as held, make(disk, TEMPORARY).open("rb+") as unlinked:
        retired = retire(disk, NAME)
        remove.punch_retired(disk.dirfd, retired, os.fstat(held.fileno()).st_ino, SIZE)
        assert held.read() == bytes(SIZE)
        (Path(disk.path) / os.fsdecode(TEMPORARY)).unlink()
        remove.punch_fd(unlinked.fileno(), disk.dirfd, b"never there", SIZE)
        assert unlinked.read() == bytes(SIZE)


@pytest.mark.parametrize("kept", ["moved out of the log", "moved out of the retired directory", "linked"])
def test_a_punch_leaves_alone_what_somebody_keeps(disk, workdir, kept):
    place, aside = make(disk), workdir / "aside"
    with place.open("rb+") as held:
        ino = os.fstat(held.fileno()).st_ino
        match kept:
            case "moved out of the log":
                place.rename(aside)
                retired = remove.retire_file(disk.dirfd, NAME, ino).name
            case "moved out of the retired directory":
                retired = retire(disk, NAME)
                (Path(disk.path) / ".commitlogfs" / os.fsdecode(retired)).rename(aside)
            case _:
                os.link(place, aside)
                retired = retire(disk, NAME)
        with pytest.raises(FileNotFoundError):
            remove.punch_fd(held.fileno(), disk.dirfd, retired, SIZE)
        with pytest.raises(FileNotFoundError):
            remove.punch_retired(disk.dirfd, retired, ino, SIZE)
    assert aside.read_bytes() == b"x" * SIZE


@pytest.mark.parametrize("planted", ["symlink", "file"])
def test_a_planted_retired_directory_is_not_followed(disk, planted, base_directory):
    make(disk)
    elsewhere = base_directory / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    place = Path(disk.path) / ".commitlogfs"
    place.symlink_to(elsewhere) if planted == "symlink" else place.write_text("")
    with pytest.raises(OSError):  # noqa: PT011 - ELOOP or ENOTDIR
        retire(disk, NAME)
    assert names_in(elsewhere) == []
    assert NAME.decode() in names_in(disk.path), "the segment stays where it was"


def test_strangers_in_the_retired_directory_are_left_alone(disk):
    make(disk)
    retired = retire(disk, NAME)
    stranger = Path(disk.path) / ".commitlogfs" / "notes.txt"
    stranger.write_text("mine")
    assert [name for name, _, _ in remove.list_retired(disk.dirfd)] == [retired]
    remove.drop_retired(disk.dirfd, retired)
    assert stranger.read_text() == "mine"


# --- what a crash leaves -----------------------------------------------------------------------------


def test_crash_before_the_rename_leaves_the_segment(disk):
    make(disk)
    (Path(disk.path) / ".commitlogfs").mkdir()
    pool = reopened(disk)
    assert [segment.base_offset for segment in pool.inventory.catalog] == [SIZE]
    assert pool.findings == []
    assert sweep(pool) == []
    assert os.listdir(disk.path) == [NAME.decode()]
    assert retire(disk, NAME)


def test_crash_after_the_rename_is_swept_by_the_next_mount(disk):
    make(disk)
    retired = retire(disk, NAME)
    pool = reopened(disk)
    assert len(pool.inventory.catalog) == 0
    assert pool.findings == []
    assert sweep(pool) == [f"{disk.path}: freed removed segment {retired.decode()}"]
    assert names_in(disk.path) == []


def test_crash_after_the_last_unlink_leaves_an_empty_directory(disk):
    make(disk)
    retired = retire(disk, NAME)
    (Path(disk.path) / ".commitlogfs" / os.fsdecode(retired)).unlink()
    pool = reopened(disk)
    assert pool.findings == []
    assert sweep(pool) == []
    assert os.listdir(disk.path) == []
    make(disk)
    remove.drop_retired(disk.dirfd, retire(disk, NAME))
    assert names_in(disk.path) == []


def test_a_takeover_finds_what_is_retired(disk):
    make(disk)
    retired = retire(disk, NAME)
    (found,) = find_retired(reopened(disk))
    assert (found.name, found.base_offset, found.role) == (retired, SIZE, Role.RETIRED)
    (Path(disk.path) / ".commitlogfs" / os.fsdecode(retired)).unlink()
    assert find_retired(reopened(disk)) == []


def test_a_segment_made_again_and_its_retired_namesake_are_both_understood(disk):
    make(disk, content=b"o" * SIZE)
    retire(disk, NAME)
    path = make(disk, content=b"n" * SIZE)
    pool = reopened(disk)
    assert len(pool.inventory.catalog) == 1
    sweep(pool)
    assert path.read_bytes() == b"n" * SIZE
    assert names_in(disk.path) == [NAME.decode()]


def test_crash_inside_a_rename_leaves_two_names_of_which_the_segment_stays(disk):
    path = make(disk, TEMPORARY)
    os.link(path, Path(disk.path) / NAME.decode())
    pool = reopened(disk)
    assert [segment.name for segment in pool.inventory.catalog] == [NAME]
    assert pool.inventory.temporaries == {}
    assert sweep(pool) == [f"{disk.path}: finished the rename of {TEMPORARY.decode()}"]
    assert names_in(disk.path) == [NAME.decode()]
    assert (Path(disk.path) / NAME.decode()).read_bytes() == b"x" * SIZE


def test_crash_inside_a_rename_between_temporaries_leaves_one_of_them(disk):
    """Two names of one file would be two entries of one inode: each would answer for the other."""
    path = make(disk, TEMPORARY)
    os.link(path, Path(disk.path) / f".{NAME.decode()}.def")
    pool = reopened(disk)
    assert len(pool.inventory.temporaries) == 1
    sweep(pool)
    assert names_in(disk.path) == [name.decode() for name in pool.inventory.temporaries]
    assert (Path(disk.path) / names_in(disk.path)[0]).read_bytes() == b"x" * SIZE


def test_a_read_only_disk_is_not_swept(workdir):
    with open_disk(workdir) as disk:
        make(disk)
        retired = retire(disk, NAME)
        disk.state = DiskState.RO
        assert sweep(reopened(disk)) == []
        assert [name for name, _, _ in remove.list_retired(disk.dirfd)] == [retired]


def test_retiring_while_another_retired_file_is_dropped(disk):
    """The directory that the one needs may be removed by the other at any moment."""
    rounds = 300

    def retire_and_drop(index: int) -> None:
        name = format_segment_name(index * SIZE)
        for _ in range(rounds):
            make(disk, name, b"x")
            remove.drop_retired(disk.dirfd, retire(disk, name))

    with ThreadPoolExecutor(4) as threads:
        for outcome in [threads.submit(retire_and_drop, index) for index in range(4)]:
            outcome.result()
    assert names_in(disk.path) == []


# --- segments that were not made by us ---------------------------------------------------------------


def test_the_newest_segments_of_an_adopted_log_are_reserved(disk):
    size = 1 << 20
    for index in range(5):
        with (Path(disk.path) / f"{index * size:020d}").open("wb") as file:
            file.truncate(size)
    inventory = take_inventory([(disk, scan_directory(disk.dirfd, size))], size)
    done = reserve_newest(pool_of([disk], inventory, size))
    assert len(done) == 3
    allocated = [(Path(disk.path) / f"{index * size:020d}").stat().st_blocks * 512 for index in range(5)]
    assert allocated[:2] == [0, 0]
    assert min(allocated[2:]) >= size
    inventory = take_inventory([(disk, scan_directory(disk.dirfd, size))], size)
    assert reserve_newest(pool_of([disk], inventory, size)) == []


def test_a_removal_tells_what_it_gave_whatever_others_take_meanwhile(disk, monkeypatch):
    make(disk)
    free = iter([1000, 1050, 900])  # before, right after, and when the directory is synced
    monkeypatch.setattr(remove, "measure_usage", lambda dirfd: DiskUsage(2000, level := next(free), level))
    after = remove.remove_file(disk.dirfd, NAME, wait=remove.FreeWait(0.0))
    assert isinstance(after, UsageAfter)
    assert (after.free_bytes, after.gained_bytes) == (900, 50)


def test_what_was_gone_already_proves_nothing_about_its_space(disk):
    """Its last close has freed it, or somebody else."""
    assert not isinstance(remove.remove_file(disk.dirfd, NAME), UsageAfter)
    assert not isinstance(remove.drop_retired(disk.dirfd, b"%b.12345678" % NAME), UsageAfter)
    make(disk)
    assert isinstance(remove.remove_file(disk.dirfd, NAME), UsageAfter)
