"""A disk that fails or hangs while it gives a file its name may have kept the name. The segment is made on another
disk; what the first one has kept is empty, known as a leftover, and goes."""

import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from support.files import names_in
from support.pooled import OURS, PATIENT, SIZE, Parts, open_parts
from support.waiting import PATIENCE_S, until
from trio.testing import MockClock

from commitlogfs.fusefs.errors import errno_of
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks import health
from commitlogfs.store.errors import DiskError, NoDiskAvailableError, SegmentExistsError
from commitlogfs.store.files import allocate, durable, safe_open
from commitlogfs.store.files.allocate import Owner

NAME = b"%020d" % 0
COPY = b".%b.x1" % NAME
HEDGE_S = 10_000.0
CREATE_S = 100 * HEDGE_S
DISKS = 3
TIMING = replace(PATIENT, requests=replace(PATIENT.requests, create_s=CREATE_S, hedge_s=HEDGE_S))


@pytest.fixture
def parts(workdir):
    with open_parts(workdir, timing=TIMING) as parts:
        yield parts


@pytest.fixture
def ill(monkeypatch):
    """The next link is carried out and reported as failed; whatever is reserved afterwards is refused."""
    link, reserve = safe_open.link_unnamed, allocate.reserve
    ill_directory: list[tuple[int, int]] = []

    def directory(dirfd: int) -> tuple[int, int]:
        st = os.fstat(dirfd)
        return st.st_dev, st.st_ino

    def failing_link(fd: int, dirfd: int, name: bytes) -> None:
        link(fd, dirfd, name)
        if not ill_directory:
            ill_directory.append(directory(dirfd))
            raise OSError(errno.EIO, "injected")

    def failing_reserve(dirfd: int, segment_size: int, owner: Owner) -> int:
        if directory(dirfd) in ill_directory:
            raise OSError(errno.EIO, "injected")
        return reserve(dirfd, segment_size, owner)

    monkeypatch.setattr(safe_open, "link_unnamed", failing_link)
    monkeypatch.setattr(allocate, "reserve", failing_reserve)
    return ill_directory


def holders(parts: Parts, name: bytes) -> list[int]:
    return [n for n, directory in enumerate(parts.directories) if name.decode() in names_in(directory)]


async def refusal_expired(parts: Parts) -> None:
    """Wait until a recent refusal does not answer creates any more."""
    await until(lambda: not parts.commitlog.admission.refuses_for_now(parts.commitlog.clock.monotonic()))


async def create_refused(parts: Parts) -> None:
    with pytest.raises(SegmentExistsError):
        await parts.creation.create(NAME, OURS)


def test_a_link_reported_as_failed_leaves_an_empty_file_that_goes(parts, ill):
    async def main() -> None:
        handle = await parts.creation.create(NAME, OURS)
        assert holders(parts, NAME) == [0, handle.file.disk - 1]
        assert parts.commitlog.find_name(NAME) is handle.file
        assert len(parts.commitlog.catalog) == 1
        health.record_success(parts.commitlog.disks[1])
        async with parts.freeing_runs():
            await until(lambda: holders(parts, NAME) == [handle.file.disk - 1])

    trio.run(main)


def test_a_leftover_that_holds_data_by_now_stays(parts, ill, caplog):
    async def main() -> None:
        handle = await parts.creation.create(NAME, OURS)
        (parts.directories[0] / NAME.decode()).write_bytes(b"x")
        health.record_success(parts.commitlog.disks[1])
        async with parts.freeing_runs():
            await until(lambda: "leftover_kept" in caplog.text)
        assert holders(parts, NAME) == [0, handle.file.disk - 1]
        assert caplog.text.count("leftover_kept") == 1

    trio.run(main)


def test_without_another_disk_a_denied_name_is_made_where_it_failed(workdir, ill):
    async def main(parts: Parts) -> None:
        with pytest.raises(NoDiskAvailableError):
            await parts.creation.create(NAME, OURS)
        await refusal_expired(parts)
        with pytest.raises(NoDiskAvailableError):
            await parts.creation.create(NAME, OURS)  # it is still there
        (parts.directories[0] / NAME.decode()).unlink()
        ill.clear()
        ill.append((0, 0))
        await refusal_expired(parts)
        await parts.creation.create(NAME, OURS)
        assert holders(parts, NAME) == [0]

    with open_parts(workdir, 1) as parts:
        trio.run(main, parts)


def test_a_file_that_somebody_put_there_is_not_doubled_when_its_disk_is_skipped(parts):
    async def main() -> None:
        (parts.directories[0] / NAME.decode()).touch()
        await create_refused(parts)
        parts.commitlog.disks[1].retry_at_s = float("inf")
        await create_refused(parts)
        assert holders(parts, NAME) == [0]

    trio.run(main)


def test_a_rename_that_failed_half_way_keeps_the_name_taken(parts, monkeypatch):
    def failing_sync(dirfd: int) -> None:
        raise OSError(errno.EIO, "injected")

    async def main() -> None:
        handle = await parts.creation.create(COPY, OURS)
        os.ftruncate(handle.fd, SIZE)
        await parts.handles.release(inodes.encode(handle.file))
        with monkeypatch.context() as patch:
            patch.setattr(durable, "sync_dir", failing_sync)
            with pytest.raises(DiskError):
                await parts.copies.publish(COPY, NAME)
        parts.commitlog.disks[1].retry_at_s = float("inf")
        await create_refused(parts)
        assert holders(parts, NAME) == [0]

    trio.run(main)


@dataclass
class SlowLinks:
    """The first `only` links of NAME, or all, wait for the event."""

    only: int = 1 << 30
    event: threading.Event = field(default_factory=threading.Event)
    begun: int = 0
    clock: MockClock = field(default_factory=lambda: MockClock(rate=1.0))

    @asynccontextmanager
    async def out_of_time(self) -> AsyncIterator[None]:
        """Let the time of each waiting link pass, and that of the create when all disks have been asked."""

        async def move_clock() -> None:
            for count in range(1, min(self.only, DISKS) + 1):
                await until(lambda count=count: self.begun >= count)
                self.clock.jump(HEDGE_S)
            if self.begun == DISKS:
                self.clock.jump(CREATE_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move_clock)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def slow_link(monkeypatch):
    link, slow = safe_open.link_unnamed, SlowLinks()

    def waiting_link(fd: int, dirfd: int, name: bytes) -> None:
        if name == NAME and slow.only > 0:
            slow.only -= 1
            slow.begun += 1
            assert slow.event.wait(PATIENCE_S)
        link(fd, dirfd, name)

    monkeypatch.setattr(safe_open, "link_unnamed", waiting_link)
    yield slow
    slow.event.set()


def test_beside_a_link_that_hangs_the_segment_is_made_elsewhere(parts, slow_link):
    async def main() -> None:
        slow_link.only = 1
        async with slow_link.out_of_time():
            handle = await parts.creation.create(NAME, OURS)
        await parts.creation.create(b"%020d" % SIZE, OURS)
        assert holders(parts, NAME) == [handle.file.disk - 1] != [0]

        # The disk answers after all: what it has made is no part of the log.
        slow_link.event.set()
        await until(lambda: len(holders(parts, NAME)) == 2)
        health.record_success(parts.commitlog.disks[1])
        async with parts.freeing_runs():
            await until(lambda: holders(parts, NAME) == [handle.file.disk - 1])
        assert parts.commitlog.find_name(NAME) is handle.file

    trio.run(main, clock=slow_link.clock)


def test_a_link_that_hung_is_the_segment_if_no_other_was_made(parts, slow_link):
    async def main() -> None:
        async with slow_link.out_of_time():
            with pytest.raises(NoDiskAvailableError):
                await parts.creation.create(NAME, OURS)
        slow_link.event.set()
        await until(lambda: len(holders(parts, NAME)) == 3)
        await until(lambda: parts.commitlog.find_name(NAME) is not None)
        await until(lambda: parts.handles.statistics().files == 0)
        file = parts.commitlog.find_name(NAME)
        for disk in parts.commitlog.disks.values():
            health.record_success(disk)
        async with parts.freeing_runs():
            await until(lambda: holders(parts, NAME) == [file.disk - 1])
        await parts.removals.unlink(NAME)
        assert holders(parts, NAME) == []

    trio.run(main, clock=slow_link.clock)


def test_a_cancelled_create_leaves_a_segment_but_nothing_open(parts, slow_link):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.creation.create, NAME, OURS)
            await until(lambda: slow_link.begun > 0)
            nursery.cancel_scope.cancel()
        slow_link.event.set()
        await until(lambda: parts.commitlog.find_name(NAME) is not None)
        await until(lambda: parts.handles.statistics().opens == 0)

    trio.run(main, clock=slow_link.clock)


def test_a_rename_that_hangs_holds_up_its_own_names_only(workdir, monkeypatch):
    timing = replace(PATIENT, requests=replace(PATIENT.requests, rename_s=0.05))
    link, go_on = os.link, threading.Event()

    def waiting_link(*arguments: Any, **options: Any) -> None:
        assert go_on.wait(PATIENCE_S)
        link(*arguments, **options)

    async def main(parts: Parts) -> None:
        handle = await parts.creation.create(COPY, OURS)
        os.ftruncate(handle.fd, SIZE)
        await parts.handles.release(inodes.encode(handle.file))
        monkeypatch.setattr(os, "link", waiting_link)
        with pytest.raises(DiskError):
            await parts.copies.publish(COPY, NAME)
        for change in (parts.removals.unlink(COPY), parts.copies.publish(COPY, NAME)):
            with pytest.raises(DiskError):
                await change
        with pytest.raises(SegmentExistsError):
            await parts.creation.create(NAME, OURS)
        go_on.set()
        await until(lambda: parts.commitlog.find_name(NAME) is not None)
        assert holders(parts, NAME) == [0]
        assert holders(parts, COPY) == []

    with open_parts(workdir, timing=timing) as parts:
        trio.run(main, parts)


def test_every_disk_hung_for_a_moment_and_the_next_create_succeeds(parts, monkeypatch):
    """As when a machine is frozen for a snapshot: no disk is held against a broker that tries again."""
    reserve = allocate.reserve

    def failing(dirfd: int, segment_size: int, owner: Owner) -> int:
        raise OSError(errno.EIO, "injected")

    async def main() -> None:
        monkeypatch.setattr(allocate, "reserve", failing)
        with pytest.raises(NoDiskAvailableError) as refused:
            await parts.creation.create(NAME, OURS)
        assert errno_of(refused.value) == errno.EIO
        monkeypatch.setattr(allocate, "reserve", reserve)
        await refusal_expired(parts)
        await parts.creation.create(NAME, OURS)

    trio.run(main)
