"""The disks record what a daemon finds out a moment before its orderly end. A failed write is found although its
file is closed at once."""

import contextlib
import errno
import math
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import pyfuse3
import pytest
import trio
from support.pooled import OURS, PATIENT, SIZE, Parts, has_calls, name_of, open_parts, place
from support.waiting import until
from trio.testing import MockClock, wait_all_tasks_blocked

from commitlogfs.fusefs import connection
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.integrity import verdicts
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.store import layout
from commitlogfs.store.disks import health, identity, lost_writes
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.identity import parse_identity
from commitlogfs.store.disks.membership import Cordon, Membership
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.scrub.verdict import Kind, Verdict, parse_verdict, whole_verdict
from commitlogfs.store.timing import LostWriteTiming

T = TypeVar("T")

LOOK_S = 10_000.0
CORDON = Cordon(1_700_000_000, "noisy")


@asynccontextmanager
async def daemon(parts: Parts) -> AsyncIterator[None]:
    """Those parts at work that record something, until the orderly end of a daemon."""
    parts.backing.begin(BackingTable.create(0), None, "no kernel")
    await parts.usage.refresh(0.0)
    async with trio.open_nursery() as nursery:
        for work in (parts.background, parts.disk_memory, parts.member_records, parts.verdicts):
            nursery.start_soon(work.run)
        nursery.start_soon(parts.lost_writes.run, parts.handles.may_be_open)
        yield
        await parts.finish()
        nursery.cancel_scope.cancel()


async def segment(parts: Parts) -> Segment:
    """A new one, which a broker has open."""
    handle = await parts.creation.create(name_of(0), OURS)
    await parts.resizing.resize(handle.file, Changes(size=SIZE))
    return handle.file


def suspect(parts: Parts, disk: Disk) -> None:
    now_s = parts.commitlog.clock.monotonic()
    health.record_error(disk, DiskFailedError(disk.path, "test"), now_s, parts.commitlog.timing.health)


def members(parts: Parts, disk: int) -> Membership:
    directory = str(parts.directories[disk - 1])
    return parse_identity(os.getxattr(directory, layout.XATTR_IDENTITY), directory).membership


def test_a_cordon_that_nobody_has_waited_for(workdir: Path) -> None:
    async def main() -> None:
        async with daemon(parts):
            disk = next(iter(parts.commitlog.disks.values()))
            assert await parts.member_records.cordon(disk, CORDON)
        recorded = [members(parts, number).members[0].cordon for number in parts.commitlog.disks]
        assert CORDON in recorded, "one list is enough: the next daemon completes the others"

    with open_parts(workdir) as parts:
        trio.run(main)


class Gate(Generic[T]):
    """A call to a disk that hangs until this is opened."""

    def __init__(self, call: Callable[..., T]) -> None:
        self._call = call
        self._is_open = threading.Event()

    def __call__(self, *arguments: object) -> T:
        self._is_open.wait()
        return self._call(*arguments)

    def open(self) -> None:
        self._is_open.set()


def test_the_list_of_members_is_waited_for(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Gate(identity.write_identity)
    ended = trio.Event()

    async def finish() -> None:
        await parts.finish()
        ended.set()

    async def main() -> None:
        disk = next(iter(parts.commitlog.disks.values()))
        parts.backing.begin(BackingTable.create(0), None, "no kernel")
        await parts.usage.refresh(0.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.background.run)
            nursery.start_soon(parts.member_records.run)
            assert await parts.member_records.cordon(disk, CORDON)
            nursery.start_soon(finish)
            await wait_all_tasks_blocked()
            ended_early = ended.is_set()
            writing.open()
            await ended.wait()
            assert not ended_early
            assert any(members(parts, number).members[0].cordon == CORDON for number in parts.commitlog.disks)
            nursery.cancel_scope.cancel()

    with open_parts(workdir) as parts:
        monkeypatch.setattr(identity, "write_identity", writing)
        try:
            trio.run(main)
        finally:
            writing.open()


def test_a_disk_that_hangs_is_not_waited_for_long(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The health of the disks is kept before: the process may end meanwhile."""
    writing = Gate(verdicts.write_verdict)
    begun, ended = trio.Event(), trio.Event()
    clock = MockClock()

    def write(*arguments: object) -> Verdict:
        trio.from_thread.run_sync(begun.set)
        return writing(*arguments)

    async def main() -> None:
        parts.backing.begin(BackingTable.create(0), None, "no kernel")
        found = await segment(parts)
        suspect(parts, parts.commitlog.disk_of(found))
        parts.verdicts.record(found, whole_verdict(Kind.ROTTED, SIZE, 1_700_000_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.background.run)
            await parts.background.drain()
            nursery.start_soon(finish)
            await begun.wait()
            assert parts.backing.kept_notes()
            await wait_all_tasks_blocked()
            assert not ended.is_set()
            clock.jump(parts.commitlog.timing.verdicts.finish_s)
            await wait_all_tasks_blocked()
            assert ended.is_set()
            nursery.cancel_scope.cancel()

    async def finish() -> None:
        await parts.finish()
        ended.set()

    timing = replace(PATIENT, verdicts=replace(PATIENT.verdicts, record_s=10 * PATIENT.verdicts.finish_s))
    with open_parts(workdir, timing=timing) as parts:
        monkeypatch.setattr(verdicts, "write_verdict", write)
        try:
            trio.run(main, clock=clock)
        finally:
            writing.open()


def test_a_connection_that_ends_is_an_orderly_end(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(max_tasks: int) -> None:
        """Something is found as the last request is answered."""
        await wait_all_tasks_blocked()
        parts.verdicts.record(created[0], whole_verdict(Kind.ROTTED, SIZE, 1_700_000_000))

    async def no_text() -> bytes:
        return b""

    async def main() -> None:
        parts.backing.begin(BackingTable.create(0), None, "no kernel")
        await parts.usage.refresh(0.0)
        created.append(await segment(parts))
        await connection.serve(CommitLogOperations(parts, ControlContents(no_text, no_text)))
        assert layout.XATTR_VERDICT in os.listxattr(place(parts, 0))

    created: list[Segment] = []
    monkeypatch.setattr(pyfuse3, "main", answer)
    with open_parts(workdir) as parts:
        trio.run(main)


def test_a_verdict(workdir: Path) -> None:
    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            parts.verdicts.record(found, whole_verdict(Kind.ROTTED, SIZE, 1_700_000_000))
        verdict = parse_verdict(os.getxattr(place(parts, 0), layout.XATTR_VERDICT))
        assert verdict is not None
        assert verdict.kind is Kind.ROTTED

    with open_parts(workdir) as parts:
        trio.run(main)


def test_the_health_of_a_disk(workdir: Path) -> None:
    async def main() -> None:
        async with daemon(parts):
            await wait_all_tasks_blocked()
            disk = next(iter(parts.commitlog.disks.values()))
            suspect(parts, disk)
        disk.suspected_since_s = None
        assert not disk.is_troubled
        parts.disk_memory.restore()
        assert disk.is_troubled

    with open_parts(workdir) as parts:
        trio.run(main, clock=MockClock())


class Watched:
    """A broker's segment, and the kernel's answer to the question whether a write to it has failed: once, after one
    has. Without a device that fails, nothing else makes the kernel say so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_failed = False
        self.questions = 0
        monkeypatch.setattr(lost_writes, "require_written", self._require_written)

    async def begin(self, clock: MockClock) -> None:
        """Returns when the segment is watched."""

        def has_asked() -> bool:
            clock.jump(LOOK_S)
            return self.questions > 0

        await until(has_asked, math.inf)

    def _require_written(self, _watch: int) -> None:
        self.questions += 1
        if self.has_failed:
            self.has_failed = False
            raise OSError(errno.EIO, "test")


@pytest.mark.parametrize("missing", [((0, SIZE),), ()], ids=["lost", "written_again"])
def test_a_write_that_has_failed_before_the_last_close(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[tuple[int, int], ...]
) -> None:
    """A broker's last flush has failed, which the kernel has reported to the broker only, and it ends."""
    clock, watched = MockClock(rate=1.0), Watched(monkeypatch)
    reading = Gate(lambda _watch: missing)
    monkeypatch.setattr(lost_writes, "find_lost", reading)

    async def main() -> None:
        async with daemon(parts):
            found = await fail_before_the_last_close(parts, watched, clock)
            assert parts.lost_writes.may_lack_writes(found), "until it is examined"
            reading.open()
            await until(lambda: not open_files(found))
            assert parts.lost_writes.may_lack_writes(found) is bool(missing)
            assert (parts.verdicts.kind_of(found) is Kind.WRITE_LOST) is bool(missing)

    timing = replace(PATIENT, lost_writes=LostWriteTiming(look_s=LOOK_S))
    with open_parts(workdir, timing=timing) as parts:
        try:
            trio.run(main, clock=clock)
        finally:
            reading.open()


async def fail_before_the_last_close(parts: Parts, watched: Watched, clock: MockClock) -> Segment:
    """The segment; returns when its last close has heard of the failure. A request may still use the descriptor."""
    found = await segment(parts)
    await watched.begin(clock)
    watched.has_failed = True
    await parts.handles.release(inodes.encode(found))
    await until(lambda: not watched.has_failed)
    return found


def open_files(file: Segment) -> int:
    """Number of descriptors that this process has of a file."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.stat(f"/proc/self/fd/{fd}").st_ino == file.ino
    return count


def test_a_failed_write_that_nothing_has_examined_at_the_end(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, watched = MockClock(rate=1.0), Watched(monkeypatch)
    reading = Gate(lambda _watch: ())
    monkeypatch.setattr(lost_writes, "find_lost", reading)

    async def main() -> None:
        async with daemon(parts):
            await fail_before_the_last_close(parts, watched, clock)
        assert layout.XATTR_VERDICT in os.listxattr(place(parts, 0))

    timing = replace(PATIENT, lost_writes=LostWriteTiming(look_s=LOOK_S))
    with open_parts(workdir, timing=timing) as parts:
        try:
            trio.run(main, clock=clock)
        finally:
            reading.open()


def test_a_disk_that_does_not_answer_is_not_asked(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the last close nor at the end: a thread would hold the daemon as long as the disk."""
    clock, watched = MockClock(rate=1.0), Watched(monkeypatch)

    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            await watched.begin(clock)
        await until(lambda: not has_calls())
        parts.commitlog.disk_of(found).is_unresponsive = True
        before = watched.questions
        await parts.lost_writes.finish()
        await parts.lost_writes.release(found)
        assert watched.questions == before

    timing = replace(PATIENT, lost_writes=LostWriteTiming(look_s=LOOK_S))
    with open_parts(workdir, timing=timing) as parts:
        trio.run(main, clock=clock)


def test_the_cordon_of_a_failed_sync(workdir: Path) -> None:
    """The task that gives it may be late: another disk's list of members, or an examination, holds it."""

    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            await wait_all_tasks_blocked()
            parts.lost_writes.record_failed_sync(found, OSError(errno.EIO, "test"), None)
            await parts.lost_writes.finish()
            assert parts.commitlog.disk_of(found).cordon is not None

    with open_parts(workdir) as parts:
        trio.run(main)


def test_a_write_that_has_failed_since_the_last_question(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watched = MockClock(rate=1.0), Watched(monkeypatch)

    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            await watched.begin(clock)
            watched.has_failed = True
        assert not watched.has_failed, "the last daemon that the kernel reports it to"
        verdict = parse_verdict(os.getxattr(place(parts, 0), layout.XATTR_VERDICT))
        assert verdict is not None
        assert verdict.kind is Kind.WRITE_LOST
        cordons = [members(parts, number).members[found.disk - 1].cordon for number in parts.commitlog.disks]
        assert any(cordon is not None and name_of(0).decode() in cordon.reason for cordon in cordons)

    timing = replace(PATIENT, lost_writes=LostWriteTiming(look_s=LOOK_S))
    with open_parts(workdir, timing=timing) as parts:
        trio.run(main, clock=clock)
