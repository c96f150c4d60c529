"""Sources of moves that become segments again, without a kernel."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import trio
from support.pooled import Parts, name_of, place, segment

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Segment


@contextmanager
def writer(parts: Parts, index: int) -> Iterator[BinaryIO]:
    """A process that has a segment open."""
    with place(parts, index).open("r+b", buffering=0) as file:
        yield file


async def move(parts: Parts, index: int) -> Segment:
    """To the next disk. Returns what it was copied from, which is set aside while it is open."""
    file = segment(parts, index)
    target = DiskNumber(file.disk % len(parts.commitlog.disks) + 1)
    await parts.mover.move(file, target, lambda: 0, lambda: True)
    await parts.sources.finish()
    return file


async def put_back(parts: Parts, index: int, file: BinaryIO) -> Segment:
    """Move a segment, and write to its former file."""
    source = await move(parts, index)
    file.write(b"late")
    assert await parts.sources.put_back_if_changed(source)
    assert segment(parts, index) is source
    return source


async def run_rounds(parts: Parts) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.sources.run)
        nursery.start_soon(parts.freeing.run)
        for _ in range(2):  # the first one frees the copy
            for disk in parts.commitlog.disks:
                await parts.sources.let_go_now(disk)
                await parts.freeing.free_now(disk)
        nursery.cancel_scope.cancel()


def test_a_put_back_segment_moves_again_when_it_is_closed(parts: Parts) -> None:
    async def main() -> None:
        with writer(parts, 1) as file:
            source = await put_back(parts, 1, file)
            await run_rounds(parts)
            assert not parts.mover.may_move(source)
        await run_rounds(parts)
        assert parts.mover.may_move(source)
        await move(parts, 1)
        assert segment(parts, 1) is not source

    trio.run(main)
    assert place(parts, 1).read_bytes()[:4] == b"late"


def test_a_put_back_segment_stays_while_its_copy_is_open(parts: Parts) -> None:
    """A write to the copy would replace what was written to the segment."""

    async def main() -> None:
        with writer(parts, 1) as file:
            source = await move(parts, 1)
            with writer(parts, 1):
                file.write(b"late")
                assert await parts.sources.put_back_if_changed(source)
                file.close()
                await run_rounds(parts)
                assert not parts.mover.may_move(source)
        await run_rounds(parts)
        assert parts.mover.may_move(source)

    trio.run(main)


def test_a_put_back_segment_that_was_removed_is_forgotten(parts: Parts) -> None:
    """Another file may get its inode number."""

    async def main() -> None:
        with writer(parts, 1) as file:
            source = await put_back(parts, 1, file)
            assert parts.sources.is_written_to(source)
            await parts.removals.unlink(name_of(1))
            await run_rounds(parts)
            assert not parts.sources.is_written_to(source)

    trio.run(main)


def test_a_segment_opened_under_a_former_daemon_moves_again(parts: Parts) -> None:
    """Only the kernel knows whether a process has it open since then."""
    parts.kernel.holds_all = True

    async def main() -> None:
        opened = segment(parts, 1)
        await parts.handles.open(opened)
        parts.backing.resume([opened], parts.commitlog.disks.keys())  # as if a former daemon had opened it
        await parts.handles.release(inodes.encode(opened))
        with writer(parts, 1) as file:
            source = await put_back(parts, 1, file)
        await run_rounds(parts)
        assert not parts.mover.may_move(source)
        parts.kernel.holds_all = False
        await run_rounds(parts)
        assert parts.mover.may_move(source)

    trio.run(main)


def test_a_put_back_source_has_owner_and_mode_of_its_copy(parts: Parts) -> None:
    """A caller has changed them since the move."""
    owner = (77, 88) if os.geteuid() == 0 else (os.geteuid(), os.getegid())

    async def main() -> None:
        with writer(parts, 1) as file:
            source = await move(parts, 1)
            wanted = Changes(mode=0o604, uid=owner[0], gid=owner[1])
            await parts.attributes.change(segment(parts, 1), wanted)
            file.write(b"late")
            assert await parts.sources.put_back_if_changed(source)
            assert segment(parts, 1) is source

    trio.run(main)
    seen = place(parts, 1).stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o604, *owner)
    assert place(parts, 1).read_bytes()[:4] == b"late"
