"""A disk hangs or fails while it gives a new segment its size. As on ext4, the size can be seen before the journal
has it, so it does not show whether anybody has written to the segment."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import trio
from support.files import names_in
from support.pooled import OURS, PATIENT, SIZE, Parts, name_of, open_parts
from support.waiting import PATIENCE_S, eventually
from trio.testing import MockClock

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store import _syscalls
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files import changes
from commitlogfs.store.files.attributes import PackedAttributes, mtime_of
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.timing import RequestTiming

DEFAULTS = RequestTiming()
MOMENT_S = 0.001
WHOLE = Changes(size=SIZE)


@dataclass
class Journal:
    """The journal of the disk: a change of size waits for it, when the size can be seen already."""

    answers: threading.Event = field(default_factory=threading.Event)
    error: int = 0
    begun: int = 0

    def answer(self, error: int = 0) -> None:
        self.error = error
        self.answers.set()

    def answer_once(self) -> None:
        """Only the calls that wait now."""
        answers, self.answers = self.answers, threading.Event()
        answers.set()


def unknown(_fd: int) -> tuple[int, int, int, int]:
    raise OSError(errno.ENOSYS, "Function not implemented")


class Life:
    """A new segment on the first disk, which does not answer to a change of size."""

    def __init__(self, parts: Parts, clock: MockClock, journal: Journal) -> None:
        self.parts = parts
        self.clock = clock
        self.journal = journal
        self.errors: list[Exception | None] = []

    async def make(self) -> Segment:
        handle = await self.parts.creation.create(name_of(0), OURS)
        assert handle.file.disk == 1
        return handle.file

    async def resize(self, file: Segment, wanted: Changes = WHOLE) -> None:
        try:
            await self.parts.resizing.resize(file, wanted)
        except DiskFailedError as error:
            self.errors.append(error)
        else:
            self.errors.append(None)

    @asynccontextmanager
    async def resizing(self, file: Segment, wanted: Changes = WHOLE) -> AsyncIterator[None]:
        """A change of size is under way within, and has ended for its caller afterwards."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.resize, file, wanted)
            await self.when(lambda: self.journal.begun > 0)
            await trio.testing.wait_all_tasks_blocked()
            yield

    async def refused(self, file: Segment, after_s: float = DEFAULTS.resize_s) -> None:
        """A change of size whose caller gets an error after exactly that time."""
        async with self.resizing(file):
            await self.passes(after_s - MOMENT_S)
            assert not self.errors
            await self.passes(MOMENT_S)
            await self.when(lambda: bool(self.errors))
        assert isinstance(self.errors.pop(), DiskFailedError)

    async def stays(self, file: Segment) -> None:
        """The disk has had the time after which another one is preferred, and the segment is not given up."""
        await self.passes(DEFAULTS.resize_s)
        await self.when(lambda: list(self.parts.threads.statistics().values()) == [1, 0, 0])
        await trio.testing.wait_all_tasks_blocked()
        assert file.role is Role.SEGMENT
        assert not self.errors

    async def when(self, condition: Callable[[], bool]) -> None:
        """In real time, because threads take part."""
        await trio.to_thread.run_sync(partial(eventually, condition))

    async def passes(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    def holders(self) -> list[int]:
        return [n for n, path in enumerate(self.parts.directories, 1) if name_of(0).decode() in names_in(path)]


Live = Callable[..., None]


@pytest.fixture
def live(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    def run(life: Callable[[Life], Awaitable[None]], disks: int = 3) -> None:
        clock, journal, apply = MockClock(), Journal(), changes.apply

        def silent_apply(
            dirfd: int, path: bytes, ino: int, wanted: Changes, check_resize: Callable[[int, int], None]
        ) -> PackedAttributes:
            attributes = apply(dirfd, path, ino, wanted, check_resize)
            journal.begun += 1
            assert journal.answers.wait(PATIENCE_S)
            if journal.error:
                raise OSError(journal.error, "injected")
            return attributes

        async def live_and_release(one: Life) -> None:
            try:
                await life(one)
            finally:
                journal.answers.set()

        with (
            open_parts(workdir, disks, timing=replace(PATIENT, requests=DEFAULTS)) as parts,
            monkeypatch.context() as patch,
        ):
            patch.setattr(changes, "apply", silent_apply)
            trio.run(live_and_release, Life(parts, clock, journal), clock=clock)

    return run


def test_a_segment_is_given_up_although_its_size_shows(live: Live) -> None:
    async def main(life: Life) -> None:
        file = await life.make()
        await life.refused(file)
        assert file.role is Role.GIVEN_UP
        assert not life.parts.commitlog.disks[DiskNumber(1)].is_troubled, "a quarter of a second proves nothing"
        made = await life.parts.creation.create(name_of(0), OURS)
        assert made.file.disk == 2
        assert life.holders() == [1, 2]
        life.journal.answer()  # the file is whole on the first disk now, without data
        await life.parts.handles.release(inodes.encode(file))
        await life.when(lambda: not life.parts.threads.statistics()[DiskNumber(1)])
        assert (life.parts.directories[0] / name_of(0).decode()).stat().st_size == SIZE
        async with life.parts.freeing_runs():
            life.clock.rate = 1.0
            await life.when(lambda: life.holders() == [2])
        assert life.parts.commitlog.find_name(name_of(0)) is made.file

    live(main)


def test_a_segment_is_given_up_when_its_disk_fails_instead(live: Live) -> None:
    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file):
            life.journal.answer(errno.EIO)
        assert isinstance(life.errors[0], DiskFailedError)
        assert file.role is Role.GIVEN_UP
        assert life.parts.commitlog.disks[DiskNumber(1)].is_troubled
        assert (await life.parts.creation.create(name_of(0), OURS)).file.disk == 2

    live(main)


def test_a_segment_that_somebody_has_written_to_is_waited_for(live: Live) -> None:
    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file):
            async with life.parts.handles.use(inodes.encode(file)) as handle:
                os.pwrite(handle.fd, b"x", 100)
            await life.stays(file)
            life.journal.answer()
        assert life.errors == [None]
        assert file.size == SIZE

    live(main)


def test_an_old_kernel_cannot_tell_and_its_disk_is_waited_for(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(life: Life) -> None:
        monkeypatch.setattr(_syscalls, "cachestat", unknown)
        file = await life.make()
        async with life.resizing(file):
            await life.stays(file)
            await life.passes(DEFAULTS.change_s - DEFAULTS.resize_s - MOMENT_S)
            assert not life.errors
            await life.passes(MOMENT_S)
        assert isinstance(life.errors[0], DiskFailedError)
        assert life.journal.begun == 1
        life.journal.answer()
        await life.when(lambda: file.size == SIZE)

    live(main)


def test_what_was_written_and_evicted_before_a_second_refusal_is_seen(live: Live) -> None:
    """A writer that the kernel serves needs no ftruncate. What it has synced need not be in memory."""

    async def main(life: Life) -> None:
        file = await life.make()
        async with life.parts.handles.use(inodes.encode(file)) as handle:
            async with life.resizing(file):
                os.pwrite(handle.fd, b"x", 100)
                life.journal.answer(errno.EIO)
            assert file.role is Role.SEGMENT
            os.fsync(handle.fd)
            os.posix_fadvise(handle.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert not any(_syscalls.cachestat(handle.fd))
            await life.resize(file)
        assert file.role is Role.SEGMENT
        await life.parts.handles.release(inodes.encode(file))
        await life.resize(file)
        assert file.role is Role.SEGMENT

    live(main)


@pytest.mark.parametrize("is_open", [True, False])
def test_the_blocks_show_that_a_refused_segment_is_empty(
    live: Live, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    async def main(life: Life) -> None:
        monkeypatch.setattr(_syscalls, "cachestat", unknown)
        file = await life.make()
        async with life.resizing(file):
            life.journal.answer(errno.EIO)
        assert file.role is Role.SEGMENT
        if not is_open:
            await life.parts.handles.release(inodes.encode(file))
        await life.resize(file)
        assert file.role is Role.GIVEN_UP

    live(main)


def test_names_wait_a_quarter_of_a_second_for_the_blocks(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sick disk may not answer, and everybody who creates or removes a segment waits meanwhile. The segment stays
    then: it may hold data."""

    async def main(life: Life) -> None:
        monkeypatch.setattr(_syscalls, "cachestat", unknown)
        file, names = await life.make(), life.parts.changes.lock
        async with life.resizing(file):
            life.journal.answer(errno.EIO)
        asked, may_answer = threading.Event(), threading.Event()

        def ask_silent_disk(*_: object) -> bool:
            asked.set()
            return may_answer.wait(PATIENCE_S)

        monkeypatch.setattr(leftovers, "name_holds_nothing", ask_silent_disk)
        try:
            async with life.resizing(file):
                await life.when(asked.is_set)
                await life.passes(DEFAULTS.resize_s - MOMENT_S)
                assert names.locked()
                await life.passes(MOMENT_S)
                assert not names.locked()
        finally:
            may_answer.set()
        assert file.role is Role.SEGMENT

    live(main)


def test_a_size_that_its_disk_has_refused_is_not_shown(live: Live) -> None:
    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file):
            life.journal.answer(errno.EIO)
        await life.parts.attributes.refresh(file)
        await life.parts.listing.refresh()
        assert file.size == 0
        life.journal.answer()
        await life.resize(file)
        assert file.size == SIZE

    live(main, disks=1)


def test_without_another_disk_the_same_call_is_waited_for(live: Live) -> None:
    """A second one would find the size and succeed, although the disk has not answered."""

    async def main(life: Life) -> None:
        file = await life.make()
        for _ in range(2):
            await life.refused(file, DEFAULTS.change_s)
        assert life.journal.begun == 1
        assert file.role is Role.SEGMENT
        life.journal.answer()
        await life.when(lambda: file.size == SIZE)

    live(main, disks=1)


def test_a_change_to_another_size_is_a_change_of_its_own(live: Live) -> None:
    """As a broker's ftruncate behind an open with O_TRUNC: the answer to one says nothing about the other."""

    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file, Changes(size=0)), life.resizing(file):
            assert life.journal.begun == 1
            life.journal.answer()
        assert life.errors == [None, None]
        assert file.size == SIZE

    live(main)


def test_a_change_to_another_size_has_three_seconds_in_all(live: Live) -> None:
    """The change before it has some of them."""

    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file, Changes(size=0)):
            await life.passes(1.0)
            async with life.resizing(file):
                await life.passes(DEFAULTS.change_s - 0.5)
                await life.when(lambda: len(life.errors) == 1)
                life.journal.answer_once()
                await life.when(lambda: life.journal.begun == 2)
                await life.passes(0.5 - MOMENT_S)
                assert len(life.errors) == 1
                await life.passes(MOMENT_S)
                await life.when(lambda: len(life.errors) == 2)
        assert all(isinstance(error, DiskFailedError) for error in life.errors)
        assert life.clock.current_time() == pytest.approx(1.0 + DEFAULTS.change_s)
        life.journal.answer()
        await life.when(lambda: file.size == SIZE)

    live(main, disks=1)


def test_a_size_that_no_disk_has_confirmed_is_not_shown(live: Live) -> None:
    """A process that sees it could map the segment, and store what nobody would know of."""

    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file):
            await life.parts.attributes.refresh(file)
            await life.parts.listing.refresh()
            assert file.size == 0
            life.journal.answer()
        assert life.errors == [None]
        assert file.size == SIZE

    live(main)


def test_what_a_write_has_recorded_stays_when_the_disk_refuses_the_size_after_it(live):
    """Otherwise no stat would count any more, and its times stood still."""

    async def main(life: Life) -> None:
        file = await life.make()
        async with life.resizing(file):
            async with life.parts.handles.use(inodes.encode(file)) as handle:
                written = await life.parts.disk_files[file.disk].write(handle.fd, memoryview(b"x"), 100, grows=True)
            assert written is not None
            life.parts.commitlog.record_attributes(file, written)
            life.journal.answer(errno.EIO)
        os.utime(life.parts.directories[0] / name_of(0).decode(), ns=(5, 5))
        await life.parts.attributes.refresh(file)
        assert mtime_of(file.attributes) == 5

    live(main, disks=1)


def test_a_size_that_stays_under_way_has_three_seconds_in_all(live, monkeypatch: pytest.MonkeyPatch):
    """Also if a change of names delays the decision to give the segment up."""
    monkeypatch.setattr(_syscalls, "cachestat", unknown)

    async def main(life: Life) -> None:
        file, names = await life.make(), life.parts.changes.lock
        async with life.resizing(file):
            async with names:
                await life.passes(DEFAULTS.resize_s)
                await life.when(lambda: names.statistics().tasks_waiting == 1)
                await life.passes(DEFAULTS.change_s - DEFAULTS.resize_s - MOMENT_S)
                assert not life.errors
            await trio.testing.wait_all_tasks_blocked()
            await life.passes(MOMENT_S)
            await life.when(lambda: bool(life.errors))
        assert file.role is Role.SEGMENT
        assert life.clock.current_time() == pytest.approx(DEFAULTS.change_s)

    live(main)


def test_a_change_to_another_size_of_a_segment_that_was_given_up_is_stale_at_once(live):
    async def main(life: Life) -> None:
        file = await life.make()
        await life.refused(file)
        assert file.role is Role.GIVEN_UP
        with pytest.raises(inodes.StaleInodeError):
            await life.parts.resizing.resize(file, Changes(size=0))

    live(main)
