"""Creates beside disks that do not answer, at exact times: the next disk is asked after a quarter of a second."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
from support.clocks import VirtualTime, pass_time
from support.files import names_in
from support.pooled import OURS, PATIENT, SIZE, Parts, name_of, open_parts
from support.rooms import Room
from support.waiting import PATIENCE_S, eventually
from trio.testing import MockClock

from commitlogfs.fusefs.errors import errno_of
from commitlogfs.fusefs.files.handles import Handle
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks import health
from commitlogfs.store.disks.membership import Cordon, DiskNumber
from commitlogfs.store.errors import NoDiskAvailableError, SegmentExistsError
from commitlogfs.store.files import allocate, remove, safe_open
from commitlogfs.store.files.attributes import stat_fd
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.retention import AlertCode, Mode, RetentionRules
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.timing import RequestTiming

DEFAULTS = RequestTiming()
NAME = name_of(0)
MOMENT_S = 0.001
STEP_S = 0.05


class Silence:
    """Disks that do not answer to one kind of call, until they are released."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.begun: list[int] = []
        """Disks on which such a call has begun, in this order."""
        self.waiting = 0
        """Number of threads that wait."""
        self._lock = threading.Lock()
        self._released = {number: threading.Event() for number in parts.commitlog.disks}
        self._errors: dict[int, int] = {}

    def wait(self, dirfd: int) -> None:
        """Called in the thread of a disk."""
        number = next(number for number, disk in self._parts.commitlog.disks.items() if disk.dirfd == dirfd)
        self.begun.append(number)
        with self._lock:
            self.waiting += 1
        assert self._released[number].wait(PATIENCE_S)
        with self._lock:
            self.waiting -= 1
        if code := self._errors.get(number):
            raise OSError(code, "injected")

    def release(self, *numbers: int, error: int = 0) -> None:
        for number in numbers:
            self._errors[number] = error
            self._released[DiskNumber(number)].set()

    def release_all(self) -> None:
        self.release(*self._released)

    def begin(self, *numbers: int) -> None:
        """These disks do not answer any more, and nobody has been asked yet."""
        self.begun.clear()
        for number in numbers:
            self._released[DiskNumber(number)].clear()


class Life:
    """Some disks, of which none is released, and a create in virtual time."""

    def __init__(self, parts: Parts, clock: MockClock, silence: Silence, room: Room) -> None:
        self.parts = parts
        self.clock = clock
        self.silence = silence
        self.room = room
        self.name = NAME
        self.handle: Handle | None = None
        self.error: Exception | None = None
        self._left_open = self._files()
        """By former tests, whose disks may have had the same paths: what a disk made when the loop had ended."""

    async def _create(self) -> None:
        try:
            self.handle = await self.parts.creation.create(self.name, OURS)
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

    async def waits_for(self, *numbers: int) -> None:
        """Each of these disks is asked after the one before has had its time, and has its time, too."""
        for count in range(1, len(numbers) + 1):
            await self.asked(*numbers[:count])
            await self.passes(DEFAULTS.hedge_s)

    async def is_made_beside(self, silent: int) -> None:
        """The create asks a silent disk first, and ends with the next one."""
        async with self.creating():
            await self.waits_for(silent)
            await self.when(lambda: self.has_ended)
        assert self.handle is not None

    async def fails_beside(self, silent: int) -> None:
        """The create asks a silent disk first, the others fail, and its time ends."""
        disks = self.parts.commitlog.disks
        others = [number for number in disks if number != silent]
        self.silence.release(*others, error=errno.EIO)
        async with self.creating():
            await self.waits_for(silent)
            await self.when(lambda: all(disks[number].last_failure is not None for number in others))
            await self.passes(DEFAULTS.create_s)
        assert self.error is not None

    async def fails_beside_all(self) -> None:
        """No disk answers until the time of the create is over."""
        async with self.creating():
            await self.waits_for(1, 2, 3)
            await self.passes(DEFAULTS.create_s - 3 * DEFAULTS.hedge_s - MOMENT_S)
            assert not self.has_ended
            await self.passes(MOMENT_S)
        assert self.error is not None

    async def full_but_for(self, silent: int, places: list[int]) -> None:
        """One disk has room, and does not answer any more. The others are full, and answer. Of the segments that
        there are, each is on the disk that `places` says."""
        self.silence.release_all()
        for index, place in enumerate(places):
            await self.leaves({place: 1})
            handle = await self.parts.creation.create(name_of(index), OURS)
            assert handle.file.disk == place
            os.ftruncate(handle.fd, SIZE)
            await self.parts.attributes.refresh(handle.file)
            await self.parts.handles.release(inodes.encode(handle.file))
        self.name = name_of(len(places))
        await self.leaves({silent: 10})
        self.silence.begin(silent)

    async def leaves(self, segments: dict[int, int]) -> None:
        """So many segments have space on these disks, and none on the others."""
        for number in self.parts.commitlog.disks:
            self.room.leave(number, segments.get(number, 0))
        await self.parts.usage.refresh(0)

    @property
    def indexes(self) -> list[int]:
        """The segments of the log."""
        return [segment.base_offset // SIZE for segment in self.parts.commitlog.catalog]

    def leftovers(self) -> list[int]:
        """Disks on which the log expects an empty file."""
        roles = (Role.GIVEN_UP, Role.LINKING, Role.LINKING_TOO_LATE)
        others = self.parts.commitlog.others
        return sorted(file.disk for file in others if file.role in roles and file.name == NAME)

    async def passes(self, seconds: float) -> None:
        await pass_time(self.clock, seconds, self._rests)

    async def stands_still(self, seconds: float) -> None:
        """The whole machine, or this daemon: every task wakes up late."""
        await self._rests()
        self.clock.jump(seconds)
        await self._rests()

    async def _rests(self) -> None:
        """When every task waits, and no disk is measured: that takes real time."""
        await trio.testing.wait_all_tasks_blocked()
        while self.parts.usage._lock.locked():
            await self.when(lambda: not self.parts.usage._lock.locked())
            await trio.testing.wait_all_tasks_blocked()

    async def lives_for(self, seconds: float) -> None:
        """In small steps, until the create has ended."""
        end_s = self.clock.current_time() + seconds
        while not self.has_ended and (left_s := end_s - self.clock.current_time()) > 0.0:
            await self.passes(min(STEP_S, left_s))

    async def ends_beside(self) -> float:
        """As `lives_for`, until the create has ended, and each disk has time to answer; returns the time that it
        took."""
        began_s = self.clock.current_time()
        while not self.has_ended:
            await self.when(lambda: sum(self.parts.threads.statistics().values()) == self.silence.waiting)
            await self.passes(STEP_S)
        return self.clock.current_time() - began_s

    @asynccontextmanager
    async def locked_for(self, seconds: float) -> AsyncIterator[None]:
        """Another change holds the lock of all names."""

        async def hold(task_status: "trio.TaskStatus[None]") -> None:
            async with self.parts.changes.lock:
                task_status.started()
                await virtual_time(seconds)

        async with trio.open_nursery() as nursery:
            await nursery.start(hold)
            yield

    def holders(self) -> list[int]:
        return [n for n, path in enumerate(self.parts.directories, 1) if NAME.decode() in names_in(path)]

    def open_files(self) -> int:
        """Descriptors of files of the pool."""
        return len(self._files() - self._left_open)

    def _files(self) -> set[tuple[str, str]]:
        """Numbers and paths of the descriptors."""
        roots = tuple(f"{root}/" for root in self.parts.directories)
        found = set[tuple[str, str]]()
        for entry in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                path = os.readlink(f"/proc/self/fd/{entry}")
                if path.startswith(roots):
                    found.add((entry, path))
        return found


async def virtual_time(seconds: float) -> None:
    await trio.sleep(seconds)


def close_slowly(patch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Whether a close has begun, and may end."""
    closing, closed = threading.Event(), threading.Event()
    close = os.close

    def wait_and_close(fd: int) -> None:
        closing.set()
        assert closed.wait(PATIENCE_S)
        close(fd)

    patch.setattr(os, "close", wait_and_close)
    return closing, closed


def remove_slowly(
    patch: pytest.MonkeyPatch, on_removal: Callable[[], None] = lambda: None
) -> tuple[threading.Event, threading.Event]:
    """Whether a removal has begun, and may end. `on_removal` is called before the end."""
    removing, may_remove = threading.Event(), threading.Event()
    remove_file = remove.remove_file

    def wait_and_remove(*arguments: Any) -> DiskUsage:
        removing.set()
        assert may_remove.wait(PATIENCE_S)
        on_removal()
        return remove_file(*arguments)

    patch.setattr(remove, "remove_file", wait_and_remove)
    return removing, may_remove


def link_slowly(patch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Whether a link has begun, and may end."""
    linking, may_link = threading.Event(), threading.Event()
    link = safe_open.link_unnamed

    def wait_and_link(fd: int, dirfd: int, name: bytes) -> None:
        linking.set()
        assert may_link.wait(PATIENCE_S)
        link(fd, dirfd, name)

    patch.setattr(safe_open, "link_unnamed", wait_and_link)
    return linking, may_link


@pytest.fixture(params=["reserve", "link"])
def call(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Live(Protocol):
    def __call__(self, call: str, life: Callable[[Life], Awaitable[None]], count: int = 3) -> None: ...


@pytest.fixture
def live(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    """Runs a life whose disks are silent to reserving, to linking, or to the question whether they have a name."""

    def run(call: str, life: Callable[[Life], Awaitable[None]], count: int = 3) -> None:
        clock = MockClock()
        timing = replace(PATIENT, requests=DEFAULTS)
        with open_parts(workdir, count, clock=VirtualTime(clock), timing=timing) as parts:
            silence, room = Silence(parts), Room(parts)
            parts.retention.rules = RetentionRules()
            reserve, link, is_absent = allocate.reserve, safe_open.link_unnamed, allocate.is_certainly_absent

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

            def silent_absence(dirfd: int, name: bytes) -> bool:
                silence.wait(dirfd)
                return is_absent(dirfd, name)

            with monkeypatch.context() as patch:
                if call == "reserve":
                    patch.setattr(allocate, "reserve", silent_reserve)
                elif call == "link":
                    patch.setattr(safe_open, "link_unnamed", silent_link)
                else:
                    patch.setattr(allocate, "is_certainly_absent", silent_absence)
                patch.setattr(os, "statvfs", room.statvfs)
                trio.run(live_and_release, Life(parts, clock, silence, room), clock=clock)

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


def test_a_disk_that_is_only_late_is_not_counted_as_failing(live, call, monkeypatch: pytest.MonkeyPatch):
    async def main(life: Life) -> None:
        skipped: list[str] = []
        monkeypatch.setattr(life.parts.observer, "placement_skipped", skipped.append)
        life.silence.release(3)
        life.silence.release(2, error=errno.EIO)
        await life.is_made_beside(1)
        assert skipped == ["DiskSilentError", "DiskFailedError"]

    live(call, main)


def test_what_the_loser_makes_late_goes(live, call):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        await life.is_made_beside(1)
        commitlog = life.parts.commitlog
        assert life.leftovers() == ([1] if call == "link" else [])
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


def test_what_a_loser_links_when_it_was_looked_for_already_goes(live):
    """The disk has no such file yet, but its link has begun."""

    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        await life.is_made_beside(1)
        life.clock.rate = 1.0
        async with life.parts.freeing_runs():
            for _ in range(2):
                await life.parts.freeing.free_now(DiskNumber(1))
            assert life.leftovers() == [1]
            life.silence.release(1)
            await life.when(lambda: life.holders() == [1, 2])
            await life.when(lambda: (life.holders(), life.leftovers()) == ([2], []))

    live("link", main)


def test_any_disk_that_is_ready_makes_the_segment(live):
    """All are a little slow: each has its blocks when the next one has been asked."""

    async def main(life: Life) -> None:
        async with life.creating():
            await life.asked(1)
            await life.passes(DEFAULTS.hedge_s)
            await life.asked(1, 2)
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.clock.current_time() == pytest.approx(DEFAULTS.hedge_s)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        life.silence.release_all()
        await life.when(lambda: life.open_files() == 1)
        assert life.holders() == [1]

    live("reserve", main)


def test_creates_that_fail_hold_one_thread_of_a_disk(live):
    async def main(life: Life) -> None:
        await life.fails_beside_all()
        for _ in range(2):
            life.error = None
            await life.parts.usage.refresh(0)  # a measurement would end in real time
            async with life.creating():
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(3):
                    await life.passes(DEFAULTS.hedge_s)
                await life.passes(DEFAULTS.create_s)
            assert life.error is not None
        assert life.silence.begun == [1, 2, 3]
        await life.when(lambda: life.parts.threads.statistics() == {1: 1, 2: 1, 3: 1})
        life.silence.release(2)
        await life.when(lambda: (life.parts.threads.statistics()[DiskNumber(2)], life.open_files()) == (0, 0))
        await trio.testing.wait_all_tasks_blocked()
        handle = await life.parts.creation.create(NAME, OURS)
        assert handle.file.disk == 2
        life.silence.release_all()
        await life.when(lambda: life.open_files() == 1)
        assert life.holders() == [2]

    live("reserve", main)


def test_all_disks_are_slow_and_one_makes_it_in_time(live, call):
    """A create fails only when its time is over."""

    async def main(life: Life) -> None:
        async with life.creating():
            await life.waits_for(1, 2, 3)
            await life.passes(2.0)
            assert not life.has_ended
            life.silence.release(2)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert not life.parts.commitlog.disks[DiskNumber(1)].is_troubled
        life.silence.release(1, 3)
        await life.when(lambda: not any(life.parts.threads.statistics().values()))
        await life.when(lambda: life.open_files() == 1)
        assert life.parts.commitlog.find_name(NAME) is life.handle.file
        assert life.holders() == ([1, 2, 3] if call == "link" else [2])

    live(call, main)


def test_no_disk_answers(live, call):
    async def main(life: Life) -> None:
        await life.fails_beside_all()
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
        assert life.leftovers() == ([1, 2] if call == "link" else [])

    live(call, main)


def test_a_disk_that_hung_and_then_fails_is_passed_over(live, call):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        await life.is_made_beside(1)
        life.silence.release(1, error=errno.EIO)
        disk = life.parts.commitlog.disks[DiskNumber(1)]
        await life.when(lambda: disk.last_failure is not None)
        assert life.holders() == [2]
        await life.when(lambda: life.open_files() == 1)
        assert life.handle is not None
        assert life.parts.commitlog.find_name(NAME) is life.handle.file

    live(call, main)


def test_a_late_link_that_fails_leaves_nothing(live):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        await life.is_made_beside(1)
        assert life.leftovers() == [1]
        life.silence.release(1, error=errno.EIO)
        await life.when(lambda: not life.leftovers())
        assert life.holders() == [2]

    live("link", main)


def test_what_is_linked_late_is_none_of_the_log_after_another_file_had_the_name(live):
    """The segment was made elsewhere meanwhile, and removed."""

    async def main(life: Life) -> None:
        await life.fails_beside(1)
        life.silence.release(2, 3)
        commitlog = life.parts.commitlog
        handle = await life.parts.creation.create(NAME, OURS)
        assert handle.file.disk != 1
        await life.parts.handles.release(inodes.encode(handle.file))
        await life.parts.removals.unlink(NAME)
        assert life.holders() == []
        life.silence.release(1)
        await life.when(lambda: life.holders() == [1])
        await life.when(lambda: life.open_files() == 0)
        assert commitlog.find_name(NAME) is None
        assert life.leftovers() == [1]

    live("link", main)


def test_a_file_of_another_name_is_no_reason_to_give_a_late_file_up(live):
    """A copy that is made by rsync, or a restored segment."""

    async def main(life: Life) -> None:
        await life.fails_beside(1)
        life.silence.release(2, 3)
        commitlog = life.parts.commitlog
        handle = await life.parts.creation.create(b"." + name_of(7) + b".abcdef", OURS)
        await life.parts.handles.release(inodes.encode(handle.file))
        life.silence.release(1)
        await life.when(lambda: life.open_files() == 0)
        file = commitlog.find_name(NAME)
        assert file is not None
        assert file.disk == 1
        assert not life.leftovers()

    live("link", main)


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_link_that_fails_is_answered_before_its_file_is_closed(
    live, monkeypatch: pytest.MonkeyPatch, is_certain: bool
):
    """The close frees all blocks of the file, on a disk in trouble, and the create ends meanwhile."""

    async def main(life: Life) -> None:
        life.silence.release(3)
        async with life.creating():
            await life.waits_for(1)
            await life.asked(1, 2)
            with monkeypatch.context() as patch:
                closing, closed = close_slowly(patch)
                if not is_certain:
                    patch.setattr(allocate, "is_certainly_absent", lambda *_: False)
                life.silence.release(1, error=errno.EIO)
                await life.when(closing.is_set)
                life.silence.release(2)
                await life.when(lambda: life.has_ended)
                closed.set()
                await life.when(lambda: life.open_files() == 1)
        expected = [] if is_certain else [1]
        assert life.leftovers() == expected
        assert [file.disk for file in life.parts.commitlog.others.leftovers(DiskNumber(1))] == expected

    live("link", main)


def test_a_segment_that_is_taken_late_delays_no_change_of_names(live, monkeypatch: pytest.MonkeyPatch):
    """Its disk is slow, and so is the close of its descriptor."""

    async def main(life: Life) -> None:
        await life.fails_beside(1)
        with monkeypatch.context() as patch:
            closing, closed = close_slowly(patch)
            life.silence.release(1)
            await life.when(closing.is_set)
            assert life.parts.commitlog.find_name(NAME) is not None
            assert not life.parts.changes.lock.locked()
            closed.set()
            await life.when(lambda: life.open_files() == 0)

    live("link", main)


@pytest.mark.parametrize("cordon", [None, Cordon(1, "")])
def test_what_a_disk_links_late_is_a_segment_unless_the_disk_was_closed_meanwhile(live, cordon):
    async def main(life: Life) -> None:
        await life.fails_beside(1)
        commitlog = life.parts.commitlog
        commitlog.disks[DiskNumber(1)].cordon = cordon
        life.silence.release(1)
        await life.when(lambda: life.holders() == [1])
        await life.when(lambda: life.open_files() == 0)
        assert (commitlog.find_name(NAME) is None) == (life.leftovers() == [1]) == (cordon is not None)

    live("link", main)


def test_a_create_whose_disks_may_all_make_its_file_yet_blames_them(live):
    """And no other name: the disks may take that one."""

    async def main(life: Life) -> None:
        await life.fails_beside_all()
        life.error = None
        async with life.creating():
            await life.when(lambda: life.has_ended)
        assert life.error is not None
        assert errno_of(life.error) == errno.EIO
        assert not life.parts.commitlog.admission.refuses_for_now(0)

    live("link", main)


def test_disks_that_may_have_an_empty_file_are_asked_at_once(live):
    """No disk is left for the segment, until one of them has no such file."""

    async def main(life: Life) -> None:
        attributes = stat_fd(life.parts.commitlog.disks[DiskNumber(1)].dirfd)
        for number in life.parts.commitlog.disks:
            life.parts.commitlog.record_leftover(Segment(BaseOffset(0), number, attributes))
        async with life.creating():
            await life.when(lambda: sorted(life.silence.begun) == [1, 2, 3])
            life.silence.release(3)
            await life.when(lambda: life.leftovers() == [1, 2])
            await life.passes(DEFAULTS.stat_s)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 3

    live("absence", main)


def test_a_disk_that_has_not_answered_yet_is_asked_last(live):
    async def main(life: Life) -> None:
        life.silence.release(2, 3)
        await life.is_made_beside(1)
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
            assert not life.leftovers()
            busy.set()
        await life.when(lambda: life.open_files() == 1)
        assert life.silence.begun == [2]
        assert life.holders() == [2]

    live("link", main)


RECLAIM_AFTER_S = DEFAULTS.create_s - DEFAULTS.link_s - DEFAULTS.reclaim_s
"""A disk that has answered by then makes it unnecessary to remove anything."""


def test_space_is_reclaimed_beside_a_silent_disk(live, call):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S - MOMENT_S)
            assert life.indexes == [0, 1, 2, 3, 4]
            await life.passes(MOMENT_S)
            await life.when(lambda: life.has_ended)
        assert life.clock.current_time() == pytest.approx(RECLAIM_AFTER_S)
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert life.indexes == [1, 2, 3, 4, 5]
        assert life.parts.commitlog.counters.removed == {"full": 1}
        assert life.parts.retention.preview().force_in_s is None, "a disk with room counts, though it is silent"

    live(call, main)


def test_a_disk_that_answers_in_time_costs_no_segment(live, call):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S - MOMENT_S)
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live(call, main)


def test_a_pause_of_the_whole_machine_is_no_silence_of_a_disk(live, call):
    """A suspended virtual machine, or a daemon that is stopped: its disks do not work, either."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.creating():
            await life.asked(1)
            await life.passes(STEP_S)
            await life.stands_still(1.6)
            await life.lives_for(4 * STEP_S)
            assert life.indexes == [0, 1, 2, 3, 4]
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live(call, main)


def test_a_pause_while_the_disks_are_measured_is_no_silence(live, call, monkeypatch: pytest.MonkeyPatch):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        statvfs, measuring, may_end = life.room.statvfs, threading.Event(), threading.Event()

        def statvfs_slowly(path: int | str) -> object:
            measuring.set()
            assert may_end.wait(PATIENCE_S)
            return statvfs(path)

        async with life.creating():
            await life.asked(1)
            await life.passes(2 * DEFAULTS.hedge_s - STEP_S)
            with monkeypatch.context() as patch:
                patch.setattr(os, "statvfs", statvfs_slowly)
                await trio.testing.wait_all_tasks_blocked()
                life.clock.jump(STEP_S)
                await life.when(measuring.is_set)
            await trio.testing.wait_all_tasks_blocked()
            life.clock.jump(1.6)
            may_end.set()
            await life.lives_for(4 * STEP_S)
            assert life.indexes == [0, 1, 2, 3, 4]
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live(call, main)


def test_a_create_whose_time_ends_in_a_pause_measures_nothing_after_it(live, monkeypatch: pytest.MonkeyPatch):
    """It would end later for that."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        statvfs, may_end = life.room.statvfs, threading.Event()

        def statvfs_slowly(path: int | str) -> object:
            assert may_end.wait(PATIENCE_S)
            return statvfs(path)

        try:
            async with life.creating():
                await life.asked(1)
                await life.passes(STEP_S)
                with monkeypatch.context() as patch:
                    patch.setattr(os, "statvfs", statvfs_slowly)
                    life.clock.jump(DEFAULTS.create_s - STEP_S)
                    await life.when(lambda: life.has_ended)
        finally:
            may_end.set()
        assert life.error is not None
        assert life.clock.current_time() == pytest.approx(DEFAULTS.create_s)

    live("reserve", main)


def test_what_a_create_has_reserved_does_not_show_its_disk_as_full(live):
    """The file that waits for its name has the last room of its disk."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        await life.leaves({1: 1})
        async with life.creating():
            await life.asked(1)
            await life.lives_for(RECLAIM_AFTER_S - STEP_S)
            assert life.indexes == [0, 1, 2, 3, 4]
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("link", main)


def test_a_disk_that_has_reserved_has_its_time_again(live, monkeypatch: pytest.MonkeyPatch):
    """For its link."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        linking, may_link = link_slowly(monkeypatch)
        try:
            async with life.creating():
                await life.asked(1)
                await life.passes(RECLAIM_AFTER_S - STEP_S)
                life.silence.release(1)
                await life.when(linking.is_set)
                await life.lives_for(RECLAIM_AFTER_S - STEP_S)
                assert life.indexes == [0, 1, 2, 3, 4]
                may_link.set()
                await life.when(lambda: life.has_ended)
        finally:
            may_link.set()
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("reserve", main)


def test_a_disk_that_waits_for_an_earlier_create_is_asked_when_that_ends(live):
    """Its time begins then: it has answered."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        await life.leaves({1: 10, 2: 1})
        await life.is_made_beside(1)
        life.name, life.handle = name_of(6), None
        async with life.creating():
            await life.when(lambda: len(life.parts.creation._under_way._attempts) == 2)
            await life.passes(1.0)
            life.silence.release(1)
            life.silence.begin(1)
            await life.asked(1)
            await life.lives_for(RECLAIM_AFTER_S - STEP_S)
            assert life.indexes == [0, 1, 2, 3, 4, 5]
            await life.lives_for(2 * STEP_S)
            await life.when(lambda: life.has_ended)
        assert life.indexes == [1, 2, 3, 4, 5, 6]

    live("reserve", main)


def test_a_disk_that_an_earlier_create_has_asked_has_its_time(live):
    """It looks full because of what it reserves for that one, and gives it back."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        await life.leaves({1: 1, 2: 1})
        await life.is_made_beside(1)
        life.name, life.handle = name_of(6), None
        await life.leaves({})
        async with life.creating():
            await life.lives_for(RECLAIM_AFTER_S - 2 * DEFAULTS.hedge_s)
            assert life.indexes == [0, 1, 2, 3, 4, 5]
            life.room.leave(1, 1)
            life.silence.release(1)
            await life.when(lambda: not life.parts.attempts.silent())
            await life.lives_for(DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5, 6]

    live("reserve", main)


def test_a_link_has_its_time_before_space_is_reclaimed(live, monkeypatch: pytest.MonkeyPatch):
    """It waits for its turn at that moment, because another disk hangs in its link."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [3, 3, 3, 3, 3])
        await life.leaves({1: 10, 2: 10})
        life.silence.begin(1, 2)
        disks = life.parts.commitlog.disks
        linking, may_link = threading.Event(), threading.Event()
        link = safe_open.link_unnamed

        def link_slowly(fd: int, dirfd: int, name: bytes) -> None:
            if dirfd == disks[DiskNumber(1)].dirfd:
                linking.set()
                assert may_link.wait(PATIENCE_S)
            link(fd, dirfd, name)

        monkeypatch.setattr(safe_open, "link_unnamed", link_slowly)
        async with life.creating():
            await life.waits_for(*life.parts.commitlog.preview_next())
            await life.passes(RECLAIM_AFTER_S - DEFAULTS.hedge_s - MOMENT_S)
            life.silence.release(1)
            await life.when(linking.is_set)
            life.silence.release(2)
            await life.when(lambda: any(one.is_ready for one in life.parts.creation._under_way._attempts))
            await life.passes(MOMENT_S)
            await life.passes(DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
            may_link.set()
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("reserve", main)


def test_a_disk_that_answers_during_a_removal_gets_the_segment(live, call, monkeypatch: pytest.MonkeyPatch):
    """And nothing is removed after what was begun."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 2, 3, 3, 2])
        removing, may_remove = remove_slowly(
            monkeypatch,
            lambda: life.room.leave(2, -1),  # one segment is not enough
        )
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(removing.is_set)
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        may_remove.set()
        await life.when(lambda: not life.parts.commitlog.is_removing)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.clock.current_time() == pytest.approx(RECLAIM_AFTER_S)
        assert life.indexes == [1, 2, 3, 4, 5]

    live(call, main)


@pytest.mark.parametrize("answers", [True, False])
def test_a_create_waits_for_a_removal_that_nobody_waits_for(
    live, call, monkeypatch: pytest.MonkeyPatch, answers: bool
):
    """The removal was begun for the create before, which another disk has answered meanwhile. It has its time, and
    after that, creates fail at once."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 2, 3, 3, 2])
        await life.leaves({1: 1})
        removing, may_remove = remove_slowly(monkeypatch)
        try:
            async with life.creating():
                await life.asked(1)
                await life.passes(RECLAIM_AFTER_S)
                await life.when(removing.is_set)
                life.silence.release(1)
                await life.when(lambda: life.has_ended)
            life.name, life.handle = name_of(6), None
            async with life.creating():
                await life.passes(DEFAULTS.remove_s - STEP_S)
                assert not life.has_ended
                if answers:
                    may_remove.set()
                else:
                    await life.passes(STEP_S)
                await life.when(lambda: life.has_ended)
            assert (life.error is None) == answers
            assert life.indexes == [1, 2, 3, 4, 5, *([6] if answers else [])]
            if life.error is not None:
                assert errno_of(life.error) == errno.ENOSPC
                await life.passes(DEFAULTS.no_disk_s)
                began_s = life.clock.current_time()
                with pytest.raises(NoDiskAvailableError):
                    await life.parts.creation.create(life.name, OURS)
                assert life.clock.current_time() == began_s
        finally:
            may_remove.set()
        await life.when(lambda: not life.parts.commitlog.is_removing)

    live(call, main)


def test_a_disk_that_refused_is_asked_after_a_removal_that_was_left(live, monkeypatch: pytest.MonkeyPatch):
    """The removal is left because a disk has its blocks, and ends when nobody waits for it. That disk then hangs in
    its link."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 2, 3, 3, 3])
        await life.leaves({1: 10, 2: 1})
        removing, may_remove = remove_slowly(monkeypatch)
        linking, may_link = link_slowly(monkeypatch)
        try:
            async with life.creating():
                life.silence.release(2, error=errno.ENOSPC)
                await life.asked(1)
                await life.passes(DEFAULTS.hedge_s)
                await life.when(lambda: life.parts.commitlog.disks[DiskNumber(2)].last_failure is not None)
                life.room.leave(2, 0)
                life.silence.release(2)
                await life.passes(RECLAIM_AFTER_S)
                await life.when(removing.is_set)
                life.silence.release(1)
                await life.when(linking.is_set)
                await life.when(lambda: life.parts.commitlog.is_removing)
                may_remove.set()
                await life.when(lambda: not life.parts.commitlog.is_removing)
                monkeypatch.undo()
                await life.lives_for(DEFAULTS.create_s)
        finally:
            may_remove.set()
            may_link.set()
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert life.indexes == [1, 2, 3, 4, 5]

    live("reserve", main)


def test_a_removal_that_hangs_ends_no_attempt(live, call, monkeypatch: pytest.MonkeyPatch):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        removing, may_remove = remove_slowly(monkeypatch)
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(removing.is_set)
            await life.passes(DEFAULTS.create_s - RECLAIM_AFTER_S - MOMENT_S)
            assert not life.has_ended
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        may_remove.set()
        await life.when(lambda: not life.parts.commitlog.is_removing)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [1, 2, 3, 4, 5]

    live(call, main)


@pytest.mark.parametrize("answers_after_s", [2.0, None])
def test_the_oldest_segment_on_a_silent_disk_keeps_the_others(live, call, answers_after_s: float | None):
    """Without it, the log would have a hole. A create waits for the disk until its time is over."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [1, 2, 3, 2, 3])
        async with life.creating():
            await life.asked(1)
            await life.passes(answers_after_s or DEFAULTS.create_s - MOMENT_S)
            assert not life.has_ended
            if answers_after_s is None:
                await life.passes(MOMENT_S)
            else:
                life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.indexes == [0, 1, 2, 3, 4, *([] if life.handle is None else [5])]
        assert (life.handle is None) == (answers_after_s is None)
        assert life.parts.commitlog.counters.removed == {}

    live(call, main)


def test_the_next_create_does_not_wait_as_long_again(live, call):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(lambda: life.has_ended)
        life.name, life.handle = name_of(6), None
        await life.parts.usage.refresh(0)  # a measurement would end in real time
        began_s = life.clock.current_time()
        async with life.creating():
            await life.when(lambda: len(life.parts.creation._under_way._attempts) == 2)
            await life.when(lambda: call == "reserve" or life.silence.begun.count(1) == 2)
            await life.passes(DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.clock.current_time() - began_s == pytest.approx(DEFAULTS.hedge_s)
        assert life.handle.file.disk == 3
        assert life.indexes == [2, 3, 4, 5, 6]

    live(call, main)


@pytest.mark.parametrize("silent", [6, 9, 11])
def test_space_is_reclaimed_beside_many_silent_disks(live, call, silent: int):
    """Each has its time before the latest removal; the next create passes over them."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [12, 11, 12, 11, 12] if silent < 11 else [12] * 5)
        hung = range(1, silent + 1)
        await life.leaves(dict.fromkeys(hung, 10))
        life.silence.begin(*hung)
        async with life.creating():
            assert await life.ends_beside() >= RECLAIM_AFTER_S + DEFAULTS.hedge_s
        assert life.handle is not None
        assert life.handle.file.disk == 12
        assert life.indexes == [1, 2, 3, 4, 5]
        life.name, life.handle = name_of(6), None
        async with life.creating():
            assert await life.ends_beside() <= 2 * DEFAULTS.hedge_s
        assert life.handle is not None
        assert life.indexes == [2, 3, 4, 5, 6]

    live(call, main, 12)


def test_a_disk_that_failed_once_counts_with_its_room(live, call):
    """It may be well again: only a second failure proves that it is not (docs/decisions.md)."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 2, 2, 2, 2])
        await life.leaves({1: 10, 3: 10})
        life.silence.release(3, error=errno.EIO)
        async with life.creating():
            await life.asked(3, 1)
            await life.passes(DEFAULTS.create_s)
        assert life.error is not None
        assert life.indexes == [0, 1, 2, 3, 4]

    live(call, main)


# --- when nothing is removed -----------------------------------------------------------------------------


@pytest.mark.parametrize("locked_s", [2.0, 3.0, 3.3])
def test_waiting_for_another_change_costs_no_segment(live, call, locked_s: float):
    """The disk has its time from the moment at which it is asked."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.locked_for(locked_s), life.creating():
            await life.passes(locked_s)
            await life.asked(1)
            await life.lives_for(0.4)
            assert life.indexes == [0, 1, 2, 3, 4]
            life.silence.release(1)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live(call, main)


@pytest.mark.parametrize("left_s", [DEFAULTS.hedge_s, 0.0])
def test_a_create_without_time_for_it_removes_nothing(live, left_s: float):
    """No disk could make the segment in what is left of its time."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        await life.leaves({})
        locked_s = DEFAULTS.create_s - DEFAULTS.link_s - left_s
        async with life.locked_for(locked_s), life.creating():
            await life.passes(locked_s)
            await life.when(lambda: life.has_ended)
        assert life.error is not None
        assert life.indexes == [0, 1, 2, 3, 4]

    live("reserve", main)


def test_a_silent_disk_whose_time_does_not_end_before_the_create_costs_no_segment(live, call):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        locked_s = DEFAULTS.create_s - DEFAULTS.link_s - RECLAIM_AFTER_S
        async with life.locked_for(locked_s), life.creating():
            await life.passes(locked_s)
            await life.asked(1)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None
        assert life.indexes == [0, 1, 2, 3, 4]

    live(call, main)


def test_space_that_others_have_freed_costs_no_segment(live, call):
    """The figures from the begin of the create are old."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S - 2 * DEFAULTS.usage_age_s)
            life.room.leave(2, 5)
            await life.passes(2 * DEFAULTS.usage_age_s)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live(call, main)


def test_a_disk_that_gets_room_is_asked_while_others_are_silent(live, call):
    """The oldest segment is on the silent disk, so nothing can be removed."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [1, 2, 3, 2, 3])
        async with life.creating():
            await life.asked(1)
            await life.passes(2.0)
            life.room.leave(2, 5)
            await life.lives_for(2 * DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 2
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live(call, main)


def test_a_removal_that_takes_longer_than_two_seconds_is_waited_for(live, call, monkeypatch: pytest.MonkeyPatch):
    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(lambda: life.has_ended)
        life.name, life.handle = name_of(6), None
        await life.leaves({1: 10})
        removing, may_remove = remove_slowly(monkeypatch)
        async with life.creating():
            await life.when(lambda: len(life.parts.creation._under_way._attempts) == 2)
            await life.passes(DEFAULTS.hedge_s)
            await life.when(removing.is_set)
            await life.passes(DEFAULTS.reclaim_s + 2 * STEP_S)
            may_remove.set()
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 3
        assert life.indexes == [2, 3, 4, 5, 6]

    live(call, main)


def test_a_link_has_its_time_before_a_second_removal(live, monkeypatch: pytest.MonkeyPatch):
    """The disk answers during the first one."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 2, 3, 3, 2, 3])
        life.room.leave(2, -1)  # two segments are needed
        life.room.leave(3, -5)
        await life.parts.usage.refresh(0)
        removing, may_remove = remove_slowly(monkeypatch)
        linking, may_link = link_slowly(monkeypatch)
        try:
            async with life.creating():
                await life.asked(1)
                await life.passes(RECLAIM_AFTER_S)
                await life.when(removing.is_set)
                life.silence.release(1)
                await life.when(linking.is_set)
                may_remove.set()
                await life.when(lambda: name_of(0).decode() not in names_in(life.parts.directories[1]))
                await life.when(lambda: life.indexes[0] == 1 and not life.parts.commitlog.is_removing)
                await life.passes(STEP_S)
                may_link.set()
                await life.when(lambda: life.has_ended)
        finally:
            may_link.set()
            may_remove.set()
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [1, 2, 3, 4, 5, 6]

    live("reserve", main)


def test_no_removal_begins_on_a_disk_that_has_just_become_silent(live):
    """All others are full, so that it is not asked."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [1, 2, 3, 2, 3])
        async with life.creating():
            await life.asked(1)
            life.room.leave(2, 1)
            await life.passes(DEFAULTS.hedge_s)
            await life.lives_for(2 * DEFAULTS.hedge_s)
            await life.when(lambda: life.has_ended)
        life.name, life.handle = name_of(6), None
        await life.leaves({})
        assert life.parts.attempts.silent() == {1}
        async with life.creating():
            await life.lives_for(RECLAIM_AFTER_S)
        assert life.error is not None
        assert errno_of(life.error) == errno.ENOSPC
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("reserve", main)


def test_the_next_create_of_the_name_takes_what_was_linked_late(live, monkeypatch: pytest.MonkeyPatch):
    """The disk answers while that create holds the lock of all names."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        parts = life.parts
        parts.retention.rules = RetentionRules(mode=Mode.OFF)
        async with life.creating():
            await life.asked(1)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None
        life.error = None
        parts.retention.rules = RetentionRules()

        has_plan = trio.Event()

        async def committed(_: DiskNumber) -> None:
            has_plan.set()
            await virtual_time(STEP_S)

        monkeypatch.setattr(parts.background, "committed", committed)
        async with life.creating():
            await has_plan.wait()
            life.silence.release(1)
            await life.when(lambda: life.name.decode() in names_in(parts.directories[0]))
            await life.when(lambda: parts.changes.lock.statistics().tasks_waiting == 1)
            assert not parts.attempts.silent(), "it has answered"
            await life.passes(STEP_S)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]
        assert parts.commitlog.find_name(life.name) is life.handle.file
        await parts.handles.release(inodes.encode(life.handle.file))
        await life.when(lambda: life.open_files() == 0)
        assert life.leftovers() == []

    live("link", main)


def test_a_disk_that_is_measured_slowly_makes_the_figures_of_the_others_old(live, monkeypatch: pytest.MonkeyPatch):
    """They are from the begin of the measurement."""

    async def main(life: Life) -> None:
        life.silence.release_all()
        await life.leaves({})
        one, two = (life.parts.commitlog.disks[DiskNumber(number)].dirfd for number in (1, 2))
        asked, measured, may_end = threading.Event(), threading.Event(), threading.Event()

        def statvfs(path: int | str) -> object:
            if path == one:
                asked.set()
                assert may_end.wait(PATIENCE_S)
            figures = life.room.statvfs(path)
            if path == two:
                measured.set()
            return figures

        usage = life.parts.usage
        try:
            async with trio.open_nursery() as nursery:
                with monkeypatch.context() as patch:
                    patch.setattr(os, "statvfs", statvfs)
                    nursery.start_soon(usage.refresh, 0)
                    await life.when(lambda: asked.is_set() and measured.is_set())
                await life.when(lambda: life.parts.threads.statistics() == {1: 1, 2: 0, 3: 0})
                life.room.leave(2, 5)
                await trio.testing.wait_all_tasks_blocked()
                life.clock.jump(DEFAULTS.usage_s)
            await usage.refresh(DEFAULTS.usage_age_s)
            figures = life.parts.commitlog.usage(DiskNumber(2))
        finally:
            may_end.set()
        assert figures is not None
        assert figures.available_bytes == 15 * SIZE

    live("reserve", main)


@pytest.mark.parametrize("locked_s", [0.3, 2.0])
def test_what_was_linked_late_into_the_last_room_costs_no_segment(live, locked_s: float):
    """It waits for the lock of all names after the next create of the name."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        await life.leaves({1: 1})
        parts = life.parts
        parts.retention.rules = RetentionRules(mode=Mode.OFF)
        async with life.creating():
            await life.asked(1)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None
        life.error = None
        parts.retention.rules = RetentionRules()
        async with life.locked_for(locked_s), life.creating():
            await life.when(lambda: parts.changes.lock.statistics().tasks_waiting == 1)
            life.silence.release(1)
            await life.when(lambda: parts.changes.lock.statistics().tasks_waiting == 2)
            await life.passes(locked_s)
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("link", main)


def test_a_late_file_that_comes_before_a_removal_prevents_it(live, monkeypatch: pytest.MonkeyPatch):
    """The disks are measured at that moment."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        await life.leaves({1: 1})
        parts = life.parts
        parts.retention.rules = RetentionRules(mode=Mode.OFF)
        async with life.creating():
            await life.asked(1)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None
        life.error = None
        parts.retention.rules = RetentionRules()
        refresh_soon = parts.usage.refresh_soon

        async def release_and_refresh(max_age_s: float, patience_s: float) -> None:
            life.silence.release(1)
            await life.when(lambda: bool(parts.creation._late))
            await refresh_soon(max_age_s, patience_s)

        monkeypatch.setattr(parts.usage, "refresh_soon", release_and_refresh)
        await parts.usage.refresh(0)
        async with life.creating():
            await life.when(lambda: life.has_ended)
        assert life.handle is not None
        assert life.handle.file.disk == 1
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("link", main)


# --- removals that fail ----------------------------------------------------------------------------------


def refuse_removals(patch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each that was tried."""
    tried: list[int] = []

    def refuse(dirfd: int, *_: Any) -> DiskUsage:
        tried.append(dirfd)
        raise OSError(errno.EPERM, "injected")

    patch.setattr(remove, "remove_file", refuse)
    return tried


def test_a_refused_removal_is_reported_as_long_as_creates_fail(live, call, monkeypatch: pytest.MonkeyPatch):
    """A cycle finds nothing to remove: to it, the silent disk has room."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        refuse_removals(monkeypatch)
        retention = life.parts.retention
        retention.cycles = 1  # the first one would probe the silent disk
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(lambda: retention._refused is not None)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None

        def codes() -> list[AlertCode]:
            return [alert.code for alert in retention.preview().alerts]

        for _ in range(2):
            await retention.cycle()
            assert AlertCode.STUCK in codes()
        life.silence.release(1)
        await life.when(lambda: not life.parts.attempts._attempts)
        await retention.cycle()
        assert AlertCode.STUCK not in codes()

    live(call, main)


def test_a_refused_removal_is_not_tried_for_each_create(live, monkeypatch: pytest.MonkeyPatch):
    """Its only disk may have the file yet, so each create after it fails at once, and a broker repeats it."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        tried = refuse_removals(monkeypatch)
        async with life.creating():
            await life.asked(1)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None
        tried.clear()
        await life.parts.usage.refresh(0)
        for _ in range(5):
            with pytest.raises(NoDiskAvailableError):
                await life.parts.creation.create(life.name, OURS)
        assert len(tried) <= 1

    live("link", main)


def test_a_late_removal_that_fails_is_no_reason_to_give_a_late_file_up(live, monkeypatch: pytest.MonkeyPatch):
    """And it is reported, although nobody waits for it."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])

        def refuse() -> None:
            raise OSError(errno.EPERM, "injected")

        removing, may_remove = remove_slowly(monkeypatch, refuse)
        async with life.creating():
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(removing.is_set)
            await life.lives_for(DEFAULTS.create_s)
        assert life.error is not None
        may_remove.set()
        await life.when(lambda: not life.parts.commitlog.is_removing)
        assert AlertCode.STUCK in [alert.code for alert in life.parts.retention.preview().alerts]
        life.silence.release(1)
        await life.when(lambda: life.open_files() == 0)
        assert life.indexes == [0, 1, 2, 3, 4, 5]

    live("link", main)


def test_a_file_of_the_name_that_is_found_during_a_removal_ends_the_create(live, monkeypatch: pytest.MonkeyPatch):
    """With the error itself."""

    async def main(life: Life) -> None:
        await life.full_but_for(1, [2, 3, 2, 3, 2])
        removing, may_remove = remove_slowly(monkeypatch)
        async with trio.open_nursery() as nursery:

            async def fail() -> None:
                with pytest.raises(SegmentExistsError):
                    await life.parts.creation.create(life.name, OURS)
                may_remove.set()

            nursery.start_soon(fail)
            await life.asked(1)
            await life.passes(RECLAIM_AFTER_S)
            await life.when(removing.is_set)
            (life.parts.directories[0] / life.name.decode()).touch()
            life.silence.release(1)
        await life.when(lambda: not life.parts.commitlog.is_removing)

    live("link", main)


def test_times_that_leave_none_for_silent_disks_are_refused():
    with pytest.raises(ValueError, match="less than create_s"):
        RequestTiming(create_s=3.0)
    with pytest.raises(ValueError, match="half of reclaim_s"):
        RequestTiming(round_s=1.1)
