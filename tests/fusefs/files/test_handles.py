"""Open files: one descriptor each, closed by the last user, freed when retired. Real files, no mount."""

import os

import pytest
import trio
import trio.testing
from support.files import names_in
from support.pooled import OURS, SIZE, Parts
from support.waiting import until

from commitlogfs.fusefs.files.handles import HandleStatistics
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.errors import ForeignFileError, SegmentNotFoundError
from commitlogfs.store.pool.catalog import Segment

NAME = b"%020d" % 0


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


async def make(parts: Parts, *, closed: bool = True) -> Segment:
    handle = await parts.creation.create(NAME, OURS)
    os.ftruncate(handle.fd, SIZE)
    os.pwrite(handle.fd, b"old", 0)
    if closed:
        await parts.handles.release(inodes.encode(handle.file))
    return handle.file


def left_on_disks(parts: Parts) -> list[str]:
    return [name for directory in parts.directories for name in names_in(directory)]


def test_concurrent_first_opens_share_one_descriptor(parts):
    async def main() -> None:
        file = await make(parts)
        handles = parts.handles
        before = open_fds()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(handles.open, file)
        assert handles.statistics() == HandleStatistics(files=1, opens=20)
        assert open_fds() == before + 1
        for _ in range(19):
            await handles.release(inodes.encode(file))
        assert handles.is_open(file)
        await handles.release(inodes.encode(file))
        assert not handles.is_open(file)
        assert handles.statistics() == HandleStatistics(0, 0)
        assert open_fds() == before

    trio.run(main)


def test_a_first_open_that_fails_leaves_nothing_behind(parts):
    async def main() -> None:
        file = await make(parts)
        handles = parts.handles
        (parts.directories[0] / NAME.decode()).unlink()
        before = open_fds()
        for _ in range(3):
            with pytest.raises(ForeignFileError):
                await handles.open(file)
        assert not handles.is_open(file)
        assert open_fds() == before

    trio.run(main)


def test_releases_nobody_knows_are_tolerated(parts):
    async def main() -> None:
        file = await make(parts)
        handles = parts.handles
        await handles.release(inodes.encode(file))
        await handles.release(12345)
        await handles.open(file)
        await handles.release(inodes.encode(file))
        await handles.release(inodes.encode(file))
        assert handles.statistics() == HandleStatistics(0, 0)

    trio.run(main)


def test_a_request_with_a_former_daemons_handle_opens_the_file_for_its_length(parts):
    async def main() -> None:
        file = await make(parts)
        handles = parts.handles
        async with handles.use(inodes.encode(file)) as handle:
            assert os.pread(handle.fd, 3, 0) == b"old"
            assert handles.is_open(file)
        assert not handles.is_open(file)

    trio.run(main)


@pytest.mark.parametrize("inode", [0, 1, 5, 1 << 48, 7 << 48 | 99])
def test_an_inode_of_no_file_is_refused(parts, inode):
    async def main() -> None:
        with pytest.raises(SegmentNotFoundError):
            async with parts.handles.use(inode):
                pass

    trio.run(main)


def test_a_descriptor_is_not_closed_under_a_working_request(parts):
    async def main() -> None:
        file = await make(parts, closed=False)
        handles = parts.handles
        async with handles.use(inodes.encode(file)) as handle:
            await handles.release(inodes.encode(file))
            assert os.pread(handle.fd, 3, 0) == b"old"
        assert not handles.is_open(file)

    trio.run(main)


def test_a_retired_file_is_freed_by_its_last_close(parts):
    async def main() -> None:
        file = await make(parts, closed=False)
        handles = parts.handles
        await handles.open(file)
        await parts.removals.unlink(NAME)
        assert left_on_disks(parts) == [".commitlogfs"]
        inode = inodes.encode(file)
        await handles.release(inode)
        async with handles.use(inode) as handle:
            assert os.pread(handle.fd, 3, 0) == b"old"
        async with parts.freeing_runs():
            await handles.release(inode)
            await until(lambda: left_on_disks(parts) == [])
        assert parts.commitlog.others.retired() == []
        with pytest.raises(SegmentNotFoundError):
            parts.commitlog.find_ino(file.disk, file.ino)

    trio.run(main)


def test_a_file_that_nobody_has_open_goes_at_once(parts):
    async def main() -> None:
        await make(parts)
        await parts.removals.unlink(NAME)
        assert left_on_disks(parts) == []

    trio.run(main)


def test_a_name_made_again_never_mixes_with_the_held_file(parts):
    async def main() -> None:
        old = await make(parts, closed=False)
        await parts.removals.unlink(NAME)
        new = await parts.creation.create(NAME, OURS)
        os.pwrite(new.fd, b"new", 0)
        assert inodes.encode(new.file) != inodes.encode(old)
        async with parts.handles.use(inodes.encode(old)) as handle:
            assert os.pread(handle.fd, 3, 0) == b"old"
        async with parts.freeing_runs():
            await parts.handles.release(inodes.encode(old))
            await until(lambda: left_on_disks(parts) == [NAME.decode()])
        assert os.pread(new.fd, 3, 0) == b"new"

    trio.run(main)


def test_a_retired_file_opened_again_at_its_last_close_is_not_freed(parts):
    """Through /proc/PID/fd, for one: the kernel still knows the inode while the close is under way."""

    async def main() -> None:
        file = await make(parts, closed=False)
        handles = parts.handles
        inode = inodes.encode(file)
        await parts.removals.unlink(NAME)
        async with parts.freeing_runs():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handles.release, inode)
                while handles.is_open(file):  # until the closing has begun
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(handles.open, file)
            async with handles.use(inode) as handle:
                assert os.pread(handle.fd, 3, 0) == b"old"
            await handles.release(inode)
            await until(lambda: left_on_disks(parts) == [])

    trio.run(main)


@pytest.mark.parametrize("remover_first", [True, False])
def test_opening_while_the_file_is_being_removed(parts, remover_first):
    """Either order is right: the opener reads the old content, or gets ENOENT."""

    async def open_and_read(file: Segment) -> str:
        handles = parts.handles
        try:
            await handles.open(file)
        except SegmentNotFoundError:
            return "gone"
        async with handles.use(inodes.encode(file)) as handle:
            assert os.pread(handle.fd, 3, 0) == b"old"
        await handles.release(inodes.encode(file))
        return "open"

    async def main() -> None:
        outcomes = []
        async with parts.freeing_runs():
            for _ in range(20):
                file = await make(parts)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(parts.removals.unlink, NAME)
                    while remover_first and not parts.threads.statistics()[file.disk]:  # until it works on the disk
                        await trio.lowlevel.checkpoint()
                    outcomes.append(await open_and_read(file))
                await until(lambda: left_on_disks(parts) == [])
                assert not parts.handles.is_open(file)
        assert not remover_first or "gone" in outcomes

    trio.run(main)
