"""Creates beside disks that do not answer, at exact times: the next disk is asked after a quarter of a second."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from support.files import names_in
from support.pooled import OURS, PATIENT, Parts, name_of, open_parts
from support.waiting import PATIENCE_S, eventually
from trio.testing import MockClock

from commitlogfs.fusefs.errors import errno_of
from commitlogfs.fusefs.files.handles import Handle
from commitlogfs.store.disks import health
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import NoDiskAvailableError
from commitlogfs.store.files import allocate, safe_open
from commitlogfs.store.timing import RequestTiming

DEFAULTS = RequestTiming()
NAME = name_of(0)
MOMENT_S = 0.001


class Silence:
    """Disks that do not answer to one kind of call, until they are released."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.begun: list[int] = []
        """Disks on which such a call has begun, in this order."""
        self._released = {number: threading.Event() for number in parts.commitlog.disks}
        self._errors: dict[int, int] = {}

    def wait(self, dirfd: int) -> None:
        """Called in the thread of a disk."""
        number = next(number for number, disk in self._parts.commitlog.disks.items() if disk.dirfd == dirfd)
        self.begun.append(number)
        assert self._released[number].wait(PATIENCE_S)
        if code := self._errors.get(number):
            raise OSError(code, "injected")

    def release(self, *numbers: int, error: int = 0) -> None:
        for number in numbers:
            self._errors[number] = error
            self._released[DiskNumber(number)].set()

    def release_all(self) -> None:
        self.release(*self._released)


class Life:
    """Three disks, of which none is released, and a create in virtual time."""

    def __init__(self, parts: Parts, clock: MockClock, silence: Silence) -> None:
        self.parts = parts
        self.clock = clock
        self.silence = silence
        self.handle: Handle | None = None
        self.error: Exception | None = None

    async def _create(self) -> None:
        try:
            self.handle = await self.parts.creation.create(NAME, OURS)
        except NoDiskAvailableError as error:
            self.error = error

    @property
    def has_ended(self) -> bool:
        return self.handle is not None or self.error is not None

    @asynccontextmanager
    async def creating(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._create)
            yield

    async def when(self, condition: Callable[[], bool]) -> None:
        """In real time, because threads take part."""
        await trio.to_thread.run_sync(partial(eventually, condition))

    async def asked(self, *numbers: int) -> None:
        """When these disks, and no others, have been asked."""
        await self.when(lambda: self.silence.begun == list(numbers))

    async def passes(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    def holders(self) -> list[int]:
        return [n for n, path in enumerate(self.parts.directories, 1) if NAME.decode() in names_in(path)]

    def open_files(self) -> int:
        """Descriptors of files of the pool."""
        roots = tuple(map(str, self.parts.directories))
        count = 0
        for entry in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{entry}").startswith(tuple(f"{root}/" for root in roots))
            except FileNotFoundError:
                continue
        return count


@pytest.fixture(params=["reserve", "link"])
def call(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def live(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[[Life], Awaitable[None]]], None]:
    """Runs a life whose disks are silent to reserving or to linking."""

    def run(call: str, life: Callable[[Life], Awaitable[None]]) -> None:
        clock = MockClock()
        with open_parts(workdir, timing=replace(PATIENT, requests=DEFAULTS)) as parts:
            silence = Silence(parts)
            reserve, link = allocate.reserve, safe_open.link_unnamed

            async def live_and_release(with_disks: Life) -> None:
                try:
                    await life(with_disks)
                finally:
                    silence.release_all()  # a thread that waits holds the event loop

            def silent_reserve(dirfd: int, segment_size: int, owner: allocate.Owner) -> int:
                silence.wait(dirfd)
                return reserve(dirfd, segment_size, owner)

            def silent_link(fd: int, dirfd: int, name: bytes) -> None:
                silence.wait(dirfd)
                link(fd, dirfd, name)

            with monkeypatch.context() as patch:
                if call == "reserve":
                    patch.setattr(allocate, "reserve", silent_reserve)
                else:
                    patch.setattr(safe_open, "link_unnamed", silent_link)
                trio.run(live_and_release, Life(parts, clock, silence), clock=clock)

    return run


def test_the_next_disk_is_asked_after_a_quarter_of_a_second(live, call):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        async with life.creating():
            await life.asked(1)
            await life.passes(DEFAULTS.hedge_s - MOMENT_S)
            assert life.silence.begun == [1]
            await life.passes(MOMENT_S)
            await life.when(lambda: life.has_ended)
        assert life.clock.current_time() == pytest.approx(DEFAULTS.hedge_s)
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert life.holders() == [2]

    live(call, main)


def test_what_the_loser_makes_late_goes(live, call):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        async with life.creating():
            await life.asked(1)
            await life.passes(DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        commitlog = life.parts.commitlog
        leftovers = [file.disk for file in commitlog.others.leftovers_named(NAME)]
        assert leftovers == ([1] if call == "link" else [])
        life.silence.release(1)
        if call == "link":
            await life.when(lambda: life.holders() == [1, 2])
        await life.when(lambda: life.open_files() == 1)
        health.record_success(commitlog.disks[DiskNumber(1)])
        async with life.parts.freeing_runs():
            life.clock.rate = 1.0
            await life.when(lambda: life.holders() == [2])
        assert life.handle is not None
        assert commitlog.find_name(NAME) is life.handle.file

    live(call, main)


def test_all_disks_are_slow_and_one_makes_it_in_time(live, call):
    """A create fails only when its time is over."""

    async def main(life: Life) -> None:
        async with life.creating():
            for numbers in ([1], [1, 2], [1, 2, 3]):
                await life.asked(*numbers)
                await life.passes(DEFAULTS.hedge_s)
            await life.passes(2.0)
            assert not life.has_ended
            life.silence.release(2)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert not life.parts.commitlog.disks[DiskNumber(1)].is_troubled
        life.silence.release(1, 3)
        await life.when(lambda: life.open_files() == 1)
        assert life.parts.commitlog.find_name(NAME) is life.handle.file
        assert life.holders() == ([1, 2, 3] if call == "link" else [2])

    live(call, main)


def test_no_disk_answers(live, call):
    async def main(life: Life) -> None:
        async with life.creating():
            for numbers in ([1], [1, 2], [1, 2, 3]):
                await life.asked(*numbers)
                await life.passes(DEFAULTS.hedge_s)
            await life.passes(DEFAULTS.create_s - 3 * DEFAULTS.hedge_s - MOMENT_S)
            assert not life.has_ended
            await life.passes(MOMENT_S)
        assert life.error is not None
        assert errno_of(life.error) == errno.EIO
        life.silence.release(3)
        if call == "link":  # nobody else has made it, so it is the segment
            await life.when(lambda: life.parts.commitlog.find_name(NAME) is not None)
        life.silence.release_all()
        await life.when(lambda: life.open_files() == 0)
        commitlog = life.parts.commitlog
        file = commitlog.find_name(NAME)
        assert life.holders() == ([1, 2, 3] if call == "link" else [])
        assert (file and file.disk) == (3 if call == "link" else None)
        assert [one.disk for one in commitlog.others.leftovers_named(NAME)] == ([1, 2] if call == "link" else [])

    live(call, main)


def test_a_disk_that_hung_and_then_fails_is_passed_over(live, call):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        async with life.creating():
            await life.asked(1)
            await life.passes(DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        life.silence.release(1, error=errno.EIO)
        disk = life.parts.commitlog.disks[DiskNumber(1)]
        await life.when(lambda: disk.last_failure is not None)
        assert life.holders() == [2]
        await life.when(lambda: life.open_files() == 1)
        assert life.handle is not None
        assert life.parts.commitlog.find_name(NAME) is life.handle.file

    live(call, main)


def test_a_disk_that_has_not_answered_yet_is_asked_last(live):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        async with life.creating():
            await life.asked(1)
            await life.passes(DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        began_s = life.clock.current_time()
        for index in range(1, 4):
            handle = await life.parts.creation.create(name_of(index), OURS)
            assert handle.file.disk != 1
        assert life.clock.current_time() == began_s

    live("reserve", main)


def test_a_link_that_waits_for_a_thread_does_not_begin_after_the_end(live):
    """Its create has made the segment elsewhere by then."""

    async def main(life: Life) -> None:
        life.silence.release_all()
        disk, threads = DiskNumber(1), life.parts.threads
        busy = threading.Event()
        async with trio.open_nursery() as nursery:

            def occupy() -> None:
                assert busy.wait(PATIENCE_S)

            reserve = allocate.reserve

            def reserve_and_occupy(dirfd: int, segment_size: int, owner: allocate.Owner) -> int:
                trio.from_thread.run_sync(start_busy_work)
                return reserve(dirfd, segment_size, owner)

            def start_busy_work() -> None:
                for _ in range(int(threads._limiters[disk].total_tokens)):
                    nursery.start_soon(threads.run, disk, occupy)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(allocate, "reserve", reserve_and_occupy)
                async with life.creating():
                    await life.when(lambda: threads.statistics()[disk] == threads._limiters[disk].total_tokens)
                    patch.setattr(allocate, "reserve", reserve)
                    await trio.testing.wait_all_tasks_blocked()
                    await life.passes(DEFAULTS.hedge_s)
                    await life.when(lambda: life.has_ended)
            assert life.handle is not None
            assert life.handle.file.disk == 2
            assert not life.parts.commitlog.others.leftovers_named(NAME)
            busy.set()
        await life.when(lambda: life.open_files() == 1)
        assert life.silence.begun == [2]
        assert life.holders() == [2]

    live("link", main)
