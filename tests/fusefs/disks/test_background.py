"""After a change of names: each disk's record of the newest segment, written only where it changes."""

import errno
import os
import threading
from dataclasses import replace

import trio
from support.pooled import PATIENT, open_parts
from support.waiting import PATIENCE_S

from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.segment import BaseOffset, format_segment_name

SIZE = 4096
OWNER = Owner(os.geteuid(), os.getegid(), 0o644)


def names(count):
    return [format_segment_name(index * SIZE) for index in range(count)]


def records(parts):
    return [os.getxattr(directory, layout.XATTR_NEWEST) for directory in parts.directories]


def test_every_disk_records_the_newest_segment(workdir):
    async def main():
        for name in names(4):
            await parts.creation.create(name, OWNER)
            background.request(parts.commitlog.catalog.last.disk)
        await background.drain()
        assert records(parts) == [identity.format_newest(BaseOffset(3 * SIZE))] * 3

    with open_parts(workdir) as parts:
        background = BackgroundSync(parts.commitlog, parts.threads)
        trio.run(main)


def test_a_removed_old_segment_touches_its_own_disk_only(workdir):
    async def main():
        for name in names(4):
            await parts.creation.create(name, OWNER)
        background.request(parts.commitlog.catalog.last.disk)
        await background.drain()
        mark = b"12345"
        for directory in parts.directories:
            os.setxattr(directory, layout.XATTR_NEWEST, mark)
        disk = parts.commitlog.catalog.first.disk
        await parts.removals.unlink(names(1)[0])
        background.request(disk)
        await background.drain()
        assert records(parts) == [identity.format_newest(BaseOffset(3 * SIZE)), mark, mark]

        # The newest one removed: every record changes.
        await parts.removals.unlink(names(4)[3])
        background.request(disk)
        await background.drain()
        assert records(parts) == [identity.format_newest(BaseOffset(2 * SIZE))] * 3

    with open_parts(workdir) as parts:
        background = BackgroundSync(parts.commitlog, parts.threads)
        trio.run(main)


class Gate:
    """Syncs wait before it until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def close(self, monkeypatch, function):
        original = getattr(os, function)

        def gated(fd: int) -> None:
            assert self._open.wait(PATIENCE_S)
            original(fd)

        monkeypatch.setattr(os, function, gated)

    def open(self) -> None:
        self._open.set()


async def create_waits(parts, name, gate):
    """Whether a create ends only after the gate has been opened."""
    ended = False

    async def create():
        nonlocal ended
        await parts.creation.create(name, OWNER)
        ended = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create)
        await trio.sleep(0.1)  # an opportunity to end too early
        waits = not ended
        gate.open()
    return waits


def test_a_segment_is_made_only_when_its_predecessors_name_is_committed(workdir, monkeypatch):
    gate = Gate()

    async def main():
        first, second = names(2)
        await parts.creation.create(first, OWNER)
        assert await create_waits(parts, second, gate)

    with open_parts(workdir) as parts:
        gate.close(monkeypatch, "fsync")
        trio.run(main)


def test_a_segment_is_made_only_when_its_predecessors_size_is_committed(workdir, monkeypatch):
    gate = Gate()

    async def main():
        first, second = names(2)
        handle = await parts.creation.create(first, OWNER)
        await parts.background.drain()  # its name is
        gate.close(monkeypatch, "fsync")
        await parts.resizing.resize(handle.file, Changes(size=SIZE))
        assert await create_waits(parts, second, gate)

    with open_parts(workdir) as parts:
        trio.run(main)


def test_a_predecessor_on_a_disk_that_hangs_is_not_waited_for_without_end(workdir, monkeypatch):
    gate = Gate()
    timing = replace(PATIENT, requests=replace(PATIENT.requests, commit_s=0.05))

    async def main():
        first, second = names(2)
        await parts.creation.create(first, OWNER)
        handle = await parts.creation.create(second, OWNER)
        assert handle.file.disk != parts.commitlog.catalog.first.disk
        gate.open()

    with open_parts(workdir, timing=timing) as parts:
        gate.close(monkeypatch, "fsync")
        trio.run(main)


def test_a_sync_that_fails_is_tried_again_and_its_disk_passed_over(workdir, monkeypatch):
    fsync, calls = os.fsync, []

    def failing(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, "injected")
        fsync(fd)

    async def main():
        await parts.creation.create(names(1)[0], OWNER)
        disk = parts.commitlog.catalog.first.disk
        monkeypatch.setattr(os, "fsync", failing)
        await parts.background.committed(disk)
        assert parts.commitlog.disks[disk].last_failure is not None
        assert disk in parts.commitlog.evaluate(parts.commitlog.disks[disk].retry_at_s - 1).in_backoff
        await parts.background.committed(disk)
        assert len(calls) == 2
        await parts.background.committed(disk)
        assert len(calls) == 2

    with open_parts(workdir) as parts:
        trio.run(main)
