"""Answers about files, the directory and the filesystem beside a disk that hangs, in virtual time. Each hang is a
threading.Event; the clock stands still unless a test sets it forward."""

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, cast

import pytest
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileNameT, FUSEError, InodeT, RequestContext
from support.pooled import OURS, SIZE, Parts, make, name_of, open_parts, place, segment
from support.waiting import PATIENCE_S, eventually
from trio.testing import MockClock, wait_all_tasks_blocked

from commitlogfs.fusefs import connection
from commitlogfs.fusefs.disks import usage_monitor
from commitlogfs.fusefs.disks.disk_threads import THREADS_PER_DISK
from commitlogfs.fusefs.files import disk_files
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files import safe_open
from commitlogfs.store.files.attributes import mtime_of, with_size
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.timing import DEFAULT

COUNT = 9
ROUNDS = 40
"""The order in which two tasks wake in the same moment is random."""
CTX = cast(RequestContext, None)
ROOT = InodeT(inodes.ROOT)
SOON_S, STAT_S = DEFAULT.requests.refresh_s, DEFAULT.requests.stat_s
NEW_NS = 1_700_000_000_123_456_789
HUNG = DiskNumber(1)
"""The disk that hangs; it has segments 0, 3 and 6."""


class HangingCalls:
    """Calls on a disk that have no answer before `answer`."""

    def __init__(self, dirfd: int) -> None:
        self._dirfd = dirfd
        self._answers = threading.Event()
        self.has_begun = threading.Event()
        self.count = 0

    def wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(fd: int, *arguments: object) -> object:
            if fd == self._dirfd:
                self.wait()
            return function(fd, *arguments)

        return call

    def wait(self) -> None:
        self.count += 1
        self.has_begun.set()
        assert self._answers.wait(PATIENCE_S)

    def answer(self) -> None:
        self._answers.set()


class Served(NamedTuple):
    parts: Parts
    operations: CommitLogOperations
    clock: MockClock

    def run(self, task: Callable[[], Awaitable[None]]) -> None:
        trio.run(task, clock=self.clock)

    async def seconds(self, request: Awaitable[object], calls: HangingCalls, advance_s: float = 0.0) -> float:
        """How long a request takes, if the clock is set forward when it waits for the disk."""
        calls.has_begun.clear()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def advance() -> None:
                await until_really(calls.has_begun.is_set)
                await wait_all_tasks_blocked()
                while not self._others_have_answered():  # they do in real time
                    await until_really(self._others_have_answered)
                    await wait_all_tasks_blocked()
                self.clock.jump(advance_s)

            if advance_s:
                nursery.start_soon(advance)
            await request
        return trio.current_time() - began_s

    def _others_have_answered(self) -> bool:
        return not any(count for disk, count in self.parts.threads.statistics().items() if disk != HUNG)

    async def lookup(self, index: int) -> EntryAttributes:
        return await self.operations.lookup(ROOT, FileNameT(name_of(index)), CTX)


async def until_really(condition: Callable[[], bool]) -> None:
    """In real time: threads answer in it, whatever the clock of trio is."""
    await trio.to_thread.run_sync(eventually, condition)


async def _nothing() -> bytes:
    return b"{}"


@pytest.fixture
def served(workdir: Path) -> Iterator[Served]:
    with open_parts(workdir, timing=DEFAULT) as parts:
        clock = MockClock()

        async def fill() -> None:
            for index in range(COUNT):
                await make(parts, index)
                await parts.attributes.refresh(segment(parts, index))

        trio.run(fill, clock=clock)
        yield Served(parts, CommitLogOperations(parts, ControlContents(_nothing, _nothing)), clock)


@pytest.fixture
def hanging(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingCalls]:
    """The disk answers no question about files or its usage."""
    calls = HangingCalls(served.parts.commitlog.disks[HUNG].dirfd)
    monkeypatch.setattr(safe_open, "stat_path", calls.wrap(safe_open.stat_path))
    monkeypatch.setattr(disk_files, "stat_changes", calls.wrap(disk_files.stat_changes))
    monkeypatch.setattr(usage_monitor, "measure_usage", calls.wrap(usage_monitor.measure_usage))
    yield calls
    calls.answer()


def touch(parts: Parts, index: int) -> None:
    """A change of which the daemon gets no request."""
    os.utime(place(parts, index), ns=(NEW_NS, NEW_NS))


async def until_idle(parts: Parts) -> None:
    await until_really(lambda: not any(parts.threads.statistics().values()))
    await wait_all_tasks_blocked()


def inode_of(file: Segment) -> InodeT:
    return InodeT(int(inodes.encode(file)))


def test_only_the_first_request_waits_and_only_for_a_moment(served: Served, hanging: HangingCalls) -> None:
    async def task() -> None:
        assert await served.seconds(served.lookup(0), hanging, SOON_S) == SOON_S
        for index in (0, 3, 6):
            inode = inode_of(segment(served.parts, index))
            assert await served.seconds(served.lookup(index), hanging) == 0.0
            assert await served.seconds(served.operations.getattr(inode, CTX), hanging) == 0.0
        assert await served.seconds(served.operations.opendir(ROOT, CTX), hanging) == 0.0
        assert hanging.count == 1, "no further thread is held"
        assert served.parts.threads.statistics()[HUNG] == 1
        assert (await served.lookup(3)).st_size == SIZE
        hanging.answer()

    served.run(task)


def test_the_other_disks_are_asked_as_before(served: Served, hanging: HangingCalls) -> None:
    async def task() -> None:
        await served.seconds(served.lookup(0), hanging, SOON_S)
        touch(served.parts, 1)
        assert (await served.lookup(1)).st_mtime_ns == NEW_NS
        hanging.answer()

    served.run(task)


def test_the_late_answer_is_recorded_and_the_disk_asked_again(served: Served, hanging: HangingCalls) -> None:
    async def task() -> None:
        file = segment(served.parts, 0)
        await served.seconds(served.lookup(0), hanging, SOON_S)
        touch(served.parts, 0)
        touch(served.parts, 3)
        hanging.answer()
        await until_really(lambda: mtime_of(file.attributes) == NEW_NS)
        assert (await served.lookup(3)).st_mtime_ns == NEW_NS

    served.run(task)


def test_a_late_answer_does_not_undo_a_change(served: Served, hanging: HangingCalls) -> None:
    async def task() -> None:
        file = segment(served.parts, 0)
        changed = with_size(file.attributes, SIZE)
        touch(served.parts, 0)
        await served.seconds(served.lookup(0), hanging, SOON_S)
        served.parts.commitlog.record_attributes(file, changed)
        hanging.answer()
        await until_idle(served.parts)
        assert file.attributes is changed

    served.run(task)


def test_opening_the_directory_waits_for_a_moment_and_lists_what_others_have(
    served: Served, hanging: HangingCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_files, "STATS_AT_ONCE", 2)

    async def task() -> None:
        for index in range(COUNT):
            touch(served.parts, index)
        opening = served.operations.opendir(ROOT, CTX)
        assert await served.seconds(opening, hanging, SOON_S) == SOON_S
        assert hanging.count == 1
        fresh = {index for index in range(COUNT) if mtime_of(segment(served.parts, index).attributes) == NEW_NS}
        assert fresh == {1, 2, 4, 5, 7, 8}
        assert await served.seconds(served.operations.opendir(ROOT, CTX), hanging) == 0.0
        hanging.answer()
        await until_really(lambda: mtime_of(segment(served.parts, 0).attributes) == NEW_NS)
        await served.operations.opendir(ROOT, CTX)
        assert all(mtime_of(segment(served.parts, index).attributes) == NEW_NS for index in range(COUNT))

    served.run(task)


def test_the_size_of_an_open_file_needs_no_disk(served: Served, hanging: HangingCalls) -> None:
    """As a copy grows that the kernel writes without the daemon."""

    async def task() -> None:
        handle = await served.parts.creation.create(name_of(COUNT), OURS)
        assert handle.file.disk == HUNG
        inode = inode_of(handle.file)
        os.pwrite(handle.fd, b"message", 0)
        getting = served.operations.getattr(inode, CTX)
        assert await served.seconds(getting, hanging, SOON_S) == SOON_S
        assert handle.file.size == 7
        os.pwrite(handle.fd, bytes(SIZE), 0)
        assert (await served.operations.getattr(inode, CTX)).st_size == SIZE
        assert served.parts.commitlog.catalog.get(handle.file.base_offset) is handle.file, "it is a whole segment"
        hanging.answer()
        await served.parts.handles.release(inode)

    served.run(task)


def test_a_new_segment_that_is_written_past_its_end_is_a_whole_one(served: Served, hanging: HangingCalls) -> None:
    """With passthrough nobody tells the daemon, and the disk does not answer."""

    async def task() -> None:
        handle = await served.parts.creation.create(name_of(COUNT), OURS)
        os.pwrite(handle.fd, bytes(SIZE + 1), 0)
        getting = served.operations.getattr(inode_of(handle.file), CTX)
        assert await served.seconds(getting, hanging, SOON_S) == SOON_S
        assert handle.file.size == SIZE
        assert served.parts.commitlog.catalog.last_whole is handle.file
        hanging.answer()
        await served.parts.handles.release(inode_of(handle.file))

    served.run(task)


def test_the_late_answer_counts_for_a_segment_that_is_written_past_its_end(
    served: Served, hanging: HangingCalls
) -> None:
    """Memory knows nothing newer: its size stays the same."""

    async def task() -> None:
        file = segment(served.parts, 0)
        handle = await served.parts.handles.open(file)
        os.pwrite(handle.fd, b"past the end", SIZE)
        touch(served.parts, 0)
        assert await served.seconds(served.operations.getattr(inode_of(file), CTX), hanging, SOON_S) == SOON_S
        assert (file.size, mtime_of(file.attributes) == NEW_NS) == (SIZE, False)
        hanging.answer()
        await until_really(lambda: mtime_of(file.attributes) == NEW_NS)
        assert file.size == SIZE
        await served.parts.handles.release(inode_of(file))

    served.run(task)


def test_the_size_at_the_last_close_needs_no_disk(
    served: Served, hanging: HangingCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.parts.backing, "is_passed_through", lambda _file: True)

    async def task() -> None:
        handle = await served.parts.creation.create(name_of(COUNT), OURS)
        os.pwrite(handle.fd, b"message", 0)
        release = served.operations.release(FileHandleT(inode_of(handle.file)))
        assert await served.seconds(release, hanging, SOON_S) == SOON_S
        assert not served.parts.handles.is_open(handle.file)
        assert (await served.lookup(COUNT)).st_size == 7
        hanging.answer()

    served.run(task)


def test_a_file_that_may_have_grown_under_a_former_daemon_is_waited_for(
    served: Served, hanging: HangingCalls
) -> None:
    """Nothing in memory says how long it is."""

    async def task() -> None:
        served.parts.backing.begin(BackingTable.create(0), None, "no kernel")
        handle = await served.parts.creation.create(name_of(COUNT), OURS)
        file, inode = handle.file, inode_of(handle.file)
        await served.parts.handles.release(inode)
        connection.take_up(served.operations, state_lost=False, resend=lambda: None)
        os.truncate(place(served.parts, COUNT), SIZE - 1)
        assert await served.seconds(served.operations.getattr(inode, CTX), hanging, STAT_S) == STAT_S
        hanging.answer()
        await until_idle(served.parts)
        assert (await served.operations.getattr(inode, CTX)).st_size == file.size == SIZE - 1

    served.run(task)


def test_what_was_written_past_the_end_is_cut_by_one_request_only(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk shows the size, but does not answer the ftruncate."""
    hanging = HangingCalls(-1)
    truncate = os.ftruncate

    def hang(fd: int, size: int) -> None:
        hanging.wait()
        truncate(fd, size)

    async def task() -> None:
        os.truncate(place(served.parts, 0), SIZE + 1)
        monkeypatch.setattr(os, "ftruncate", hang)
        assert await served.seconds(served.lookup(0), hanging, STAT_S) == STAT_S
        assert await served.seconds(served.lookup(0), hanging) == 0.0
        assert (await served.lookup(0)).st_size == SIZE
        assert hanging.count == 1
        hanging.answer()
        await until_really(lambda: place(served.parts, 0).stat().st_size == SIZE)
        await until_idle(served.parts)

    with ExitStack() as stack:
        stack.callback(hanging.answer)
        served.run(task)


def test_what_is_written_past_the_end_while_it_is_cut_off_shows_nowhere(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With passthrough nobody tells the daemon: the disk has the file longer again when the cut reads its size."""
    truncate = os.ftruncate

    def cut_and_write(fd: int, size: int) -> None:
        truncate(fd, size)
        os.truncate(place(served.parts, 0), SIZE + 1)

    async def task() -> None:
        os.truncate(place(served.parts, 0), SIZE + 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", cut_and_write)
            assert (await served.lookup(0)).st_size == SIZE
        assert place(served.parts, 0).stat().st_size == SIZE + 1
        assert (await served.lookup(0)).st_size == place(served.parts, 0).stat().st_size == SIZE

    served.run(task)


def test_a_disk_that_is_only_busy_answers_for_itself(served: Served) -> None:
    """Reads hold all its threads. A change that only the disk knows of would escape an rsync that looks for it."""
    hanging = HangingCalls(-1)

    async def task() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(THREADS_PER_DISK):
                nursery.start_soon(served.parts.threads.run, HUNG, hanging.wait)
            await until_really(lambda: hanging.count == THREADS_PER_DISK)
            touch(served.parts, 0)
            touch(served.parts, 3)
            seen_ns = (await served.lookup(0)).st_mtime_ns
            await served.operations.opendir(ROOT, CTX)
            hanging.answer()
        assert (seen_ns, mtime_of(segment(served.parts, 3).attributes)) == (NEW_NS, NEW_NS)

    with ExitStack() as stack:
        stack.callback(hanging.answer)
        served.run(task)


def test_a_sync_that_ends_with_the_time_of_its_close_counts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    may_end, has_ended = trio.Event(), False

    async def commit(_disk: DiskFiles, _fd: int, *, data_only: bool = False) -> None:
        nonlocal has_ended
        await may_end.wait()
        has_ended = True

    async def close(fh: FileHandleT) -> None:
        try:
            await served.operations.flush(fh)
        except FUSEError:
            answers.append(False)
            assert not has_ended
        else:
            answers.append(True)

    async def task() -> None:
        nonlocal may_end, has_ended
        monkeypatch.setattr(DiskFiles, "commit", commit)
        handle = await served.parts.creation.create(name_of(COUNT), OURS)
        fh = FileHandleT(inode_of(handle.file))
        for position in range(ROUNDS):
            await served.operations.write(fh, position, b"x")
            may_end, has_ended = trio.Event(), False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close, fh)
                await wait_all_tasks_blocked()
                served.clock.jump(DEFAULT.requests.flush_s)
                may_end.set()
            await wait_all_tasks_blocked()
        assert len(answers) == ROUNDS
        assert any(answers)
        await served.parts.handles.release(inode_of(handle.file))

    served.run(task)


def test_the_filesystems_figures_wait_for_a_moment(served: Served, hanging: HangingCalls) -> None:
    timing = DEFAULT.requests

    async def task() -> None:
        assert (await served.operations.statfs(CTX)).f_blocks
        served.clock.jump(timing.statfs_age_s)
        first = await served.seconds(served.operations.statfs(CTX), hanging, SOON_S)
        assert first == pytest.approx(SOON_S, abs=1e-9)
        served.clock.jump(timing.usage_s - SOON_S)
        await wait_all_tasks_blocked()
        served.clock.jump(timing.statfs_age_s)
        assert await served.seconds(served.operations.statfs(CTX), hanging) == 0.0
        assert served.parts.commitlog.space.usage(HUNG) is None
        assert hanging.count == 1, "no further thread is held"
        hanging.answer()
        await until_really(lambda: served.parts.commitlog.space.usage(HUNG) is not None)

    served.run(task)
