"""A disk that fails while it gives a file its name may have kept the name. No retry, of which a broker sends one
every millisecond, may put the same segment on another disk before that disk has denied it."""

import errno
import os
import threading

import pytest
import trio
from support.files import names_in
from support.pooled import Parts, open_parts
from support.waiting import until

from commitlogfs.fusefs import inodes, namespace
from commitlogfs.fusefs.errors import errno_of
from commitlogfs.store import allocate, beneath, durable
from commitlogfs.store.allocate import Owner
from commitlogfs.store.commitlog import NO_SPACE_CACHE_S
from commitlogfs.store.errors import DiskError, NoDiskAvailableError, SegmentExistsError, UncertainPublishError

SIZE = 4096
NAME = b"%020d" % 0
COPY = b".%b.x1" % NAME
OURS = Owner(os.geteuid(), os.getegid(), 0o644)


@pytest.fixture
def parts(workdir):
    with open_parts(workdir) as parts:
        yield parts


@pytest.fixture
def ill(monkeypatch):
    """The next link is carried out and reported as failed; whatever is reserved afterwards is refused."""
    link, reserve = beneath.link_unnamed, allocate.reserve
    ill_folder: list[tuple[int, int]] = []

    def folder(dirfd: int) -> tuple[int, int]:
        st = os.fstat(dirfd)
        return st.st_dev, st.st_ino

    def failing_link(fd: int, dirfd: int, name: bytes) -> None:
        link(fd, dirfd, name)
        if not ill_folder:
            ill_folder.append(folder(dirfd))
            raise OSError(errno.EIO, "injected")

    def failing_reserve(dirfd: int, segment_size: int, owner: Owner) -> int:
        if folder(dirfd) in ill_folder:
            raise OSError(errno.EIO, "injected")
        return reserve(dirfd, segment_size, owner)

    monkeypatch.setattr(beneath, "link_unnamed", failing_link)
    monkeypatch.setattr(allocate, "reserve", failing_reserve)


def holders(parts: Parts, name: bytes) -> list[int]:
    return [n for n, folder in enumerate(parts.folders) if name.decode() in names_in(folder)]


async def create_refused(parts: Parts) -> None:
    with pytest.raises((UncertainPublishError, SegmentExistsError)):
        await parts.namespace.create(NAME, OURS)


def test_a_retry_never_makes_the_segment_on_a_second_disk(parts, ill):
    async def main() -> None:
        for _ in range(3):
            await create_refused(parts)
        assert holders(parts, NAME) == [0]

    trio.run(main)


def test_once_the_disk_denies_the_name_another_disk_takes_it(parts, ill):
    async def main() -> None:
        await create_refused(parts)
        (parts.folders[0] / NAME.decode()).unlink()
        handle = await parts.namespace.create(NAME, OURS)
        assert holders(parts, NAME) == [handle.file.disk - 1] != [0]

    trio.run(main)


def test_a_file_that_somebody_put_there_is_not_doubled_when_its_disk_is_skipped(parts):
    async def main() -> None:
        (parts.folders[0] / NAME.decode()).touch()
        await create_refused(parts)
        parts.commitlog.disks[1].retry_at_s = float("inf")
        await create_refused(parts)
        assert holders(parts, NAME) == [0]

    trio.run(main)


def test_a_rename_that_failed_half_way_keeps_the_name_taken(parts, monkeypatch):
    def failing_sync(dirfd: int) -> None:
        raise OSError(errno.EIO, "injected")

    async def main() -> None:
        handle = await parts.namespace.create(COPY, OURS)
        os.ftruncate(handle.fd, SIZE)
        await parts.namespace.handles.release(inodes.encode(handle.file))
        with monkeypatch.context() as patch:
            patch.setattr(durable, "sync_dir", failing_sync)
            with pytest.raises(DiskError):
                await parts.namespace.publish_copy(COPY, NAME)
        parts.commitlog.disks[1].retry_at_s = float("inf")
        await create_refused(parts)
        assert holders(parts, NAME) == [0]

    trio.run(main)


@pytest.fixture
def slow_link(monkeypatch):
    """The link of NAME waits for the event."""
    link, go_on = beneath.link_unnamed, threading.Event()

    def waiting_link(fd: int, dirfd: int, name: bytes) -> None:
        assert name != NAME or go_on.wait(30)
        link(fd, dirfd, name)

    monkeypatch.setattr(beneath, "link_unnamed", waiting_link)
    monkeypatch.setattr(namespace, "PUBLISH_DEADLINE_S", 0.05)
    yield go_on
    go_on.set()


def test_a_link_that_hangs_holds_up_its_own_name_only(parts, slow_link):
    async def main() -> None:
        with pytest.raises(UncertainPublishError):
            await parts.namespace.create(NAME, OURS)
        with pytest.raises(SegmentExistsError):
            await parts.namespace.create(NAME, OURS)
        await parts.namespace.create(b"%020d" % SIZE, OURS)
        assert holders(parts, NAME) == []

        # The disk answers after all: the segment exists, on that disk, and nobody holds it open.
        slow_link.set()
        await until(lambda: parts.commitlog.find_name(NAME) is not None)
        assert holders(parts, NAME) == [0]
        await until(lambda: parts.namespace.handles.statistics().files == 1)
        await parts.namespace.remove(NAME)
        assert holders(parts, NAME) == []

    trio.run(main)


def test_a_rename_that_hangs_holds_up_its_own_names_only(parts, monkeypatch):
    link, go_on = os.link, threading.Event()

    def waiting_link(*arguments: object, **options: object) -> None:
        assert go_on.wait(30)
        link(*arguments, **options)

    async def main() -> None:
        handle = await parts.namespace.create(COPY, OURS)
        os.ftruncate(handle.fd, SIZE)
        await parts.namespace.handles.release(inodes.encode(handle.file))
        monkeypatch.setattr(os, "link", waiting_link)
        monkeypatch.setattr(namespace, "REMOVE_DEADLINE_S", 0.05)
        with pytest.raises(DiskError):
            await parts.namespace.publish_copy(COPY, NAME)
        for change in (parts.namespace.remove(COPY), parts.namespace.publish_copy(COPY, NAME)):
            with pytest.raises(DiskError):
                await change
        with pytest.raises(SegmentExistsError):
            await parts.namespace.create(NAME, OURS)
        go_on.set()
        await until(lambda: parts.commitlog.find_name(NAME) is not None)
        assert holders(parts, NAME) == [0]
        assert holders(parts, COPY) == []

    trio.run(main)


def test_every_disk_hung_for_a_moment_and_the_next_create_succeeds(parts, monkeypatch):
    """As when a machine is frozen for a snapshot: no disk is held against a broker that tries again."""
    reserve = allocate.reserve

    def failing(dirfd: int, segment_size: int, owner: Owner) -> int:
        raise OSError(errno.EIO, "injected")

    async def main() -> None:
        monkeypatch.setattr(allocate, "reserve", failing)
        with pytest.raises(NoDiskAvailableError) as refused:
            await parts.namespace.create(NAME, OURS)
        assert errno_of(refused.value) == errno.EIO
        monkeypatch.setattr(allocate, "reserve", reserve)
        await trio.sleep(NO_SPACE_CACHE_S)
        await parts.namespace.create(NAME, OURS)

    trio.run(main)
