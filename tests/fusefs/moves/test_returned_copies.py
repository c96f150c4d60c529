"""Segments that were copied again while the disk of their copies was away."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import xxhash
from support.pooled import SIZE, let_go, name_of, place, segment
from support.returned import (
    COUNT,
    DRAINED,
    Away,
    content,
    copied_twice,
    indexes,
    make_pool,
    move_on,
    moved_on,
    put_unseen,
)

from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.moves import mover
from commitlogfs.fusefs.moves.mover import FormerFileError
from commitlogfs.store import layout
from commitlogfs.store.errors import DiskFailedError, UncertainPublishError
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.moves.copy import SegmentCopy
from commitlogfs.store.moves.mark import read_mark_of
from commitlogfs.store.pool.catalog import Role
from commitlogfs.store.pool.open import OnMissing, blocking, finish_moves
from commitlogfs.store.scrub.verdict import Kind, format_verdict, whole_verdict
from commitlogfs.store.segment import BaseOffset


@pytest.fixture
def directories(workdir: Path) -> list[Path]:
    return make_pool(workdir)


@pytest.mark.parametrize("is_read_only", [True, False], ids=["failing", "copy"])
def test_a_disk_with_copies_that_returns_takes_no_segment_away(directories: list[Path], is_read_only: bool) -> None:
    away, index, _first = copied_twice(directories, is_read_only=is_read_only)
    assert len(away.holders(index)) == 2 + is_read_only
    with away.opened() as parts:
        assert indexes(parts) == list(range(COUNT))
        assert place(parts, index).read_bytes() == content(index)
        assert blocking(away.findings, OnMissing.REFUSE) == []
        trio.run(let_go, parts)
        stays = {DRAINED} if is_read_only else set()
        assert away.holders(index) == {segment(parts, index).disk, *stays}
    away.is_read_only = False
    with away.opened() as parts:
        assert indexes(parts) == list(range(COUNT))
        trio.run(let_go, parts)
        assert away.holders(index) == {segment(parts, index).disk}
        assert layout.XATTR_MOVED_FROM not in os.listxattr(place(parts, index))


def test_the_former_files_are_removed_between_two_mounts(directories: list[Path]) -> None:
    away, index, first = copied_twice(directories, is_read_only=True)
    away.is_read_only = False
    with away.opened(first):
        finish_moves(away.pool)
        assert len(away.holders(index)) == 2  # the missing disk has one of them
    with away.opened() as parts:
        assert indexes(parts) == list(range(COUNT))
        finish_moves(away.pool)
        kept = segment(parts, index).disk
    assert away.holders(index) == {kept}
    assert layout.XATTR_MOVED_FROM not in os.listxattr(directories[kept - 1] / name_of(index).decode())


@pytest.mark.parametrize("first", [3, 4])
def test_the_copy_that_was_served_meanwhile_stays(directories: list[Path], first: int) -> None:
    """The other one may come back as a copy that ddrescue has made of its disk, and with a former mode."""
    away, index, _ = copied_twice(directories, is_read_only=False, wanted=first)
    (second,) = away.holders(index) - {first}
    former = directories[first - 1] / name_of(index).decode()
    put_unseen(former, bytes(SIZE))
    with away.opened(first) as parts:
        place(parts, index).chmod(0o600)
    with away.opened() as parts:
        trio.run(let_go, parts)
        assert away.holders(index) == {second}
        assert place(parts, index).read_bytes() == content(index)
        assert place(parts, index).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rotten_copy_takes_the_place_of_no_right_one(directories: list[Path], is_first: bool) -> None:
    """The disk of the source has returned wrong bytes once, and right ones another time. Both copies have the
    checksum of these, and the daemon dies at once."""
    away, index = Away(directories, is_read_only=True), 4
    with away.opened() as parts:
        former = place(parts, index)
        assert segment(parts, index).disk == DRAINED
        fd = os.open(former, os.O_RDONLY)
        write_checksum(fd, xxhash.xxh3_128(content(index)).digest())
        os.close(fd)
        put_unseen(former, content(index + is_first))
        away.drain(parts, let_go=False)
        first = segment(parts, index).disk
    put_unseen(former, content(index + (not is_first)))
    with away.opened(first) as parts:
        away.drain(parts)
        second = segment(parts, index).disk
    assert len({DRAINED, first, second}) == 3
    away.is_read_only = False
    former.unlink()
    with away.opened() as parts:
        trio.run(let_go, parts)
        assert place(parts, index).read_bytes() == content(index)


def test_a_copy_that_was_written_to_is_the_segment(directories: list[Path]) -> None:
    """And nothing that may differ from it is removed."""
    away, index, first = copied_twice(directories, is_read_only=False)
    with away.opened(first) as parts:
        place(parts, index).write_bytes(content(99))
        second = segment(parts, index).disk
    with away.opened() as parts:
        assert segment(parts, index).disk == second
        assert FindingCode.DUPLICATE_SEGMENT not in [finding.code for finding in away.findings]
        trio.run(let_go, parts)
    assert away.holders(index) == {first, second}
    with away.opened() as parts:
        finish_moves(away.pool)
    assert away.holders(index) == {first, second}


def replace_by_copy(path: Path) -> None:
    """As `rsync -aX` of a whole disk makes it: another file with the same content, attributes and times."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    for name in os.listxattr(path):
        os.setxattr(copy, name, os.getxattr(path, name))
    shutil.copystat(path, copy)
    copy.rename(path)


def test_a_file_that_a_program_has_copied_takes_no_place(directories: list[Path]) -> None:
    """It is the latest of all, and its checksum is that of the file that it was copied from."""
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    former = directories[first - 1] / name_of(index).decode()
    put_unseen(former, bytes(SIZE))  # a failing disk returned that
    replace_by_copy(former)
    with away.opened() as parts:
        assert segment(parts, index).disk == second
        assert place(parts, index).read_bytes() == content(index)
        trio.run(let_go, parts)
    assert away.holders(index) == {first, second}


def test_a_source_that_is_put_back_beside_a_third_file_is_the_segment(directories: list[Path]) -> None:
    """The marks still tell so after a crash before any of the copies is removed."""
    away, index, first = copied_twice(directories, is_read_only=True)
    away.is_read_only = False
    os.removexattr(directories[first - 1] / name_of(index).decode(), layout.XATTR_CHECKSUM)  # so that it stays
    with away.opened() as parts, (directories[DRAINED - 1] / name_of(index).decode()).open("r+b", 0) as file:
        copies = away.holders(index) - {DRAINED}
        assert len(copies) == 2

        async def main() -> None:
            await let_go(parts)
            assert away.holders(index) == copies
            source = next(one for one in parts.commitlog.others.moved(DRAINED) if one.base_offset == index * SIZE)
            file.write(b"late")
            assert await parts.sources.put_back_if_changed(source)

        trio.run(main)
    for _ in range(2):
        with away.opened() as parts:
            assert segment(parts, index).disk == DRAINED
            assert place(parts, index).read_bytes()[:4] == b"late"
            trio.run(let_go, parts)
    assert away.holders(index) == {DRAINED, *copies}  # both may differ


def test_a_put_back_that_a_crash_interrupts_takes_no_segment_away(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third file has the name."""
    away, index, first = copied_twice(directories, is_read_only=True)
    away.is_read_only = False
    os.removexattr(directories[first - 1] / name_of(index).decode(), layout.XATTR_CHECKSUM)
    with away.opened() as parts, (directories[DRAINED - 1] / name_of(index).decode()).open("r+b", 0) as file:

        async def fail(*_: object) -> None:
            raise OSError(errno.EIO, "dies")

        async def main() -> None:
            await let_go(parts)
            source = next(one for one in parts.commitlog.others.moved(DRAINED) if one.base_offset == index * SIZE)
            file.write(b"late")
            monkeypatch.setattr(type(parts.disk_files[DRAINED]), "put_back", fail)
            with pytest.raises(DiskFailedError):
                await parts.sources.put_back_if_changed(source)

        trio.run(main)
    with away.opened() as parts:
        assert place(parts, index).read_bytes() == content(index)


def test_two_copies_that_were_written_to_are_a_duplicate(directories: list[Path]) -> None:
    away, index, _ = copied_twice(directories, is_read_only=False)
    for number in away.holders(index):
        (directories[number - 1] / name_of(index).decode()).write_bytes(content(90 + number))
    with away.opened() as parts:
        assert index not in indexes(parts)
    assert FindingCode.DUPLICATE_SEGMENT in [finding.code for finding in away.findings]


def test_the_copy_that_lacks_least_is_the_segment_and_the_other_stays(directories: list[Path]) -> None:
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    for number, lost in ((first, b"[[0,512]]"), (second, b"[[0,1024]]")):
        path = directories[number - 1] / name_of(index).decode()
        os.setxattr(path, layout.XATTR_UNREADABLE, lost)
        os.removexattr(path, layout.XATTR_CHECKSUM)
    with away.opened() as parts:
        assert segment(parts, index).disk == first
        trio.run(let_go, parts)
        (source,) = parts.commitlog.others.sources(BaseOffset(index * SIZE))
        assert "could not be read" in parts.sources.why_named(source)
        assert not parts.mover.may_move(segment(parts, index))
    assert away.holders(index) == {first, second}


def test_a_copy_with_another_checksum_stays(directories: list[Path]) -> None:
    """The disk of the source may have returned other bytes the second time."""
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    path = directories[second - 1] / name_of(index).decode()
    os.removexattr(path, layout.XATTR_CHECKSUM)
    with away.opened() as parts:
        trio.run(let_go, parts)
        (source,) = parts.commitlog.others.sources(BaseOffset(index * SIZE))
        why_named = parts.sources.why_named(source)
        assert "may differ" in why_named
        assert "if the copy is right, move this file away" in why_named
    assert away.holders(index) == {first, second}


def test_a_damaged_copy_stays_beside_one_that_was_away(directories: list[Path]) -> None:
    """Nobody has read that one since, and it may be worse."""
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    verdict = format_verdict(whole_verdict(Kind.ROTTED, SIZE, 5))
    os.setxattr(directories[second - 1] / name_of(index).decode(), layout.XATTR_VERDICT, verdict)
    with away.opened() as parts:
        assert segment(parts, index).disk == first
        trio.run(let_go, parts)
    assert away.holders(index) == {first, second}


@pytest.mark.parametrize("dies", [False, True])
def test_a_copy_is_moved_on_while_another_one_may_be_on_a_missing_disk(directories: list[Path], dies: bool) -> None:
    """Their common mark tells that all of them are one segment when that disk is back."""
    away, index, first, second, third = moved_on(directories)
    with away.opened(first) as parts:
        move_on(parts, index, third)
        if not dies:
            trio.run(let_go, parts)
    assert away.holders(index) == ({first, third} if not dies else {first, second, third})
    with away.opened() as parts:
        assert segment(parts, index).disk == third
        assert place(parts, index).read_bytes() == content(index)
        assert blocking(away.findings, OnMissing.REFUSE) == []
        trio.run(let_go, parts)
        assert away.holders(index) == {third}
        assert layout.XATTR_MOVED_FROM not in os.listxattr(place(parts, index))


def test_a_copy_that_was_moved_on_and_written_to_is_the_segment(directories: list[Path]) -> None:
    away, index, first, _second, third = moved_on(directories)
    with away.opened(first) as parts:
        move_on(parts, index, third)
        trio.run(let_go, parts)
        place(parts, index).write_bytes(content(99))
    with away.opened() as parts:
        assert place(parts, index).read_bytes() == content(99)
        trio.run(let_go, parts)
    assert away.holders(index) == {first, third}


def write_to(path: Path) -> None:
    path.write_bytes(content(99))


def take_checksum(path: Path) -> None:
    os.removexattr(path, layout.XATTR_CHECKSUM)


def write_to_and_seal(path: Path) -> None:
    write_to(path)
    fd = os.open(path, os.O_RDONLY)
    write_checksum(fd, xxhash.xxh3_128_digest(content(99)))
    os.close(fd)


def record_verdict(path: Path) -> None:
    os.setxattr(path, layout.XATTR_VERDICT, format_verdict(whole_verdict(Kind.ROTTED, SIZE, 5)))


@pytest.mark.parametrize("spoil", [write_to, write_to_and_seal, take_checksum, record_verdict])
def test_a_copy_that_may_differ_from_its_own_one_stays(
    directories: list[Path], spoil: Callable[[Path], None]
) -> None:
    """Unless it is saved from a failing disk: then nothing is removed when the missing one is back."""
    away, index, first, _second, third = moved_on(directories)
    with away.opened(first) as parts:
        spoil(place(parts, index))
        trio.run(parts.attributes.refresh, segment(parts, index))
        with pytest.raises(FormerFileError):
            move_on(parts, index, third)
        move_on(parts, index, third, salvages=True)
        saved = place(parts, index).read_bytes()
        trio.run(let_go, parts)
        assert away.holders(index) == {first, third}
    with away.opened() as parts:
        assert FindingCode.DUPLICATE_SEGMENT in [finding.code for finding in away.findings]
        trio.run(let_go, parts)
    assert away.holders(index) == {first, third}
    assert (directories[third - 1] / name_of(index).decode()).read_bytes() == saved


def test_a_copy_that_reads_otherwise_under_a_move_has_its_own_mark(directories: list[Path]) -> None:
    """Its disk is failing, and it may be worse than those on the missing disk."""
    away, index, first, _second, third = moved_on(directories)
    with away.opened(first) as parts:
        put_unseen(place(parts, index), bytes(SIZE))
        move_on(parts, index, third, salvages=True)
    with away.opened() as parts:
        assert FindingCode.DUPLICATE_SEGMENT in [finding.code for finding in away.findings]
        trio.run(let_go, parts)
    assert {first, third} <= away.holders(index)


def test_a_copy_whose_records_cannot_be_read_is_only_saved(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a failing disk: the missing one is not taken back then."""
    away, index, first, second, third = moved_on(directories)

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "cannot be read")

    with away.opened(first) as parts, monkeypatch.context() as patch:
        patch.setattr(mover, "read_record", fail)
        with pytest.raises(DiskFailedError):
            move_on(parts, index, third)
        assert segment(parts, index).disk == second
        move_on(parts, index, third, salvages=True)
        assert place(parts, index).read_bytes() == content(index)
        mark = read_mark_of(str(place(parts, index)))
        assert mark is not None
        assert mark.disk == second


def test_a_file_that_has_the_name_of_a_copy_stays(directories: list[Path]) -> None:
    """It may have the same mark, if its disk was away."""
    away, index, first, second, third = moved_on(directories)
    with away.opened(first) as parts:
        found = directories[third - 1] / name_of(index).decode()
        shutil.copy(place(parts, index), found)
        for name in os.listxattr(place(parts, index)):
            os.setxattr(found, name, os.getxattr(place(parts, index), name))
        with pytest.raises(FileExistsError):
            move_on(parts, index, third)
        trio.run(parts.mover.remove_stray_copies)
        assert found.exists()
        assert segment(parts, index).disk == second


def test_a_copy_with_a_common_mark_that_may_have_its_name_is_removed(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk has failed in that moment. Then the segment may be moved again."""
    away, index, first, _second, third = moved_on(directories)

    async def fail(_self: object, copy: SegmentCopy, name: bytes) -> NoReturn:
        copy.publish(name)
        raise UncertainPublishError("its name may be lost")

    with away.opened(first) as parts:
        with monkeypatch.context() as patch:
            patch.setattr(DiskFiles, "publish_copy", fail)
            with pytest.raises(UncertainPublishError):
                move_on(parts, index, third)
        assert parts.mover.hindrance(segment(parts, index)) is not None
        trio.run(parts.mover.remove_stray_copies)
        assert third not in away.holders(index)
        assert parts.mover.hindrance(segment(parts, index)) is None


@pytest.mark.parametrize("moves_on", [False, True])
def test_the_damaged_file_of_a_repaired_segment_is_set_aside(directories: list[Path], moves_on: bool) -> None:
    """Also if the right copy was moved while the disk of the damaged file was away."""
    away = Away(directories, is_read_only=True)
    with away.opened() as parts:
        move_on(parts, 0, 2)
        damaged, copy = directories[DRAINED - 1] / name_of(0).decode(), place(parts, 0)
    os.setxattr(copy, layout.XATTR_REPAIRS, os.getxattr(copy, layout.XATTR_MOVED_FROM))
    record_verdict(damaged)
    with away.opened(DRAINED) as parts:
        if moves_on:
            move_on(parts, 0, 3)
            trio.run(let_go, parts)
    away.is_read_only = False
    with away.opened() as parts:
        trio.run(let_go, parts)
        assert away.holders(0) == {3 if moves_on else 2}
        assert [file.base_offset for file in parts.commitlog.others.set_aside()] == [0]


def touched_beside_a_missing_disk(directories: list[Path]) -> tuple[Away, int]:
    """Segment 0 on disk 2, of which somebody has set the times, and its former file on the drained disk; and a
    disk that has neither."""
    away = Away(directories, is_read_only=True)
    with away.opened() as parts:
        move_on(parts, 0, 2)
        copy = place(parts, 0)
    away.is_read_only = False
    os.utime(copy)
    os.removexattr(copy, layout.XATTR_CHECKSUM)
    fd = os.open(copy, os.O_RDONLY)
    write_checksum(fd, xxhash.xxh3_128_digest(content(0)))
    os.close(fd)
    return away, 4


@pytest.mark.parametrize("is_written", [False, True])
def test_a_source_that_is_put_back_beside_a_missing_disk_is_served(
    directories: list[Path], is_written: bool
) -> None:
    """The daemon dies before it removes the copy, which somebody has touched since the move."""
    away, missing = touched_beside_a_missing_disk(directories)
    with away.opened(missing) as parts, (directories[DRAINED - 1] / name_of(0).decode()).open("r+b", 0) as file:

        async def main() -> None:
            await let_go(parts)
            source = next(one for one in parts.commitlog.others.moved(DRAINED) if one.base_offset == 0)
            assert source.role is Role.RETIRED
            if is_written:
                file.write(b"late")
            await parts.sources._put_back_if_only_writer(source)

        trio.run(main)
        assert segment(parts, 0).disk == DRAINED
    assert away.holders(0) == {DRAINED, 2}
    with away.opened(missing) as parts:
        assert segment(parts, 0).disk == DRAINED
        assert place(parts, 0).read_bytes()[:4] == (b"late" if is_written else content(0)[:4])


def test_a_source_that_is_put_back_takes_no_third_file_away(directories: list[Path]) -> None:
    """Nothing shows that they are equal: somebody has touched the copy, and the third one has no checksum."""
    away, index, first = copied_twice(directories, is_read_only=True)
    away.is_read_only = False
    (second,) = away.holders(index) - {DRAINED, first}
    third, copy = (directories[number - 1] / name_of(index).decode() for number in (first, second))
    os.removexattr(third, layout.XATTR_CHECKSUM)
    os.utime(copy)
    fd = os.open(copy, os.O_RDONLY)
    write_checksum(fd, xxhash.xxh3_128_digest(content(index)))
    os.close(fd)
    with away.opened() as parts, (directories[DRAINED - 1] / name_of(index).decode()).open("r+b", 0) as file:

        async def main() -> None:
            await let_go(parts)
            assert away.holders(index) == {first, second}
            source = next(one for one in parts.commitlog.others.moved(DRAINED) if one.base_offset == index * SIZE)
            await parts.sources.put_back_if_changed(source)
            file.write(b"late")
            assert await parts.sources.put_back_if_changed(source)
            await let_go(parts)

        trio.run(main)
        assert third.read_bytes() == content(index)
