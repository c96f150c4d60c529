"""Former files of moves of former daemons: a right one is not removed for a bad copy."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import xxhash
from support.pooled import SIZE, Parts, let_go, name_of, place, segment
from support.returned import DRAINED, Away, content, copied_twice, make_pool, move_on, put_unseen
from support.waiting import until

from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.store import layout
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.open import finish_moves
from commitlogfs.store.scrub.verdict import Kind, format_verdict, whole_verdict
from commitlogfs.store.segment import BaseOffset


@pytest.fixture
def directories(workdir: Path) -> list[Path]:
    return make_pool(workdir)


def copied(directories: list[Path]) -> tuple[Away, int, Path, Path]:
    """A segment, its former file on the drained disk, which could not be removed, and its copy."""
    away = Away(directories, is_read_only=True)
    with away.opened() as parts:
        former = {file.base_offset: file.disk for file in parts.commitlog.catalog}
        away.drain(parts, let_go=False)
        moved = [file for file in parts.commitlog.catalog if file.disk != former[file.base_offset]]
        index = moved[0].base_offset // SIZE
        copy = place(parts, index)
    away.is_read_only = False
    return away, index, directories[DRAINED - 1] / name_of(index).decode(), copy


def be_the_latest(path: Path, other: Path) -> None:
    """As after `chmod -R`. The clock of a filesystem may stand still between two changes."""
    while path.stat().st_ctime_ns <= other.stat().st_ctime_ns:
        path.chmod(0o640)


def record_verdict(path: Path) -> None:
    os.setxattr(path, layout.XATTR_VERDICT, format_verdict(whole_verdict(Kind.ROTTED, SIZE, 5)))


def seal(path: Path) -> None:
    """Give a file the checksum of its content."""
    fd = os.open(path, os.O_RDONLY)
    write_checksum(fd, xxhash.xxh3_128_digest(path.read_bytes()))
    os.close(fd)


def rot(path: Path) -> None:
    put_unseen(path, bytes(SIZE))


def rot_with_verdict(path: Path) -> None:
    rot(path)
    record_verdict(path)


def lose_a_part(path: Path) -> None:
    """As a copy by `ddrescue` without the blocks that could not be read."""
    put_unseen(path, path.read_bytes()[: SIZE // 2] + bytes(SIZE - SIZE // 2))


def rot_without_checksum(path: Path) -> None:
    os.removexattr(path, layout.XATTR_CHECKSUM)
    rot(path)


ROTS = [rot, rot_with_verdict, lose_a_part]


def why_named(parts: Parts, index: int) -> str:
    (source,) = parts.commitlog.others.sources(BaseOffset(index * SIZE))
    return parts.sources.why_named(source)


def settle(away: Away, *, is_offline: bool) -> None:
    with away.opened() as parts:
        if is_offline:
            finish_moves(away.pool)
        else:
            trio.run(let_go, parts)


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize("spoil", [*ROTS, rot_without_checksum])
def test_a_source_stays_beside_a_bad_copy(
    directories: list[Path], spoil: Callable[[Path], None], is_offline: bool
) -> None:
    """Its disk was away, or could not be written."""
    away, index, former, copy = copied(directories)
    with away.opened(DRAINED):
        spoil(copy)
    for _ in range(2):
        settle(away, is_offline=is_offline)
        assert former.read_bytes() == content(index)
        assert copy.exists()


@pytest.mark.parametrize("spoil", ROTS)
def test_a_copy_that_returns_as_a_bad_one_takes_no_source_away(
    directories: list[Path], spoil: Callable[[Path], None]
) -> None:
    """The source was the segment meanwhile; the disk comes back by way of `ddrescue`."""
    away, index, former, copy = copied(directories)
    disk = directories.index(copy.parent) + 1
    with away.opened(disk) as parts:
        assert place(parts, index) == former
        spoil(copy)
    for _ in range(2):
        settle(away, is_offline=False)
        assert former.read_bytes() == content(index)


@pytest.mark.parametrize("spoil", ROTS)
def test_a_bad_copy_that_is_the_latest_takes_no_right_one_away(
    directories: list[Path], spoil: Callable[[Path], None]
) -> None:
    """After `chmod -R` of the new disk."""
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    former = directories[first - 1] / name_of(index).decode()
    spoil(former)
    be_the_latest(former, directories[second - 1] / name_of(index).decode())
    for _ in range(2):
        settle(away, is_offline=False)
        assert (directories[second - 1] / name_of(index).decode()).read_bytes() == content(index)


def test_a_right_copy_is_served_again_after_a_bad_one(directories: list[Path]) -> None:
    """The verdict of the comparison tells the next daemon which of them is better."""
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    former = directories[first - 1] / name_of(index).decode()
    rot(former)
    be_the_latest(former, directories[second - 1] / name_of(index).decode())
    with away.opened() as parts:
        file = segment(parts, index)
        assert file.disk == first
        trio.run(let_go, parts)
        assert parts.verdicts.kind_of(file) is Kind.ROTTED
        assert f"{former.parent} is damaged" in why_named(parts, index)
        assert not parts.mover.may_move(file)
        trio.run(parts.verdicts.record_on_disk, file)
    with away.opened() as parts:
        assert segment(parts, index).disk == second
        assert place(parts, index).read_bytes() == content(index)
        trio.run(let_go, parts)
    assert away.holders(index) == {first, second}  # the operator moves the bad one away


def test_a_source_without_a_checksum_is_compared_itself(directories: list[Path]) -> None:
    """The copy has lost its own one, and is right."""
    away, index, former, copy = copied(directories)
    os.removexattr(copy, layout.XATTR_CHECKSUM)
    settle(away, is_offline=False)
    assert not former.exists()
    assert copy.read_bytes() == content(index)


def test_two_files_that_nothing_decides_stay(directories: list[Path]) -> None:
    away, index, former, copy = copied(directories)
    rot_without_checksum(copy)
    with away.opened() as parts:
        trio.run(let_go, parts)
        assert f"may differ from the copy on {copy.parent}" in why_named(parts, index)
        assert parts.verdicts.kind_of(segment(parts, index)) is None
        assert not parts.checksums._may_compute(segment(parts, index))  # it would be that of the bad content
    assert former.exists()


def test_a_copy_with_another_checksum_than_its_source_is_no_proof(directories: list[Path]) -> None:
    """A daemon has computed that of its rotten content while the disk of the source was away."""
    away, index, former, copy = copied(directories)
    seal(former)
    rot(copy)
    seal(copy)
    settle(away, is_offline=False)
    assert former.read_bytes() == content(index)


def test_damage_that_both_have_keeps_no_source(directories: list[Path]) -> None:
    """Such as that of a segment that was written broken: its verdict moves with it."""
    away, index, former, copy = copied(directories)
    record_verdict(former)
    record_verdict(copy)
    settle(away, is_offline=False)
    assert not former.exists()
    assert copy.read_bytes() == content(index)


def test_a_copy_that_was_written_to_replaces_its_source_once_it_has_a_checksum(directories: list[Path]) -> None:
    away, index, former, copy = copied(directories)
    copy.write_bytes(content(99))
    with away.opened() as parts:
        trio.run(let_go, parts)
        assert former.exists()
        file = segment(parts, index)
        assert not parts.sources.is_unproven(file)
        seal(copy)
        parts.commitlog.catalog.record_checksum(file, is_valid=True)
        trio.run(let_go, parts)
        assert not former.exists()
    assert copy.read_bytes() == content(99)


def test_a_source_that_could_not_be_removed_at_once_is_compared(directories: list[Path]) -> None:
    """Its disk was read-only when this daemon has moved the segment."""
    away = Away(directories, is_read_only=True)
    with away.opened() as parts:
        files = {file.base_offset: file for file in parts.commitlog.catalog}
        away.drain(parts)
        moved = [
            file for base, file in files.items() if file.disk == DRAINED and not parts.commitlog.catalog.holds(file)
        ]
        index = moved[0].base_offset // SIZE
        rot(place(parts, index))
        parts.commitlog.disks[DRAINED].is_read_only = False
        trio.run(let_go, parts)
        assert (directories[DRAINED - 1] / name_of(index).decode()).read_bytes() == content(index)
        others = [file.base_offset // SIZE for file in moved[1:]]
        assert all(away.holders(one) == {segment(parts, one).disk} for one in others)


def test_the_own_move_is_not_read_again(directories: list[Path]) -> None:
    """The copy was verified a moment ago."""
    away = Away(directories, is_read_only=False)
    with away.opened() as parts:
        index = 0
        file = segment(parts, index)
        move_on(parts, index, file.disk % len(directories) + 1)
        trio.run(parts.sources.finish)
        assert away.holders(index) == {segment(parts, index).disk}


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("is_read_only_between", [True, False])
def test_a_copy_that_rots_before_its_source_can_be_removed_is_found(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch, is_own: bool, is_read_only_between: bool
) -> None:
    """The first attempt has found it right."""
    if is_own:
        away, index = Away(directories, is_read_only=False), 0
        source, copy = (directories[number] / name_of(index).decode() for number in (0, 1))
    else:
        away, index, source, copy = copied(directories)
    with away.opened() as parts:
        if is_own:
            move_on(parts, index, 2)
        with monkeypatch.context() as patched:
            patched.setattr(DiskFiles, "unlink", refuse)
            trio.run(let_go, parts)
        disk = parts.commitlog.disks[DRAINED]
        if is_read_only_between:
            disk.is_read_only = True
            trio.run(let_go, parts)
            disk.is_read_only = False
        rot_with_verdict(copy)
        parts.sources._retry_at_s.clear()  # half a minute later
        trio.run(let_go, parts)
    assert source.read_bytes() == content(index)


async def refuse(files: DiskFiles, name: bytes, ino: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_source_that_is_needed_is_not_set_aside_beside_an_open_copy(directories: list[Path]) -> None:
    """A segment behind it is removed, as by a broker that cuts its log."""
    away, index, source, copy = copied(directories)
    rot(copy)
    with away.opened() as parts:
        with source.open("r+b", 0), copy.open("rb", 0):
            trio.run(let_go, parts)
            (former,) = parts.commitlog.others.sources(BaseOffset(index * SIZE))
            trio.run(parts.sources._put_back_if_only_writer, former)
        trio.run(let_go, parts)
        assert former.role is Role.MOVED
    assert source.read_bytes() == content(index)


def test_a_source_that_is_needed_stays_if_it_is_closed_meanwhile(directories: list[Path]) -> None:
    away, index, source, copy = copied(directories)
    rot(copy)
    with away.opened() as parts, source.open("r+b", 0) as held:
        trio.run(let_go, parts)
        (former,) = parts.commitlog.others.sources(BaseOffset(index * SIZE))
        let_go_of = parts.sources._let_go

        async def close_first(one: Segment, **how: bool) -> None:
            held.close()
            await let_go_of(one, **how)

        parts.sources._let_go = close_first  # type: ignore[method-assign, assignment]
        trio.run(parts.sources._put_back_if_only_writer, former)
    assert source.read_bytes() == content(index)


def test_a_disk_that_hangs_delays_only_its_own_comparisons(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    away, answers = Away(directories, is_read_only=True), threading.Event()
    hung, well = 0, 4  # both are on the drained disk
    with away.opened() as parts:
        move_on(parts, hung, 2)
        move_on(parts, well, 3)
        trio.run(parts.sources.finish)
        ino = place(parts, hung).stat().st_ino
    away.is_read_only = False
    preadv = os.preadv

    def hang(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if os.fstat(fd).st_ino == ino:
            answers.wait()
        return preadv(fd, buffers, offset, flags)

    async def main(parts: Parts) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.readings.run)
            nursery.start_soon(parts.sources.run)
            await until(lambda: away.holders(well) == {3})
            assert away.holders(hung) == {DRAINED, 2}
            assert "is compared" in why_named(parts, hung)
            answers.set()
            await until(lambda: away.holders(hung) == {2})
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(os, "preadv", hang)
    with away.opened() as parts:
        try:
            trio.run(main, parts)
        finally:
            answers.set()


def test_a_copy_that_cannot_be_read_takes_no_source_away(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    away, index, former, copy = copied(directories)
    ino = copy.stat().st_ino
    preadv = os.preadv

    def fail(fd: int, *arguments: object) -> int:
        if os.fstat(fd).st_ino == ino:
            raise OSError(5, "cannot be read")
        return preadv(fd, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", fail)
    with away.opened() as parts:
        trio.run(let_go, parts)
        assert "cannot be read" in why_named(parts, index)
    assert former.exists()
