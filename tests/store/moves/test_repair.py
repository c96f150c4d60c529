"""A right copy in the place of a damaged file, with every state a crash can leave read again."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from support.files import names_in, open_disk, pool_of

from commitlogfs.store import layout
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.files import remove
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.attributes import stat_name, unpack
from commitlogfs.store.files.hashing import read_checksum_of
from commitlogfs.store.files.remove import Reason, reason_of
from commitlogfs.store.moves import repair
from commitlogfs.store.moves.copy import Restored, open_restored
from commitlogfs.store.moves.mark import Source, is_repair_of, read_mark, remove_mark, source_of, write_mark
from commitlogfs.store.pool.inventory import take_inventory
from commitlogfs.store.pool.open import Pool, find_retired, sweep
from commitlogfs.store.pool.other_files import OtherFiles, is_set_aside, was_moved
from commitlogfs.store.pool.scan import scan_directory
from commitlogfs.store.segment import format_segment_name

SIZE = 64 << 10
NAME = format_segment_name(SIZE)
RIGHT, DAMAGED = b"r" * SIZE, b"d" * SIZE
MTIME_NS = 1_600_000_000_123_456_789


@pytest.fixture
def disks(workdir: Path) -> Iterator[list[Disk]]:
    """The damaged file is on the first one."""
    for name in ("one", "two"):
        (workdir / name).mkdir()
    path = workdir / "one" / os.fsdecode(NAME)
    path.write_bytes(DAMAGED)
    path.chmod(0o640)
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    with open_disk(workdir / "one", 1) as one, open_disk(workdir / "two", 2) as two:
        yield [one, two]


@pytest.fixture
def source(workdir: Path) -> Iterator[int]:
    (workdir / "copy").write_bytes(RIGHT)
    fd = os.open(workdir / "copy", os.O_RDONLY)
    yield fd
    os.close(fd)


def ino_of(disk: Disk) -> int:
    return unpack(stat_name(disk.dirfd, NAME)).ino


def publish(disks: list[Disk], source: int) -> Source:
    """Steps 1 to 3; the damaged file as the marks name it."""
    found = repair.examine(disks[0].dirfd, NAME, ino_of(disks[0]))
    damaged = source_of(disks[0].number, found.attributes)
    owner = Owner(found.attributes.uid, found.attributes.gid, found.attributes.mode)
    digest = xxhash.xxh3_128(RIGHT).digest()
    restored = Restored(owner, found.attributes.mtime_ns, digest, damaged, is_unknown=found.is_restored)
    copy = open_restored(source, SIZE, restored)
    try:
        copy.reserve(disks[1].dirfd)
        while copy.read_chunk():
            copy.write_chunk()
        copy.require_unchanged()
        copy.seal(None)
        while copy.verify_chunk():
            pass
        copy.publish(NAME)
    finally:
        copy.close()
    return damaged


def set_aside(disks: list[Disk]) -> bytes:
    return remove.retire_file(disks[0].dirfd, NAME, ino_of(disks[0]), Reason.DAMAGED).name


def reopened(disks: list[Disk]) -> Pool:
    """The inventory of a fresh mount."""
    dirfds = {disk.number: disk.dirfd for disk in disks}
    scans = [(disk, scan_directory(disk.dirfd, SIZE)) for disk in disks]
    inventory = take_inventory(scans, SIZE, mark_of=lambda copy: read_mark(dirfds[copy.disk], copy.name, copy.ino))
    return pool_of(disks, inventory, SIZE)


def test_the_copy_is_right_and_has_what_the_damaged_file_had(disks: list[Disk], source: int) -> None:
    publish(disks, source)
    path = Path(disks[1].path) / os.fsdecode(NAME)
    status = path.stat()
    assert path.read_bytes() == RIGHT
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (MTIME_NS, 0o640)
    assert read_checksum_of(disks[1].dirfd, NAME, status.st_ino) == xxhash.xxh3_128(RIGHT).digest()
    assert layout.XATTR_RESTORED not in os.listxattr(path)


def test_a_mark_of_a_restored_segment_is_kept(disks: list[Disk], source: int) -> None:
    os.setxattr(Path(disks[0].path) / os.fsdecode(NAME), layout.XATTR_RESTORED, b"1")
    publish(disks, source)
    assert layout.XATTR_RESTORED in os.listxattr(Path(disks[1].path) / os.fsdecode(NAME))


def test_a_crash_after_the_link_leaves_one_segment(disks: list[Disk], source: int) -> None:
    damaged = publish(disks, source)
    pool = reopened(disks)
    assert [segment.disk for segment in pool.inventory.catalog] == [disks[1].number]
    assert [file.disk for file in pool.inventory.moved] == [disks[0].number]
    assert pool.inventory.quarantined == {}
    ino = ino_of(disks[1])
    assert is_repair_of(disks[1].dirfd, NAME, ino, damaged)
    assert is_repair_of(disks[1].dirfd, NAME, ino, damaged._replace(mtime_ns=1))
    assert not is_repair_of(disks[1].dirfd, NAME, ino, damaged._replace(btime_ns=1))
    remove_mark(disks[1].dirfd, NAME, ino)
    assert not is_repair_of(disks[1].dirfd, NAME, ino, damaged)
    assert read_mark(disks[1].dirfd, NAME, ino) is None


def test_a_moved_copy_is_not_a_repair(disks: list[Disk]) -> None:
    damaged = source_of(disks[0].number, unpack(stat_name(disks[0].dirfd, NAME)))
    path = Path(disks[1].path) / os.fsdecode(NAME)
    path.write_bytes(DAMAGED)
    with path.open("rb") as file:
        write_mark(file.fileno(), damaged)
    assert not is_repair_of(disks[1].dirfd, NAME, ino_of(disks[1]), damaged)


def test_a_file_that_is_set_aside_stays_over_mounts(disks: list[Disk], source: int) -> None:
    publish(disks, source)
    name = set_aside(disks)
    assert reason_of(name) is Reason.DAMAGED
    pool = reopened(disks)
    assert sweep(pool) == [f"{disks[0].path}: kept {name.decode()}, which is needed"]
    (found,) = find_retired(pool)
    assert (is_set_aside(found), was_moved(found)) == (True, True)
    assert (Path(disks[0].path) / os.fsdecode(found.path)).read_bytes() == DAMAGED


def test_a_file_that_is_set_aside_goes_with_its_segment(disks: list[Disk], source: int) -> None:
    publish(disks, source)
    name = set_aside(disks)
    remove.remove_file(disks[1].dirfd, NAME)
    assert sweep(reopened(disks)) == [f"{disks[0].path}: freed removed segment {name.decode()}"]
    assert names_in(Path(disks[0].path)) == []


def test_a_file_that_is_cleared_is_the_source_of_a_move(disks: list[Disk], source: int) -> None:
    publish(disks, source)
    name = remove.change_reason(disks[0].dirfd, set_aside(disks), Reason.MOVED)
    assert reason_of(name) is Reason.MOVED
    assert sweep(reopened(disks)) == [f"{disks[0].path}: freed removed segment {name.decode()}"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_damaged_file(
    disks: list[Disk], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The source of a move, or a removed segment, would be unlinked."""

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        set_aside(disks)
    assert (Path(disks[0].path) / os.fsdecode(NAME)).read_bytes() == DAMAGED


def test_files_aside_are_not_held(disks: list[Disk], source: int) -> None:
    publish(disks, source)
    set_aside(disks)
    others = OtherFiles(find_retired(reopened(disks)))
    assert [file.disk for file in others.set_aside()] == [disks[0].number]
    assert others.moved(disks[0].number) == []
    assert (others.held_bytes().total(), others.pending_bytes(disks[0].number)) == (0, 0)
    assert others.sources(others.set_aside()[0].base_offset) == others.set_aside()
