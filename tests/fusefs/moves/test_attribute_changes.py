"""Changes of a segment's attributes while it moves, without a kernel: none that was answered is lost."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import pytest
import trio
import xxhash
from pyfuse3 import EntryAttributes, FUSEError, InodeT, SetattrFields, XAttrNameT
from support.pooled import SIZE, Parts, name_of, place, segment
from support.request_fields import CONTEXT, ChangedFields
from support.waiting import PATIENCE_S, until
from trio.testing import wait_all_tasks_blocked

from commitlogfs.fusefs import errors
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import SegmentChangedError
from commitlogfs.store.files import changes
from commitlogfs.store.files.allocate import Published
from commitlogfs.store.files.attributes import PackedAttributes, unpack
from commitlogfs.store.moves.copy import SegmentCopy
from commitlogfs.store.pool.catalog import Segment

MODE = 0o604
OLD_NS = 1_600_000_000_123_456_789


class Served(NamedTuple):
    parts: Parts
    operations: CommitLogOperations


async def _nothing() -> bytes:
    return b"{}"


@pytest.fixture
def served(parts: Parts) -> Served:
    return Served(parts, CommitLogOperations(parts, ControlContents(_nothing, _nothing)))


async def change(served: Served, file: Segment, fields: ChangedFields) -> None:
    """One request of the kernel: a new mode, and times of long ago."""
    wanted = EntryAttributes()
    wanted.st_mode = MODE
    wanted.st_atime_ns, wanted.st_mtime_ns = OLD_NS - 1, OLD_NS
    inode = InodeT(int(inodes.encode(file)))
    await served.operations.setattr(inode, wanted, cast(SetattrFields, fields), None, CONTEXT)


async def change_by_path(served: Served, index: int, fields: ChangedFields) -> None:
    """As a kernel does it for a path: at ESTALE it looks the name up again, once."""
    try:
        await change(served, segment(served.parts, index), fields)
    except FUSEError as error:
        if error.errno != errno.ESTALE:
            raise
        await change(served, segment(served.parts, index), fields)


async def move(parts: Parts, index: int) -> None:
    """To the next disk."""
    file = segment(parts, index)
    target = DiskNumber(file.disk % len(parts.commitlog.disks) + 1)
    await parts.mover.move(file, target, lambda: 0, lambda: True)


def mode_of(parts: Parts, index: int) -> int:
    return stat.S_IMODE(place(parts, index).stat().st_mode)


@pytest.mark.parametrize(
    "fields", [ChangedFields(update_mode=True), ChangedFields(update_atime=True, update_mtime=True)]
)
def test_a_change_while_the_copy_gets_its_name_reaches_the_copy(
    served: Served, monkeypatch: pytest.MonkeyPatch, fields: ChangedFields
) -> None:
    """The former file was compared with the copy for the last time."""
    parts, publish = served.parts, SegmentCopy.publish

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            def published(copy: SegmentCopy, name: bytes) -> Published:
                done = publish(copy, name)
                trio.from_thread.run_sync(nursery.start_soon, change_by_path, served, 1, fields)
                trio.from_thread.run(wait_all_tasks_blocked)
                return done

            monkeypatch.setattr(SegmentCopy, "publish", published)
            await move(parts, 1)

    former = segment(parts, 1)
    trio.run(main)
    assert segment(parts, 1) is not former
    seen = place(parts, 1).stat()
    if fields.update_mode:
        assert stat.S_IMODE(seen.st_mode) == MODE == unpack(segment(parts, 1).attributes).mode & 0o777
    else:
        assert (seen.st_atime_ns, seen.st_mtime_ns) == (OLD_NS - 1, OLD_NS)


def test_a_change_under_way_ends_before_the_copy_has_its_name(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, apply = served.parts, changes.apply
    has_begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: object) -> PackedAttributes:
        has_begun.set()
        assert go_on.wait(PATIENCE_S)
        return apply(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(changes, "apply", slow)

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def fail_to_move() -> None:
                with pytest.raises(SegmentChangedError):
                    await move(parts, 1)

            nursery.start_soon(change_by_path, served, 1, ChangedFields(update_mode=True))
            await until(has_begun.is_set)
            nursery.start_soon(fail_to_move)
            await until(lambda: parts.changes.is_in_flight(name_of(1)))
            await wait_all_tasks_blocked()
            go_on.set()

    trio.run(main)
    assert mode_of(parts, 1) == MODE


def test_a_new_atime_does_not_stop_a_move_and_goes_along(
    served: Served, when_verified: Callable[[Callable[[], None]], None]
) -> None:
    parts = served.parts
    when_verified(partial(trio.from_thread.run, change_by_path, served, 1, ChangedFields(update_atime=True)))
    former, before = segment(parts, 1), place(parts, 1).stat()
    trio.run(move, parts, 1)
    assert segment(parts, 1) is not former
    seen = place(parts, 1).stat()
    assert (seen.st_atime_ns, seen.st_mtime_ns) == (OLD_NS - 1, before.st_mtime_ns)


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_the_former_file_of_a_moved_segment_is_not_changed(served: Served, *, is_set_aside: bool) -> None:
    """It has the mtime by which a write to it is found."""
    parts = served.parts

    async def main() -> None:
        former = segment(parts, 1)
        await parts.handles.open(former)
        await move(parts, 1)
        if is_set_aside:
            await parts.sources.finish()
        file = parts.directories[former.disk - 1] / os.fsdecode(former.path)
        before = file.stat()
        for fields in (
            ChangedFields(update_mode=True),
            ChangedFields(update_mtime=True),
            ChangedFields(update_size=True),
        ):
            with pytest.raises(FUSEError) as refused:
                await change(served, former, fields)
            assert refused.value.errno == errno.ESTALE
        assert file.stat() == before

    trio.run(main)


def test_a_change_beside_a_hung_change_of_the_name_is_refused(served: Served) -> None:
    """Nobody knows yet which of the two files will be the segment."""
    parts, file = served.parts, segment(served.parts, 1)
    before = mode_of(parts, 1)

    async def main() -> None:
        async with parts.changes.lock:
            hung = parts.changes.finish(parts.disk_files[file.disk], "link", (file.name,), trio.sleep_forever, 0.0)
            with pytest.raises(errors.store.DiskFailedError):
                await hung
        with pytest.raises(FUSEError) as refused:
            await change(served, file, ChangedFields(update_mode=True))
        assert refused.value.errno == errno.EIO
        assert "no answer yet to an earlier change" in str(refused.value.__cause__)

    trio.run(main)
    assert mode_of(parts, 1) == before


@pytest.mark.parametrize("request_for", ["its mode", "its state", "its checksum"])
def test_a_file_that_has_vanished_is_not_an_unexpected_error(
    served: Served, monkeypatch: pytest.MonkeyPatch, request_for: str
) -> None:
    """A source of a move is removed while a former request reads it by its path."""
    unexpected: list[str] = []
    monkeypatch.setattr(errors, "log_event", lambda *arguments, **_: unexpected.append(arguments[2]))
    file = segment(served.parts, 1)
    place(served.parts, 1).unlink()

    async def main() -> None:
        inode = InodeT(int(inodes.encode(file)))
        if request_for == "its mode":
            await change(served, file, ChangedFields(update_mode=True))
        else:
            name = XAttrNameT(b"user.commitlogfs." + (b"state" if request_for == "its state" else b"xxh3"))
            await served.operations.getxattr(inode, name, CONTEXT)

    with pytest.raises(FUSEError) as refused:
        trio.run(main)
    assert refused.value.errno == (errno.EIO if request_for == "its mode" else errno.ESTALE)
    assert unexpected == []


def test_a_repair_notices_a_change_of_the_damaged_file(
    served: Served, when_verified: Callable[[Callable[[], None]], None]
) -> None:
    """The copy would have the former mode."""
    parts = served.parts
    right = parts.directories[0].parent / "right"
    right.write_bytes(bytes([7]) * SIZE)
    when_verified(partial(trio.from_thread.run, change_by_path, served, 1, ChangedFields(update_mode=True)))

    async def main() -> None:
        file, digest = segment(parts, 1), xxhash.xxh3_128(right.read_bytes()).digest()
        target = DiskNumber(file.disk % len(parts.commitlog.disks) + 1)
        with right.open("rb") as source, pytest.raises(SegmentChangedError):
            await parts.mover.repair(
                file, source.fileno(), digest, target, lambda: 0, lambda: None, trio.CancelScope()
            )
        assert segment(parts, 1) is file

    trio.run(main)
    assert mode_of(parts, 1) == MODE
