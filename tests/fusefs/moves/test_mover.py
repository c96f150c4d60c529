"""One move, without a kernel: what a disk that fails in the middle of it leaves."""

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import xxhash
from support.checksums import is_valid, recorded
from support.pooled import SIZE, Parts, name_of, segment
from support.waiting import PATIENCE_S, until
from trio.testing import wait_all_tasks_blocked

from commitlogfs.fusefs.moves.mover import FormerFileError, MoveStoppedError
from commitlogfs.store import layout
from commitlogfs.store.disks.membership import Cordon, DiskNumber
from commitlogfs.store.errors import RottenSegmentError, SegmentChangedError, StoreError, UncertainPublishError
from commitlogfs.store.files import durable
from commitlogfs.store.files.allocate import Published
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.moves.copy import SegmentCopy
from commitlogfs.store.moves.mark import source_of, write_mark
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.scrub.verdict import Kind, format_verdict, parse_verdict, whole_verdict


def place(parts: Parts, index: int) -> Path:
    (found,) = [d / name_of(index).decode() for d in parts.directories if (d / name_of(index).decode()).exists()]
    return found


def other(parts: Parts, index: int) -> DiskNumber:
    return next(number for number in parts.commitlog.disks if number != segment(parts, index).disk)


def move(parts: Parts, index: int) -> None:
    trio.run(parts.mover.move, segment(parts, index), other(parts, index), lambda: 0, lambda: True)


def known_digest(path: Path) -> bytes | None:
    """The digest that a file has, be it of its present content or of a former one."""
    found = recorded(path)
    return None if found is None else found.digest


@pytest.mark.parametrize("knows", ["daemon", "file"])
def test_a_touched_damaged_segment_is_compared_as_before(parts: Parts, knows: str) -> None:
    file, path = segment(parts, 1), place(parts, 1)
    right = xxhash.xxh3_128(path.read_bytes()).digest()
    with path.open("r+b") as opened:
        write_checksum(opened.fileno(), right)
    path.write_bytes(b"\xff" * SIZE)
    verdict = whole_verdict(Kind.HEADER_OR_PADDING, SIZE, 1)
    if knows == "daemon":
        parts.verdicts.record(file, verdict)
    else:
        os.setxattr(path, layout.XATTR_VERDICT, format_verdict(verdict))
    with pytest.raises(RottenSegmentError):
        move(parts, 1)
    assert segment(parts, 1) is file
    trio.run(partial(parts.mover.move, file, other(parts, 1), lambda: 0, lambda: True, salvages=True))
    assert segment(parts, 1) is not file
    let_go(parts)
    assert known_digest(place(parts, 1)) == right
    assert is_valid(place(parts, 1))


def test_a_verdict_that_no_task_has_read_yet_goes_with_a_move(parts: Parts) -> None:
    """A former daemon has recorded it. It counts for the file, too, if the move is undone."""
    file, verdict = segment(parts, 1), whole_verdict(Kind.ROTTED, SIZE, 5)
    os.setxattr(place(parts, 1), layout.XATTR_VERDICT, format_verdict(verdict))
    move(parts, 1)
    assert parts.verdicts.present() == [(segment(parts, 1), verdict)]
    assert segment(parts, 1) is not file
    parts.commitlog.record_put_back(segment(parts, 1), file, file.attributes)
    assert parts.verdicts.present() == [(file, verdict)]


@pytest.mark.parametrize(("raw", "of_copy"), [(b"\x02newer", b"\x02newer"), (b"", b"\0")])
def test_a_verdict_that_cannot_be_read_moves_along(parts: Parts, raw: bytes, of_copy: bytes) -> None:
    """It says that the segment is damaged. If it is of a newer version, that one finds all of it."""
    os.setxattr(place(parts, 1), layout.XATTR_VERDICT, raw)
    move(parts, 1)
    let_go(parts)
    assert os.getxattr(place(parts, 1), layout.XATTR_VERDICT) == of_copy
    assert known_digest(place(parts, 1)) is None
    assert parts.verdicts.kind_of(segment(parts, 1)) is Kind.UNKNOWN


@pytest.mark.parametrize("raw", [b"", b"[[0,40"])
@pytest.mark.parametrize("kind", [None, Kind.WRITTEN_BROKEN])
def test_a_damaged_record_of_unreadable_ranges_moves_along(parts: Parts, raw: bytes, kind: Kind | None) -> None:
    """A former daemon has recorded them, and this one has not read it yet. A checksum would say that zeros are the
    content."""
    os.setxattr(place(parts, 1), layout.XATTR_UNREADABLE, raw)
    if kind is not None:
        os.setxattr(place(parts, 1), layout.XATTR_VERDICT, format_verdict(whole_verdict(kind, SIZE, 5)))
    move(parts, 1)
    let_go(parts)
    copy = place(parts, 1)
    assert os.getxattr(copy, layout.XATTR_UNREADABLE) == raw
    assert known_digest(copy) is None
    expected = kind or Kind.UNKNOWN
    assert parts.verdicts.kind_of(segment(parts, 1)) is expected
    verdict = parse_verdict(os.getxattr(copy, layout.XATTR_VERDICT))
    assert verdict is not None
    assert verdict.kind is expected


@pytest.mark.parametrize("attribute", [layout.XATTR_VERDICT, layout.XATTR_CHECKSUM, layout.XATTR_UNREADABLE])
def test_a_copy_is_not_well_if_the_disk_cannot_read_the_attributes(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    """Nothing shows that the disk returns the right content. Without --failing, nothing is moved."""
    file, read = segment(parts, 1), os.getxattr

    def fail(path: int | str, name: str, *, follow_symlinks: bool = True) -> bytes:
        if name == attribute and isinstance(path, int) and os.fstat(path).st_ino == file.ino:
            raise OSError(errno.EIO, "injected")
        return read(path, name, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "getxattr", fail)
    with pytest.raises(StoreError):
        move(parts, 1)
    trio.run(partial(parts.mover.move, file, other(parts, 1), lambda: 0, lambda: True, salvages=True))
    copy = segment(parts, 1)
    assert copy is not file
    assert parts.verdicts.kind_of(copy) is Kind.UNKNOWN
    let_go(parts)
    recorded_verdict = parse_verdict(read(place(parts, 1), layout.XATTR_VERDICT))
    assert recorded_verdict is not None
    assert recorded_verdict.kind is Kind.UNKNOWN
    assert known_digest(place(parts, 1)) is None


@pytest.mark.parametrize(("kind", "has_one"), [(Kind.ROTTED, False), (Kind.WRITTEN_BROKEN, True)])
def test_the_copy_of_a_damaged_segment_without_checksum(parts: Parts, kind: Kind, *, has_one: bool) -> None:
    """A checksum of rotten content would look right for ever."""
    os.setxattr(place(parts, 1), layout.XATTR_VERDICT, format_verdict(whole_verdict(kind, SIZE, 1)))
    move(parts, 1)
    let_go(parts)
    assert (known_digest(place(parts, 1)) is not None) is has_one


@pytest.mark.parametrize("size", [SIZE // 2, SIZE + 1])
def test_a_file_of_another_size_is_not_moved(parts: Parts, size: int) -> None:
    """Its copy would get a checksum of that."""
    file = segment(parts, 1)
    os.truncate(place(parts, 1), size)
    with pytest.raises(SegmentChangedError, match=f"has {size} bytes instead of {SIZE}"):
        move(parts, 1)
    assert segment(parts, 1) is file


def let_go(parts: Parts) -> None:
    trio.run(parts.sources.finish)


def test_a_moved_segment_is_another_file_with_the_same_content(parts: Parts) -> None:
    former, target = segment(parts, 1), other(parts, 1)
    move(parts, 1)
    assert segment(parts, 1).disk == target != former.disk
    assert parts.kernel.invalidated == [name_of(1)]
    let_go(parts)
    assert place(parts, 1).read_bytes() == bytes([1]) * 4096
    assert list(parts.commitlog.others) == []


def test_a_write_that_comes_with_the_new_name_is_not_lost(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source was compared for the last time, and an open still leads to it. The writer closes it at once, so
    nothing shows later that it was in use."""
    publish, source, former = SegmentCopy.publish, place(parts, 1), segment(parts, 1).disk

    def published(copy: SegmentCopy, name: bytes) -> Published:
        done = publish(copy, name)
        with source.open("r+b") as writer:
            writer.write(b"written")
        return done

    monkeypatch.setattr(SegmentCopy, "publish", published)
    move(parts, 1)
    let_go(parts)

    async def free() -> None:
        async with parts.freeing_runs():
            await until(lambda: segment(parts, 1).disk == former)

    trio.run(free)
    assert source.read_bytes()[:7] == b"written"


def test_a_move_is_finished_when_its_files_are_closed(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, its descriptor makes the source look as if a process had it open."""
    file, close, go_on = segment(parts, 1), SegmentCopy.close, threading.Event()

    def waiting(copy: SegmentCopy) -> None:
        assert go_on.wait(PATIENCE_S)
        close(copy)

    monkeypatch.setattr(SegmentCopy, "close", waiting)

    async def main() -> None:
        ends: list[bool] = []

        async def finish() -> None:
            await parts.mover.finish_moves_from(file.disk)
            ends.append(go_on.is_set())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.mover.move, file, other(parts, 1), lambda: 0, lambda: True)
            await until(lambda: segment(parts, 1) is not file)
            nursery.start_soon(finish)
            await wait_all_tasks_blocked()
            go_on.set()
        assert ends == [True]

    trio.run(main)
    let_go(parts)
    assert list(parts.commitlog.others) == []


def test_the_newest_segments_stay(parts: Parts) -> None:
    count = len(parts.commitlog.catalog)
    for index in range(count - NEWEST_KEPT, count):
        with pytest.raises(MoveStoppedError):
            move(parts, index)


def test_a_copy_whose_name_may_be_lost_is_removed_before_the_next_attempt(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of one segment beside it would not be one segment for the next daemon."""
    former = segment(parts, 1)

    def fail(_dirfd: int) -> None:
        raise OSError(errno.EIO, "test")

    with monkeypatch.context() as broken:
        broken.setattr(durable, "sync_dir", fail)
        with pytest.raises(UncertainPublishError):
            move(parts, 1)
    assert segment(parts, 1) is former
    assert sum((d / name_of(1).decode()).exists() for d in parts.directories) == 2
    with pytest.raises(MoveStoppedError):
        move(parts, 1)
    trio.run(parts.mover.remove_stray_copies)
    assert place(parts, 1).parent == parts.directories[former.disk - 1]
    move(parts, 1)
    let_go(parts)
    assert place(parts, 1).read_bytes() == bytes([1]) * 4096


def test_another_file_under_the_copys_name_is_left_alone(parts: Parts) -> None:
    strange = parts.directories[other(parts, 1) - 1] / name_of(1).decode()
    strange.write_bytes(b"strange")
    with pytest.raises((FileExistsError, StoreError)):
        move(parts, 1)
    trio.run(parts.mover.remove_stray_copies)
    assert strange.read_bytes() == b"strange"
    assert (parts.directories[segment(parts, 1).disk - 1] / name_of(1).decode()).stat().st_size == 4096


def test_what_the_device_returns_is_compared(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev

    def damage(fd: int, buffers: list[memoryview], position: int) -> int:
        buffers[0][100] ^= 1
        return write(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", damage)
    with pytest.raises(StoreError, match="reads back from the device otherwise"):
        move(parts, 1)
    assert place(parts, 1).read_bytes() == bytes([1]) * 4096
    assert parts.commitlog.counters.move_failures == 1


@pytest.mark.parametrize("change", ["its target is cordoned", "it is among the newest again"])
def test_what_changes_before_the_last_step_is_seen(
    parts: Parts, when_verified: Callable[[Callable[[], None]], None], change: str
) -> None:
    former, target = segment(parts, 1), other(parts, 1)

    def apply() -> None:
        if change == "its target is cordoned":
            parts.commitlog.disks[target].cordon = Cordon(1)
        else:
            for index in range(2, len(parts.commitlog.catalog) - 1):
                parts.commitlog.catalog.remove(segment(parts, index))

    when_verified(apply)
    with pytest.raises(MoveStoppedError):
        move(parts, 1)
    assert segment(parts, 1) is former
    assert [(d / name_of(1).decode()).exists() for d in parts.directories] == [
        number == former.disk for number in parts.commitlog.disks
    ]


def test_a_copy_whose_former_file_a_missing_disk_may_have_stays(parts: Parts) -> None:
    """Only the mark of the copy tells that the two are one segment when that disk is back. Once the disk is no
    member any more, nothing can come back."""
    log, copy, target = parts.commitlog, segment(parts, 1), other(parts, 1)
    missing = DiskNumber(len(log.disks) + 1)
    log.record_membership(log.membership.joined_by("an id", "/pulled-out"))
    fd = os.open(place(parts, 1), os.O_RDWR)
    write_mark(fd, source_of(missing, unpack(copy.attributes)))
    os.close(fd)
    trio.run(parts.attributes.refresh, copy)
    with pytest.raises(FormerFileError, match="/pulled-out is missing, and may have a former file"):
        move(parts, 1)
    assert segment(parts, 1) is copy
    log.record_membership(log.membership.without(missing))
    move(parts, 1)
    assert segment(parts, 1).disk == target
