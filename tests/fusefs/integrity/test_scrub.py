"""The schedule of scrubs and their orders, without a kernel and under a clock of the test."""

import errno
import mmap
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import xxhash
from support.checksums import LONG_AGO_NS
from support.clocks import SetClock
from support.pooled import PATIENT, SIZE, Parts, make, open_parts, place, segment
from support.records import make_sealed
from support.waiting import PATIENCE_S, until
from trio.testing import wait_all_tasks_blocked

from commitlogfs.fusefs.integrity import scrub as module
from commitlogfs.fusefs.integrity import verdicts as verdicts_module
from commitlogfs.fusefs.integrity.scrub import Scrub, _Worker
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store import layout
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError, PoolError, SegmentChangedError
from commitlogfs.store.files import allocate
from commitlogfs.store.files.attributes import stat_fd
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.scrub.progress import LATEST_S, MOST_ORDERS, Command, Progress, read_progress
from commitlogfs.store.scrub.reading import SegmentReader
from commitlogfs.store.scrub.recorded import remove_verdict, write_verdict
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.scrub.verdict import Kind, Range, Verdict, format_verdict, parse_verdict, whole_verdict

COUNT = 9
SEALED = COUNT - NEWEST_KEPT
HOUR_S = 3600.0
RATE = 1 << 40
NOW_S = 1_800_000_000.0
TIMES = replace(PATIENT.scrub, start_s=0.01, look_s=0.01, schedule_s=0.01, give_up_s=1000.0, longest_step_s=250.0)
"""The patience with a disk ends when the test lets it pass, and not before, however slow the machine."""


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    """Nine segments of records in turn on three disks."""
    with open_parts(workdir, clock=SetClock(), timing=replace(PATIENT, scrub=TIMES)) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
            place(parts, index).write_bytes(make_sealed(index * SIZE, SIZE))
            os.utime(place(parts, index), ns=(LONG_AGO_NS, LONG_AGO_NS + index))
            trio.run(parts.attributes.refresh, segment(parts, index))
        yield parts


class WatchedScrub(Scrub):
    """Counts how often its patience with a disk was checked."""

    checks = 0

    def _is_idle(self, worker: _Worker) -> bool:
        self.checks += 1
        return super()._is_idle(worker)


class Daemon:
    """The scrub, as while a daemon serves."""

    def __init__(self, parts: Parts, rules: ScrubRules, now_s: float = NOW_S) -> None:
        assert isinstance(parts.commitlog.clock, SetClock)
        self._parts = parts
        self._clock = parts.commitlog.clock
        self.now_s = now_s
        self.busy: set[DiskNumber] = set()
        self.scrub = WatchedScrub(
            parts.commitlog,
            parts.threads,
            SilentObserver(),
            parts.verdicts,
            self.busy.__contains__,
            rules,
        )

    @property
    def now_s(self) -> float:
        """Seconds since 1970. They stand still until the test sets them."""
        return self._clock.wall()

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._clock.wall_s = now_s

    def elapse(self, seconds: float) -> None:
        """All clocks advance."""
        self.now_s += seconds
        self._clock.ahead_s += seconds

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Scrub]:
        self._parts.scrub = self.scrub
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scrub.run)
            await self.scrub.await_loaded()
            yield self.scrub
            nursery.cancel_scope.cancel()

    def left_bytes(self) -> int:
        return sum(figures.left_bytes for figures in self.scrub.figures().values())

    def left_by_disk(self) -> dict[int, int]:
        return {number: figures.left_bytes for number, figures in self.scrub.figures().items()}

    def waits_for(self) -> set[str]:
        return {figures.waits_for for figures in self.scrub.figures().values()}

    async def ended(self) -> None:
        await until(lambda: not self.scrub.is_active)

    async def complete_one(self) -> None:
        """Begin a run, and wait for its end."""
        await self.scrub.begin(RATE, follows_chains=False)
        await self.ended()

    async def stays(self, *, active: bool) -> None:
        """For a little while, which is an opportunity for a change."""
        for _ in range(20):
            await trio.sleep(0.01)
            assert self.scrub.is_active is active

    async def lose_patience(self) -> None:
        """Let more time pass than a disk has, while all disks are checked again and again."""
        for _ in range(round(TIMES.give_up_s / TIMES.longest_step_s) + 2):
            self._clock.ahead_s += TIMES.longest_step_s
            seen = self.scrub.checks
            await until(lambda seen=seen: self.scrub.checks >= seen + 6)  # each of three disks

    async def give_up_second(self) -> None:
        """Until the run has ended on the others, and then without the second disk."""

        def others_have_ended() -> bool:
            figures = self.scrub.figures()
            return all(one.progress.ended_s for number, one in figures.items() if number != 2)

        await until(others_have_ended)
        assert self.scrub.is_active
        await self.lose_patience()
        await self.ended()


def test_the_schedule_counts_from_the_first_start(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE))

    async def run() -> None:
        async with daemon.running() as scrub:
            assert scrub.is_loaded
            await daemon.stays(active=False)
            assert scrub.next_s() == NOW_S + HOUR_S
            await until(lambda: layout.XATTR_SCRUB in os.listxattr(parts.directories[2]))
            daemon.now_s += HOUR_S - 1
            await daemon.stays(active=False)
        next_one = Daemon(parts, ScrubRules(HOUR_S, RATE), daemon.now_s)
        async with next_one.running() as scrub:
            assert scrub.next_s() == NOW_S + HOUR_S
            next_one.now_s += 2
            await until(lambda: scrub.completed_s() > 0)
            await next_one.ended()
            assert scrub.latest.is_scheduled
            assert scrub.latest.rate == RATE
            assert scrub.next_s() == next_one.now_s + HOUR_S
            await next_one.stays(active=False)

    trio.run(run)


def test_a_scheduled_scrub_runs_in_its_window_only(parts: Parts) -> None:
    midnight_s = time.mktime((2030, 5, 5, 0, 0, 0, 0, 0, -1))
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE, frozenset({3})), midnight_s)

    async def run() -> None:
        async with daemon.running() as scrub:
            assert scrub.is_loaded
            daemon.now_s += 2 * HOUR_S
            await daemon.stays(active=False)
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s += HOUR_S  # 03:00
            await until(lambda: scrub.is_active)
            daemon.now_s += HOUR_S  # 04:00, before anything was read
            daemon.busy.clear()
            await until(lambda: daemon.waits_for() == {"outside of its window"})
            await daemon.stays(active=True)
            assert daemon.left_bytes() == SEALED * SIZE
            assert daemon.waits_for() == {"outside of its window"}
            daemon.now_s += 23 * HOUR_S
            await daemon.ended()
            assert scrub.completed_s() == daemon.now_s

    trio.run(run)


def test_two_of_one_second_end_after_their_begin(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules())

    async def run() -> None:
        async with daemon.running() as scrub:
            for _ in range(2):
                former = scrub.latest
                await daemon.complete_one()
                assert scrub.latest.number > former.number
                assert scrub.latest.begun_s == scrub.completed_s() == NOW_S
            await scrub.begin(1, follows_chains=False)
            await scrub.change(Command.CANCEL, 1)
            await daemon.ended()
            ended_s = {figures.progress.ended_s for figures in scrub.figures().values()}
            assert ended_s == {scrub.latest.begun_s}

    trio.run(run)


DAY_S = 86400.0
YEAR_S = 365 * DAY_S


def are_recorded(parts: Parts, ended_s: float) -> bool:
    """Whether all disks record this end of a run."""
    return all(read_progress(disk.dirfd).ended_s == ended_s for disk in parts.commitlog.disks.values())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_one_after_a_wrong_clock_has_the_right_times(parts: Parts, *, is_cancelled: bool) -> None:
    """The clock was a year ahead during the first run. NTP has corrected it before the second one."""
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S + YEAR_S)

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            first_s = scrub.latest.begun_s
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s = NOW_S
            await until(lambda: scrub.latest.begun_s != first_s)
            assert scrub.latest.begun_s == NOW_S
            if is_cancelled:
                await scrub.change(Command.CANCEL, 0)
            daemon.busy.clear()
            await daemon.ended()
            assert scrub.completed_s() == NOW_S + (YEAR_S if is_cancelled else 0)
            assert scrub.next_s() == NOW_S + HOUR_S
            await daemon.stays(active=False)
            daemon.now_s += HOUR_S
            await until(lambda: scrub.completed_s() == NOW_S + HOUR_S)

    trio.run(run)


def test_one_under_way_at_the_correction_ends_at_the_right_time(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S + YEAR_S)
    daemon.busy.update(parts.commitlog.disks)

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            daemon.now_s = NOW_S
        second = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S)
        async with second.running() as scrub:
            assert scrub.latest.begun_s == NOW_S + YEAR_S
            await second.ended()
            assert scrub.completed_s() == NOW_S
            assert scrub.next_s() == NOW_S + HOUR_S

    trio.run(run)


def test_a_disk_that_was_away_brings_no_run_of_a_wrong_clock_back(parts: Parts) -> None:
    daemon, attribute = Daemon(parts, ScrubRules(0.0), NOW_S + YEAR_S), layout.XATTR_SCRUB
    dirfds = [disk.dirfd for disk in parts.commitlog.disks.values()]

    async def run() -> None:
        async with daemon.running() as scrub:
            for now_s in (NOW_S + YEAR_S, NOW_S):
                before = os.getxattr(dirfds[0], attribute) if now_s == NOW_S else b""
                daemon.now_s = now_s
                await scrub.begin(RATE, follows_chains=False)
                await until(lambda now_s=now_s: all(read_progress(fd).ended_s == now_s for fd in dirfds))
        os.setxattr(dirfds[0], attribute, before)
        second = Daemon(parts, ScrubRules(0.0), NOW_S)
        async with second.running() as scrub:
            assert scrub.latest.begun_s == NOW_S
            await second.ended()
            assert scrub.completed_s() == NOW_S

    trio.run(run)


def test_two_of_one_second_differ_although_the_clock_is_set_back(parts: Parts) -> None:
    """The second of the first run comes once more, and a read-only disk still records the first run."""
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: all(read_progress(disk.dirfd).ended_s for disk in parts.commitlog.disks.values()))
            parts.commitlog.disks[DiskNumber(1)].is_read_only = True
            begun = [scrub.latest]
            for now_s in (NOW_S + HOUR_S, NOW_S):
                await daemon.ended()
                daemon.now_s = now_s
                await scrub.begin(RATE, follows_chains=False)
                begun.append(scrub.latest)
            assert [one.begun_s for one in begun] == [NOW_S, NOW_S + HOUR_S, NOW_S]
            assert begun[0].number < begun[1].number < begun[2].number

    trio.run(run)


def test_an_incomplete_one_shows_no_completion_in_the_future(parts: Parts) -> None:
    """A time in the future would hide from monitoring that no run has been complete since."""
    daemon = Daemon(parts, ScrubRules(0.0), NOW_S + YEAR_S)

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            daemon.now_s = NOW_S
            for index in range(3):
                place(parts, index).unlink()
            await daemon.complete_one()
            assert scrub.unread() == dict.fromkeys(parts.commitlog.disks, 1)
            assert scrub.completed_s() == NOW_S

    trio.run(run)


@pytest.mark.parametrize(("ahead_s", "next_s"), [(HOUR_S, 2 * HOUR_S), (HOUR_S + 1, 0)])
def test_a_first_start_in_the_future_delays_by_an_interval_at_most(
    parts: Parts, ahead_s: float, next_s: float
) -> None:
    """The schedule counts from the first start, which the disks record."""
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S + ahead_s)

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.now_s = NOW_S
            assert scrub.next_s() == NOW_S + next_s
            assert scrub.is_due() is (next_s == 0)

    trio.run(run)


WEEK_S = 7 * DAY_S


async def runs_of_boots(parts: Parts, now_s: float, apart_s: float, boots: int) -> set[float]:
    """When scrubs were begun by daemons that each serve for a while, with a schedule of a week."""
    begun_s = set[float]()
    for boot in range(boots):
        booted = Daemon(parts, ScrubRules(WEEK_S, RATE), now_s + boot * apart_s)
        async with booted.running() as scrub:

            def is_at_rest(scrub: Scrub = scrub) -> bool:
                if not scrub.is_loaded or scrub.is_active or scrub.is_due():
                    return False
                writable = [disk for disk in parts.commitlog.disks.values() if not disk.is_read_only]
                records = [read_progress(disk.dirfd) for disk in writable]
                return all(one.run == scrub.latest and one.ended_s for one in records)

            await until(is_at_rest)
            if scrub.latest.begun_s:
                begun_s.add(scrub.latest.begun_s)
    return begun_s


@pytest.mark.parametrize("has_run", [True, False])
def test_restarts_do_not_delay_the_one_after_a_wrong_clock(parts: Parts, *, has_run: bool) -> None:
    """The clock was a year ahead when a run ended, or at the first start. Each later daemon serves for six days."""
    daemon = Daemon(parts, ScrubRules(WEEK_S, RATE), NOW_S + YEAR_S)

    async def run() -> None:
        async with daemon.running() as scrub:
            if has_run:
                await scrub.begin(RATE, follows_chains=False)
            await until(lambda: are_recorded(parts, NOW_S + YEAR_S))
        begun_s = await runs_of_boots(parts, NOW_S, 6 * DAY_S, 4)
        assert begun_s == {NOW_S, NOW_S + 12 * DAY_S}

    trio.run(run)


def date(parts: Parts, index: int, changed_s: float) -> None:
    """Let a segment have been changed at this time."""
    os.utime(place(parts, index), (changed_s, changed_s))
    trio.run(parts.attributes.refresh, segment(parts, index))


@pytest.mark.parametrize(
    ("future", "is_due"),
    [
        ([], True),
        ([6, 7, 8], True),
        ([5, 6, 7, 8], True),
        ([0, 1, 2, 3, 4], True),
        ([0, 1, 2, 3, 4, 5], False),
        (range(COUNT), False),
    ],
)
def test_an_end_in_the_future_is_wrong_unless_segments_are_there_too(
    parts: Parts, future: list[int], *, is_due: bool
) -> None:
    """If the oldest segment and the newest one that a run would read are there, the clock is wrong."""
    for index in range(COUNT):
        date(parts, index, NOW_S + (YEAR_S if index in future else -DAY_S))
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S + YEAR_S)

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s = NOW_S
            assert scrub.next_s() == NOW_S + (0 if is_due else YEAR_S + HOUR_S)
            assert scrub.is_due() is is_due

    trio.run(run)


def test_a_broker_that_writes_in_1970_makes_none_due(parts: Parts) -> None:
    """It starts before the clock is right, and changes the newest segments."""
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE))
    for index in range(SEALED, COUNT):
        date(parts, index, 20.0)

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.now_s = 30.0
            await daemon.stays(active=False)
            assert scrub.next_s() == NOW_S + HOUR_S

    trio.run(run)


def test_an_empty_log_is_never_due(workdir: Path) -> None:
    with open_parts(workdir, clock=SetClock(), timing=replace(PATIENT, scrub=TIMES)) as parts:
        daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S + YEAR_S)

        async def run() -> None:
            async with daemon.running() as scrub:
                await until(lambda: are_recorded(parts, NOW_S + YEAR_S))
                daemon.now_s = NOW_S
                assert scrub.next_s() == NOW_S
                await daemon.stays(active=False)

        trio.run(run)


@pytest.mark.parametrize("read_only", [{1}, {1, 2, 3}])
def test_disks_that_keep_a_wrong_end_cause_one_surplus_run(parts: Parts, read_only: set[int]) -> None:
    """They have ended the run of a wrong clock before they turn read-only. On others, it ends at the right time."""
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), NOW_S + YEAR_S)

    async def run() -> None:
        async with daemon.running() as scrub:
            writable = {number for number in parts.commitlog.disks if number not in read_only}
            daemon.busy.update(writable)
            await scrub.begin(RATE, follows_chains=False)
            kept = [disk for number, disk in parts.commitlog.disks.items() if number in read_only]
            await until(lambda: all(read_progress(disk.dirfd).ended_s for disk in kept))
            for disk in kept:
                disk.is_read_only = True
            daemon.now_s = NOW_S
            daemon.busy.clear()
            await until(lambda: not scrub.is_active and not scrub.is_due())
            assert scrub.latest.begun_s == NOW_S + (YEAR_S if writable else 0)
            assert scrub.next_s() == NOW_S + HOUR_S
            latest = scrub.latest
            await daemon.stays(active=False)
            assert scrub.latest == latest

    trio.run(run)


@pytest.mark.parametrize("has_run", [True, False])
def test_a_disk_that_cannot_record_does_not_delay_the_next(parts: Parts, *, has_run: bool) -> None:
    """Each daemon reads it again, or knows no other start for it than its own."""
    daemon, first = Daemon(parts, ScrubRules(WEEK_S, RATE), NOW_S - DAY_S), parts.commitlog.disks[DiskNumber(1)]
    first.is_read_only = not has_run

    async def run() -> None:
        async with daemon.running() as scrub:
            if has_run:
                await scrub.begin(RATE, follows_chains=False)
                await until(lambda: are_recorded(parts, NOW_S - DAY_S))
            first.is_read_only = True
            others = [disk for disk in parts.commitlog.disks.values() if disk is not first]
            await until(lambda: all(read_progress(disk.dirfd).ended_s for disk in others))
            daemon.now_s = NOW_S
            if has_run:
                await scrub.begin(RATE, follows_chains=False)
        begun_s = await runs_of_boots(parts, NOW_S, 6 * DAY_S, 4)
        assert begun_s == ({NOW_S, NOW_S + 12 * DAY_S} if has_run else {NOW_S + 6 * DAY_S, NOW_S + 18 * DAY_S})

    trio.run(run)


@pytest.mark.parametrize("back_s", [1.0, 90.0, HOUR_S])
def test_a_clock_that_is_set_back_makes_none_due(parts: Parts, back_s: float) -> None:
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            first = scrub.latest
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s -= back_s
            await daemon.stays(active=False)
            assert scrub.next_s() == NOW_S + HOUR_S
            daemon.elapse(HOUR_S + back_s)
            await until(lambda: scrub.is_active)
            assert scrub.latest.number > first.number

    trio.run(run)


def test_boots_with_a_clock_of_1970_begin_none(parts: Parts) -> None:
    """The machine's clock has no battery, and NTP sets it some time after the start of the daemon."""
    daemon = Daemon(parts, ScrubRules(7 * DAY_S, RATE))

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: are_recorded(parts, NOW_S))
        for boot in range(3):
            booted = Daemon(parts, ScrubRules(7 * DAY_S, RATE), 20.0)
            booted.busy.update(parts.commitlog.disks)
            async with booted.running() as scrub:
                await booted.stays(active=False)
                booted.elapse(2 * DAY_S)
                await booted.stays(active=False)
                booted.now_s = NOW_S + (2 * boot + 2) * DAY_S
                await booted.stays(active=False)
                assert scrub.next_s() == NOW_S + 7 * DAY_S
        booted.now_s += 2 * DAY_S
        async with booted.running() as scrub:
            await until(lambda: scrub.is_active)

    trio.run(run)


def test_one_of_a_clock_of_1970_is_later_than_those_before(parts: Parts) -> None:
    """A disk that still records the one before does not replace it by that."""
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: are_recorded(parts, NOW_S))
            parts.commitlog.disks[DiskNumber(1)].is_read_only = True
            daemon.now_s = 20.0
            daemon.busy.add(DiskNumber(3))
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: read_progress(parts.commitlog.disks[DiskNumber(2)].dirfd).ended_s == 20)
        second = Daemon(parts, ScrubRules(0.0), NOW_S + DAY_S)
        second.busy.update(parts.commitlog.disks)
        async with second.running() as scrub:
            await second.stays(active=True)
            assert scrub.latest.begun_s == 20
            assert scrub.figures()[DiskNumber(2)].progress.ended_s == 20
            second.busy.clear()
            await second.ended()
            await scrub.begin(RATE, follows_chains=False)
            assert scrub.latest.begun_s == NOW_S + DAY_S
            await second.ended()
            assert scrub.completed_s() == NOW_S + DAY_S

    trio.run(run)


def test_one_of_a_clock_a_day_ahead_is_continued_although_a_disk_records_an_older_one(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(7 * DAY_S, RATE), NOW_S - 7 * DAY_S)

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: are_recorded(parts, NOW_S - 7 * DAY_S))
            parts.commitlog.disks[DiskNumber(1)].is_read_only = True
            daemon.busy.update({DiskNumber(1), DiskNumber(3)})
            daemon.now_s = NOW_S + DAY_S
            second = parts.commitlog.disks[DiskNumber(2)]
            await until(lambda: read_progress(second.dirfd).ended_s == NOW_S + DAY_S)
        restarted = Daemon(parts, ScrubRules(7 * DAY_S, RATE), NOW_S)
        restarted.busy.update(parts.commitlog.disks)
        async with restarted.running() as scrub:
            await restarted.stays(active=True)
            assert scrub.latest.begun_s == NOW_S + DAY_S
            assert restarted.left_by_disk() == {1: SEALED // 3 * SIZE, 2: 0, 3: SEALED // 3 * SIZE}

    trio.run(run)


def test_one_under_way_outlives_a_cancelled_one_of_a_clock_that_was_ahead(parts: Parts) -> None:
    """A disk that was away still records the cancelled one, and its time has come when the disk is back."""
    daemon, dirfd = Daemon(parts, ScrubRules(0.0), NOW_S + 600), parts.commitlog.disks[DiskNumber(1)].dirfd
    daemon.busy.update(parts.commitlog.disks)

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await scrub.change(Command.CANCEL, 0)
            before = os.getxattr(dirfd, layout.XATTR_SCRUB)
            daemon.now_s = NOW_S
            assert await scrub.begin(RATE, follows_chains=False) == []
        os.setxattr(dirfd, layout.XATTR_SCRUB, before)
        second = Daemon(parts, ScrubRules(0.0), NOW_S + 900)
        second.busy.update(parts.commitlog.disks)
        async with second.running() as scrub:
            await second.stays(active=True)
            assert (scrub.latest.begun_s, scrub.latest.command) == (NOW_S, Command.RUN)
            second.busy.clear()
            await second.ended()
            assert scrub.completed_s() == NOW_S + 900

    trio.run(run)


@pytest.mark.parametrize(("now_s", "recorded_s"), [(2.0**32 + 5, LATEST_S), (-5.0, 1)])
def test_a_time_that_no_record_can_hold_ends_nothing(parts: Parts, now_s: float, recorded_s: int) -> None:
    """The clock is past 2106, or before 1970. The schedule goes on once it is right."""
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE), now_s)

    async def run() -> None:
        async with daemon.running() as scrub:
            await until(lambda: are_recorded(parts, recorded_s))
            for _ in range(2):
                await scrub.begin(RATE, follows_chains=False)
                assert scrub.latest.begun_s == recorded_s
                await daemon.ended()
                assert scrub.completed_s() == recorded_s
            await daemon.stays(active=False)
            daemon.now_s = NOW_S
            daemon.elapse(HOUR_S)
            await until(lambda: scrub.completed_s() == NOW_S + HOUR_S)
            assert scrub.next_s() == NOW_S + 2 * HOUR_S

    trio.run(run)


def test_one_that_was_cancelled_is_not_begun_again_at_once(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(HOUR_S))

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s += 2 * HOUR_S
            await until(lambda: scrub.is_active)
            await scrub.change(Command.CANCEL, 0)
            await daemon.stays(active=False)
            assert scrub.next_s() == daemon.now_s + HOUR_S
            assert scrub.completed_s() == 0

    trio.run(run)


def test_without_a_schedule_none_begins(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.now_s += 10**8
            await daemon.stays(active=False)
            assert scrub.next_s() is None
            assert layout.XATTR_SCRUB not in os.listxattr(parts.directories[0])
            await daemon.complete_one()
            assert layout.XATTR_SCRUB in os.listxattr(parts.directories[0])

    trio.run(run)


def test_it_gives_way_to_moves_of_a_disk(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))
    daemon.busy.add(DiskNumber(2))

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: daemon.left_by_disk() == {1: 0, 2: SEALED // 3 * SIZE, 3: 0})
            await until(lambda: scrub.figures()[DiskNumber(2)].waits_for == "a move")
            await daemon.stays(active=True)
            assert daemon.left_by_disk() == {1: 0, 2: SEALED // 3 * SIZE, 3: 0}
            assert scrub.figures()[DiskNumber(2)].waits_for == "a move"
            daemon.busy.clear()
            await daemon.ended()

    trio.run(run)


def test_a_read_only_disk_is_read_and_records_nothing(parts: Parts) -> None:
    parts.commitlog.disks[DiskNumber(1)].state = DiskState.RO
    daemon = Daemon(parts, ScrubRules(HOUR_S))

    async def run() -> None:
        async with daemon.running() as scrub:
            assert await scrub.begin(RATE, follows_chains=False) == []
            await daemon.ended()
            assert scrub.read_bytes == SEALED * SIZE
        assert layout.XATTR_SCRUB not in os.listxattr(parts.directories[0])

    trio.run(run)


def test_a_disk_that_was_away_learns_the_latest_order(parts: Parts) -> None:
    """Its record is of an older run, or of an earlier order of this one."""
    first = Daemon(parts, ScrubRules(0.0))
    attribute = layout.XATTR_SCRUB

    async def run() -> None:
        async with first.running() as scrub:
            first.busy.update(parts.commitlog.disks)
            await scrub.begin(RATE, follows_chains=False)
            before = os.getxattr(parts.directories[0], attribute)
            await scrub.change(Command.PAUSE, 0)
        os.setxattr(parts.directories[0], attribute, before)
        os.setxattr(parts.directories[1], attribute, b"damaged")
        second = Daemon(parts, ScrubRules(0.0))
        async with second.running() as scrub:
            assert scrub.latest.command is Command.PAUSE
            await second.stays(active=True)
            assert second.left_bytes() == SEALED * SIZE
            await scrub.change(Command.RUN, RATE)
            await second.ended()
            assert scrub.completed_s() > 0

    trio.run(run)


def test_only_one_is_under_way(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            with pytest.raises(PoolError, match="no scrub is under way"):
                await scrub.change(Command.PAUSE, 0)
            daemon.busy.update(parts.commitlog.disks)
            await scrub.begin(RATE, follows_chains=False)
            with pytest.raises(PoolError, match="under way already"):
                await scrub.begin(RATE, follows_chains=False)

    trio.run(run)


# --- disks and segments that cannot be read --------------------------------------------------------------


class Hang:
    """The reads of one disk's segments return when `answer` is called, and not before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
        self._answered = threading.Event()
        read = SegmentReader._read

        def _read(reader: SegmentReader, position: int, most: int, buffer: mmap.mmap) -> int:
            if os.fstat(reader._fd).st_dev == os.fstat(disk.dirfd).st_dev and self._is_on(reader, disk):
                self._answered.wait()
            return read(reader, position, most, buffer)

        monkeypatch.setattr(SegmentReader, "_read", _read)

    @staticmethod
    def _is_on(reader: SegmentReader, disk: Disk) -> bool:
        return os.readlink(f"/proc/self/fd/{reader._fd}").startswith(disk.path)

    def answer(self) -> None:
        self._answered.set()


@pytest.fixture
def hang(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    hang = Hang(monkeypatch, parts.commitlog.disks[DiskNumber(2)])
    yield hang
    hang.answer()


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The fields of the events of this name."""
    return [record.__dict__["fields"] for record in caplog.records if record.__dict__.get("event") == name]


def test_a_disk_that_hangs_is_given_up_until_the_next_run(
    parts: Parts, hang: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(parts, ScrubRules(HOUR_S))

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.now_s += 2 * HOUR_S
            await until(lambda: scrub.is_active)
            await daemon.give_up_second()
            assert scrub.unread() == {DiskNumber(2): SEALED // 3}
            assert scrub.completed_s() == 0
            assert {number for number, one in scrub.figures().items() if one.progress.completed_s} == {1, 3}
            assert daemon.left_bytes() == 0
            assert scrub.next_s() == daemon.now_s + HOUR_S
            # While it hangs, a run ends without it, and leaves no further thread there.
            for _ in range(3):
                daemon.now_s += HOUR_S
                await until(lambda: scrub.is_active)
                await daemon.give_up_second()
            await until(lambda: parts.threads.statistics()[DiskNumber(2)] == 1)
            hang.answer()
            daemon.now_s += HOUR_S
            await until(lambda: scrub.completed_s() == daemon.now_s)
            assert scrub.unread() == {}

    with caplog.at_level("INFO"):
        trio.run(run)
    assert not parts.verdicts.present()
    (*_, given_up) = events(caplog, "scrub_given_up")
    assert (given_up["disk"], given_up["segments"]) == (str(parts.directories[1]), SEALED // 3)
    unread = SEALED // 3
    ends = [(one["bytes"], one.get("unread")) for one in events(caplog, "scrubbed")]
    assert ends == [*[((SEALED - unread) * SIZE, unread)] * 4, (SEALED * SIZE, None)]


def test_a_disk_in_trouble_is_given_up_and_known_so_to_the_next_daemon(parts: Parts) -> None:
    parts.commitlog.disks[DiskNumber(2)].is_failing = True
    daemon, second = Daemon(parts, ScrubRules(0.0)), Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await daemon.give_up_second()
            await until(lambda: all(read_progress(disk.dirfd).ended_s for disk in parts.commitlog.disks.values()))
        async with second.running() as scrub:
            await second.stays(active=False)
            assert scrub.unread() == {DiskNumber(2): SEALED // 3}

    trio.run(run)


def test_pauses_and_moves_do_not_count(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))
    daemon.busy.update(parts.commitlog.disks)

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await daemon.lose_patience()
            await scrub.change(Command.PAUSE, 0)
            daemon.busy.clear()
            await daemon.lose_patience()
            await scrub.change(Command.RUN, 1)  # one byte in a second: no segment is ever done
            await until(lambda: all(worker.job and worker.job.is_resting for worker in scrub._workers.values()))
            await daemon.lose_patience()
            assert scrub.is_active
            await scrub.change(Command.RUN, RATE)
            await daemon.ended()
            assert scrub.unread() == {}

    trio.run(run)


def test_a_file_that_cannot_be_opened_is_passed_over(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """Changed from outside: one segment is not there, and a directory has the name of another one."""
    place(parts, 1).unlink()
    place(parts, 2).unlink()
    place(parts, 2).mkdir()
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            assert scrub.unread() == {DiskNumber(2): 1, DiskNumber(3): 1}
            assert scrub.completed_s() == 0
            assert scrub.read_bytes == (SEALED - 2) * SIZE

    with caplog.at_level("INFO"):
        trio.run(run)
    assert not parts.verdicts.present()
    assert len(events(caplog, "scrub_failed")) == 2


def test_a_segment_that_changes_during_each_read_is_not_read(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    changing, require = segment(parts, 1).name, SegmentReader._require_unchanged

    def require_unchanged(reader: SegmentReader) -> None:
        if reader._name == changing:
            raise SegmentChangedError("was changed while it was read")
        require(reader)

    monkeypatch.setattr(SegmentReader, "_require_unchanged", require_unchanged)
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            assert scrub.unread() == {DiskNumber(2): 1}
            assert scrub.completed_s() == 0

    trio.run(run)


def test_a_disk_that_hangs_at_the_start_does_not_stop_the_schedule(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, dirfd = threading.Event(), parts.commitlog.disks[DiskNumber(2)].dirfd

    def hanging(of: int) -> Progress:
        if of == dirfd:
            answered.wait()
        return read_progress(of)

    monkeypatch.setattr(module, "read_progress", hanging)
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE))

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.scrub.run)
            await until(lambda: daemon.scrub.not_loaded() == [2])
            await daemon.lose_patience()
            await until(lambda: daemon.scrub.is_loaded)
            daemon.now_s += 2 * HOUR_S
            await until(lambda: daemon.scrub.is_active)
            await daemon.give_up_second()
            assert daemon.scrub.unread() == {DiskNumber(2): SEALED // 3}
            answered.set()
            daemon.now_s += HOUR_S
            await until(lambda: daemon.scrub.completed_s() == daemon.now_s)
            assert daemon.scrub.unread() == {}
            nursery.cancel_scope.cancel()

    try:
        trio.run(run)
    finally:
        answered.set()


# --- verdicts and joining disks --------------------------------------------------------------------------

DAMAGED = 1
"""A segment on the second disk, and the first one there."""


def damage(parts: Parts) -> None:
    path = place(parts, DAMAGED)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS + DAMAGED))


@pytest.fixture
def full(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Descriptors of the directories whose disks have no room for a verdict: that of the second one."""
    directories = {parts.commitlog.disks[DiskNumber(2)].dirfd}

    def write(dirfd: int, *record: Any) -> Verdict:
        if dirfd in directories:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_verdict(dirfd, *record)

    monkeypatch.setattr(verdicts_module, "write_verdict", write)
    return directories


def forget_verdicts(parts: Parts) -> Verdicts:
    """Those of the next daemon, which knows none yet."""
    parts.verdicts = Verdicts(parts.commitlog, parts.threads, parts.changes.is_in_flight)
    return parts.verdicts


def recorded_on_second(parts: Parts) -> Progress:
    return read_progress(parts.commitlog.disks[DiskNumber(2)].dirfd)


async def others_have_recorded_the_end(parts: Parts) -> None:
    others = [disk.dirfd for number, disk in parts.commitlog.disks.items() if number != 2]
    await until(lambda: all(read_progress(dirfd).ended_s for dirfd in others))


def test_the_next_daemon_finds_what_was_not_recorded(parts: Parts, full: set[int]) -> None:
    """However far the run was: no recorded position is past a segment whose verdict only one daemon knows."""
    damage(parts)
    daemon, second = Daemon(parts, ScrubRules(0.0)), Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            await others_have_recorded_the_end(parts)
            assert scrub.completed_s() == 0
            assert not parts.verdicts.is_recorded(segment(parts, DAMAGED))
        recorded = recorded_on_second(parts)
        assert (recorded.run, recorded.position) == (scrub.latest, DAMAGED * SIZE)
        assert (recorded.ended_s, recorded.completed_s, recorded.unread) == (0, 0, 0)
        second.scrub._verdicts = verdicts = forget_verdicts(parts)
        async with second.running() as scrub, trio.open_nursery() as nursery:
            assert scrub.completed_s() == 0
            await second.ended()
            assert [found for found, _ in verdicts.present()] == [segment(parts, DAMAGED)]
            assert recorded_on_second(parts).ended_s == 0
            full.clear()
            nursery.start_soon(verdicts.run)
            await until(lambda: recorded_on_second(parts).ended_s > 0)
            assert verdicts.is_recorded(segment(parts, DAMAGED))
            await second.complete_one()
            assert scrub.completed_s() > 0
            nursery.cancel_scope.cancel()

    trio.run(run)


@pytest.mark.usefixtures("full")
def test_what_cannot_be_recorded_does_not_delay_the_next_scheduled_one(parts: Parts) -> None:
    damage(parts)
    daemon, second = Daemon(parts, ScrubRules(HOUR_S, RATE)), Daemon(parts, ScrubRules(HOUR_S, RATE))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            await others_have_recorded_the_end(parts)
        second.now_s = NOW_S + HOUR_S / 2
        second.scrub._verdicts = forget_verdicts(parts)
        async with second.running() as scrub:
            await second.ended()
            assert scrub.figures()[DiskNumber(2)].progress.ended_s == NOW_S + HOUR_S / 2
            assert scrub.next_s() == NOW_S + HOUR_S

    trio.run(run)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("command", [Command.CANCEL, Command.PAUSE])
def test_a_run_that_does_not_go_on_says_what_is_not_known(parts: Parts, command: Command) -> None:
    """The next daemon does not know the damage then, but it does not call it well, either: the segment is left, or
    counts as not read."""
    damage(parts)
    daemon, second = Daemon(parts, ScrubRules(0.0)), Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            daemon.busy.update(parts.commitlog.disks)
            await scrub.begin(RATE, follows_chains=False)
            await scrub.change(command, 0)
            assert recorded_on_second(parts).ended_s == (NOW_S if command is Command.CANCEL else 0)
        second.scrub._verdicts = forget_verdicts(parts)
        async with second.running() as scrub:
            figures = scrub.figures()[DiskNumber(2)]
            assert figures.progress.completed_s == 0
            assert figures.progress.unread == (command is Command.CANCEL)
            assert (figures.left_bytes > 0) == (command is Command.PAUSE)

    trio.run(run)


@pytest.mark.usefixtures("full")
def test_restarts_count_what_is_not_known_once(parts: Parts) -> None:
    """Each daemon finds it again."""
    damage(parts)

    async def run() -> None:
        for _ in range(3):
            daemon = Daemon(parts, ScrubRules(0.0))
            daemon.scrub._verdicts = forget_verdicts(parts)
            async with daemon.running() as scrub:
                if not scrub.latest.begun_s:
                    await daemon.complete_one()
                await others_have_recorded_the_end(parts)
                assert scrub.unread() == {}
                assert scrub.completed_s() == 0

    trio.run(run)


def test_a_verdict_is_recorded_before_the_scrub_goes_on(parts: Parts) -> None:
    """So a daemon that ends then has nothing to read again."""
    damage(parts)
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running():
            await daemon.complete_one()
            assert parts.verdicts.is_recorded(segment(parts, DAMAGED))
            await until(lambda: recorded_on_second(parts).ended_s > 0)

    trio.run(run)


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("kind", [Kind.ROTTED, Kind.WRITE_LOST])
def test_damage_that_is_found_again_leaves_the_former_record(parts: Parts, kind: Kind, *, is_sealed: bool) -> None:
    """A scrub may be there before the records of former daemons are read."""
    former = Verdict(kind, 5, (Range(0, 200),))
    damage(parts)
    if is_sealed:  # its checksum is that of another state: a process has touched the file
        seal(parts, DAMAGED)
        os.utime(place(parts, DAMAGED), ns=(LONG_AGO_NS, LONG_AGO_NS - 77))
        trio.run(parts.attributes.refresh, segment(parts, DAMAGED))
    os.setxattr(place(parts, DAMAGED), layout.XATTR_VERDICT, format_verdict(former))
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running():
            await daemon.complete_one()

    trio.run(run)
    recorded = parse_verdict(os.getxattr(place(parts, DAMAGED), layout.XATTR_VERDICT))
    known = parts.verdicts.verdict_on(segment(parts, DAMAGED))
    assert known is not None
    assert (known.kind, known.since_s, known.ranges[0].begin) == (kind, 5, 0)
    assert known == recorded
    assert len(known.messages) == 1  # which the scrub has found


def test_a_move_that_is_undone_leaves_the_verdict_with_the_file(parts: Parts) -> None:
    """Damage found on the copy counts for the file, too, and is recorded there once."""
    file, other = segment(parts, 0), segment(parts, 1)
    with (parts.directories[other.disk - 1] / "copy").open("wb") as opened:
        copy = Segment(file.base_offset, other.disk, stat_fd(opened.fileno()))
    verdicts, catalog = parts.verdicts, parts.commitlog.catalog

    async def run() -> None:
        verdicts.record(file, whole_verdict(Kind.HEADER_OR_PADDING, SIZE, 5))
        await verdicts.record_on_disk(file)
        catalog.remove(file)
        catalog.add(copy)
        verdicts.record_moved(file, copy)
        assert not verdicts.is_recorded(copy)
        catalog.remove(copy)
        catalog.add(file)
        assert verdicts.is_recorded(file)
        catalog.remove(file)
        catalog.add(copy)
        verdicts.record(copy, whole_verdict(Kind.ROTTED, SIZE, 6))
        catalog.remove(copy)
        catalog.add(file)
        assert verdicts.kind_of(file) is Kind.ROTTED
        assert verdicts.unrecorded_on(file.disk) == [file]
        await verdicts.record_on_disk(file)
        assert verdicts.unrecorded_on(file.disk) == []

    trio.run(run)


async def move(parts: Parts, index: int, target: DiskNumber) -> Segment:
    """Returns the former file, which is removed."""
    file = segment(parts, index)
    await parts.mover.move(file, target, lambda: 0, lambda: True)
    await parts.sources.finish()
    return file


def seal(parts: Parts, index: int) -> None:
    """Give a segment its checksum."""
    fd = os.open(place(parts, index), os.O_RDONLY)
    write_checksum(fd, xxhash.xxh3_128_digest(place(parts, index).read_bytes()))
    os.close(fd)


def spoil(parts: Parts, index: int) -> None:
    """Damage the first message of a segment, without a trace."""
    with place(parts, index).open("r+b", buffering=0) as file:
        damaged = file.read(101)[100] ^ 1
        os.pwrite(file.fileno(), bytes([damaged]), 100)
    os.utime(place(parts, index), ns=(LONG_AGO_NS, LONG_AGO_NS + index))


@pytest.mark.parametrize(("has_checksum", "follows_chains"), [(False, False), (True, True)])
def test_a_moved_segment_is_read_on_its_new_disk(parts: Parts, *, has_checksum: bool, follows_chains: bool) -> None:
    """A move proves nothing of a segment without checksum, nor that its messages are whole."""
    source, target = DiskNumber(1), DiskNumber(2)
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        daemon.busy |= {source, target}
        spoil(parts, 0)
        if has_checksum:
            seal(parts, 0)
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=follows_chains)
            await move(parts, 0, target)
            daemon.busy.remove(source)
            await until(lambda: scrub.figures()[source].progress.ended_s > 0)
            daemon.busy.clear()
            await daemon.ended()
            assert parts.verdicts.kind_of(segment(parts, 0)) is Kind.WRITTEN_BROKEN
            assert (scrub.unread(), scrub.completed_s()) == ({}, int(NOW_S))

    trio.run(run)


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_segment_that_moves_to_a_disk_that_was_read_counts(parts: Parts, *, has_checksum: bool) -> None:
    """As not read, unless the move has compared it with its checksum."""
    source, target = DiskNumber(1), DiskNumber(2)
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        daemon.busy.add(source)
        if has_checksum:
            seal(parts, 0)
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: scrub.figures()[target].progress.ended_s > 0)
            await move(parts, 0, target)
            daemon.busy.clear()
            await daemon.ended()
            assert scrub.unread() == ({} if has_checksum else {source: 1})
            assert scrub.completed_s() == (int(NOW_S) if has_checksum else 0)

    trio.run(run)


def test_a_move_compares_nothing_with_a_checksum_of_another_move(parts: Parts) -> None:
    async def run() -> None:
        seal(parts, 1)
        for target in (DiskNumber(3), DiskNumber(1)):
            await move(parts, 0, DiskNumber(target))
            await move(parts, 1, DiskNumber(target))
            assert (segment(parts, 0).is_compared, segment(parts, 1).is_compared) == (False, True)

    trio.run(run)


def test_the_next_daemon_knows_that_a_moved_segment_is_left(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has come to a disk whose position is past it."""
    source, target = DiskNumber(1), DiskNumber(2)
    later, moved = segment(parts, 4), segment(parts, 0)
    read = {later.name: threading.Event(), moved.name: threading.Event()}
    examine = SegmentReader.examine

    def wait(reader: SegmentReader, next_chunk: Any) -> Any:
        if reader._name in read:
            assert read[reader._name].wait(PATIENCE_S)
        return examine(reader, next_chunk)

    monkeypatch.setattr(SegmentReader, "examine", wait)
    daemon = Daemon(parts, ScrubRules(0.0))
    assert (moved.disk, later.disk) == (source, target)

    async def run() -> None:
        daemon.busy.add(source)
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: scrub.figures()[target].segment is later)
            await move(parts, 0, target)
            daemon.busy.clear()
            await until(lambda: scrub.figures()[source].progress.ended_s > 0)
            read[later.name].set()
            dirfd = parts.commitlog.disks[target].dirfd
            await until(lambda: read_progress(dirfd).position > later.base_offset)
            assert read_progress(dirfd).unread == 1
            read[moved.name].set()
            await daemon.ended()
            await until(lambda: read_progress(dirfd).ended_s > 0)
            assert (read_progress(dirfd).unread, scrub.unread()) == (0, {})

    trio.run(run)


@pytest.mark.parametrize(("has_checksum", "follows_chains"), [(False, False), (True, True)])
@pytest.mark.parametrize("is_target_done", [True, False])
def test_the_next_daemon_knows_that_a_moved_segment_was_not_read(
    parts: Parts, *, has_checksum: bool, follows_chains: bool, is_target_done: bool
) -> None:
    """The daemon ends while the run still gives way to the moves of a drain."""
    source, target = DiskNumber(1), DiskNumber(2)
    daemon, second = Daemon(parts, ScrubRules(0.0)), Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        spoil(parts, 0)
        if has_checksum:
            seal(parts, 0)
        daemon.busy |= {source} if is_target_done else {source, target}
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=follows_chains)
            await until(lambda: (scrub.figures()[target].progress.ended_s > 0) is is_target_done)
            await move(parts, 0, target)
            assert daemon.left_by_disk()[source] == SIZE  # another one
        async with second.running() as scrub:
            await second.ended()
            assert scrub.unread() == ({source: 1} if is_target_done else {})
            assert (scrub.completed_s() > 0) is not is_target_done
            assert parts.verdicts.kind_of(segment(parts, 0)) is (None if is_target_done else Kind.WRITTEN_BROKEN)

    trio.run(run)


def test_a_segment_that_a_move_has_compared_is_not_left_any_more(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        seal(parts, 0)
        daemon.busy |= set(parts.commitlog.disks)
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            assert daemon.left_by_disk() == {1: 2 * SIZE, 2: 2 * SIZE, 3: 2 * SIZE}
            await move(parts, 0, DiskNumber(2))
            assert daemon.left_by_disk() == {1: SIZE, 2: 2 * SIZE, 3: 2 * SIZE}
            daemon.busy.clear()
            await daemon.ended()
            assert (scrub.unread(), scrub.completed_s()) == ({}, int(NOW_S))

    trio.run(run)


@pytest.mark.parametrize("is_target_done", [True, False])
def test_a_segment_whose_move_fails_at_its_end_is_read_or_counts(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, *, is_target_done: bool
) -> None:
    source, target = DiskNumber(1), DiskNumber(2)
    daemon = Daemon(parts, ScrubRules(0.0))

    async def fail(*_: object) -> None:
        raise DiskFailedError(str(parts.directories[1]), "injected")

    async def run() -> None:
        spoil(parts, 0)
        daemon.busy |= {source} if is_target_done else {source, target}
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: (scrub.figures()[target].progress.ended_s > 0) is is_target_done)
            monkeypatch.setattr(parts.disk_files[target], "publish_copy", fail)
            with pytest.raises(DiskFailedError):
                await move(parts, 0, target)
            assert daemon.left_by_disk()[source] == SIZE
            if not is_target_done:  # which hands it back
                daemon.busy.remove(target)
                await until(lambda: daemon.left_by_disk()[source] == 2 * SIZE)
            daemon.busy.remove(source)
            await daemon.ended()
            assert scrub.unread() == ({source: 1} if is_target_done else {})
            assert parts.verdicts.kind_of(segment(parts, 0)) is (None if is_target_done else Kind.WRITTEN_BROKEN)

    trio.run(run)


def test_a_segment_that_is_moved_while_it_is_read_is_left_on_its_new_disk(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = DiskNumber(1), DiskNumber(2)
    daemon, moved, goes_on = Daemon(parts, ScrubRules(0.0)), segment(parts, 0), threading.Event()
    examine = SegmentReader.examine

    def wait(reader: SegmentReader, next_chunk: Any) -> Any:
        assert reader._name != moved.name or goes_on.wait(PATIENCE_S)
        return examine(reader, next_chunk)

    monkeypatch.setattr(SegmentReader, "examine", wait)

    async def run() -> None:
        spoil(parts, 0)
        daemon.busy.add(target)
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await until(lambda: scrub.figures()[source].segment is moved)
            await parts.mover.move(moved, target, lambda: 0, lambda: True)
            assert daemon.left_by_disk()[target] == 3 * SIZE
            daemon.busy.add(source)
            goes_on.set()
            await until(lambda: scrub.figures()[source].segment is not moved)
            assert daemon.left_by_disk()[source] == SIZE
            daemon.busy.clear()
            await daemon.ended()
            assert parts.verdicts.kind_of(segment(parts, 0)) is Kind.WRITTEN_BROKEN
            assert (scrub.unread(), scrub.completed_s()) == ({}, int(NOW_S))

    trio.run(run)


def test_a_segment_that_was_put_back_is_read_although_it_is_open(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        with place(parts, 1).open("r+b", buffering=0) as file:
            source = await move(parts, 1, DiskNumber(1))
            file.write(place(parts, 1).read_bytes()[:1])
            assert await parts.sources.put_back_if_changed(source)
            assert parts.sources.is_written_to(source)
            spoil(parts, 1)
            async with daemon.running() as scrub:
                await daemon.complete_one()
                assert parts.verdicts.kind_of(source) is Kind.WRITTEN_BROKEN
                assert (scrub.unread(), scrub.completed_s()) == ({}, int(NOW_S))

    trio.run(run)


def test_verdicts_on_one_disk_do_not_wait_for_another(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, hanging = threading.Event(), parts.commitlog.disks[DiskNumber(1)].dirfd

    def write(dirfd: int, *record: Any) -> Verdict:
        if dirfd == hanging:
            answered.wait()
        return write_verdict(dirfd, *record)

    monkeypatch.setattr(verdicts_module, "write_verdict", write)
    first, second = segment(parts, 0), segment(parts, 1)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for one in (first, second):
                parts.verdicts.record(one, whole_verdict(Kind.ROTTED, SIZE, 5))
            nursery.start_soon(parts.verdicts.run)
            await until(lambda: parts.verdicts.is_recorded(second))
            assert not parts.verdicts.is_recorded(first)
            answered.set()
            await until(lambda: parts.verdicts.is_recorded(first))
            nursery.cancel_scope.cancel()

    try:
        trio.run(run)
    finally:
        answered.set()


def test_a_verdict_on_one_disk_makes_no_other_disk_try_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, full = list[bytes](), parts.commitlog.disks[DiskNumber(1)].dirfd

    def write(dirfd: int, name: bytes, *record: Any) -> Verdict:
        attempts.append(name)
        if dirfd == full:
            raise OSError(errno.ENOSPC, "injected")
        return write_verdict(dirfd, name, *record)

    monkeypatch.setattr(verdicts_module, "write_verdict", write)
    first, others = segment(parts, 0), [segment(parts, 1), segment(parts, 4)]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.verdicts.run)
            for one in (first, *others):
                parts.verdicts.record(one, whole_verdict(Kind.ROTTED, SIZE, 5))
                await until(lambda one=one: one.name in attempts)
                await until(lambda one=one: one is first or parts.verdicts.is_recorded(one))
            await wait_all_tasks_blocked(0.1)
            nursery.cancel_scope.cancel()

    trio.run(run)
    assert attempts == [first.name, *(one.name for one in others)]


def test_a_verdict_that_is_recorded_late_completes_the_run(parts: Parts, full: set[int]) -> None:
    damage(parts)
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            await others_have_recorded_the_end(parts)
            assert scrub.completed_s() == 0
            daemon.elapse(HOUR_S)
            full.clear()
            await parts.verdicts.record_on_disk(segment(parts, DAMAGED))
            await until(lambda: recorded_on_second(parts).completed_s > 0)
            assert (scrub.unread(), scrub.completed_s()) == ({}, int(NOW_S))

    trio.run(run)


def test_a_moved_segment_without_checksum_is_examined_once(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    examined, examine = list[bytes](), SegmentReader.examine

    def count(reader: SegmentReader, next_chunk: Any) -> Any:
        examined.append(reader._name)
        return examine(reader, next_chunk)

    async def run() -> None:
        for index in range(1, SEALED):
            seal(parts, index)
        await move(parts, 0, DiskNumber(2))
        monkeypatch.setattr(SegmentReader, "examine", count)
        daemon = Daemon(parts, ScrubRules(0.0))
        async with daemon.running():
            for _ in range(3):
                await daemon.complete_one()
                daemon.elapse(1.0)
        assert examined == [segment(parts, 0).name]

    trio.run(run)


@pytest.mark.parametrize("ends", ["it is cancelled", "it moves before", "it moves meanwhile"])
def test_a_clear_is_as_the_disk_has_it(parts: Parts, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """A request to clear ends early, or a move takes the segment away: its copy has the verdict."""
    file, has_begun, goes_on = segment(parts, 1), threading.Event(), threading.Event()
    verdicts = parts.verdicts

    def remove_late(*args: Any, **options: Any) -> None:
        has_begun.set()
        assert goes_on.wait(PATIENCE_S)
        remove_verdict(*args, **options)

    monkeypatch.setattr(verdicts_module, "remove_verdict", remove_late)

    async def take_away() -> None:
        await parts.mover.move(file, DiskNumber(1), lambda: 0, lambda: True)

    async def run() -> None:
        cleared = list[bool]()

        async def clear() -> None:
            cleared.append(await verdicts.clear(file))

        verdicts.record(file, whole_verdict(Kind.UNREADABLE, SIZE, 5))
        await verdicts.record_on_disk(file)
        if ends == "it moves before":
            await take_away()
            await clear()
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clear)
                await until(has_begun.is_set)
                if ends == "it is cancelled":
                    nursery.cancel_scope.cancel()
                else:
                    await take_away()
                    goes_on.set()
        goes_on.set()
        if ends == "it is cancelled":
            await until(lambda: verdicts.kind_of(file) is None)
            assert layout.XATTR_VERDICT not in os.listxattr(place(parts, 1))
            return
        assert cleared == [False]
        assert segment(parts, 1).disk == 1
        assert verdicts.kind_of(segment(parts, 1)) is Kind.UNREADABLE
        assert layout.XATTR_VERDICT in os.listxattr(place(parts, 1))
        former = parts.directories[1] / file.name.decode()
        assert not verdicts.is_recorded(file) or layout.XATTR_VERDICT in os.listxattr(former)

    trio.run(run)


@pytest.mark.parametrize("record", ["a verdict", "unreadable ranges"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_move_does_not_bring_a_cleared_verdict_back(parts: Parts, record: str, *, is_known: bool) -> None:
    """It has made its copy with the verdict already, which no task may have read before."""
    file, verdicts = segment(parts, 1), parts.verdicts
    attribute = layout.XATTR_VERDICT if record == "a verdict" else layout.XATTR_UNREADABLE
    verdict = whole_verdict(Kind.UNREADABLE if record == "a verdict" else Kind.UNKNOWN, SIZE, 5)

    def find() -> None:
        verdicts.record_found(file, verdict, is_recorded=record == "a verdict")

    async def move_once() -> None:
        with pytest.raises(SegmentChangedError):
            await parts.mover.move(file, DiskNumber(1), lambda: 0, lambda: True)

    async def run() -> None:
        os.setxattr(place(parts, 1), attribute, format_verdict(verdict) if record == "a verdict" else b"?")
        if is_known:
            find()
        async with trio.open_nursery() as nursery, parts.changes.lock:  # no copy gets its name
            nursery.start_soon(move_once)
            await until(lambda: parts.changes.lock.statistics().tasks_waiting == 1)
            if not is_known:
                find()
            assert await verdicts.clear(file)
        assert segment(parts, 1) is file
        await move(parts, 1, DiskNumber(1))
        assert verdicts.present() == []
        assert attribute not in os.listxattr(place(parts, 1))

    trio.run(run)


@pytest.mark.parametrize("begins", ["before it", "in it"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_clear_in_the_link_of_a_copy_clears_nothing(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, begins: str, *, fails: bool
) -> None:
    """The copy has the verdict, be it the segment afterwards or not."""
    file, verdicts, publish = segment(parts, 1), parts.verdicts, allocate.publish
    has_begun, may_remove, links, may_link = (threading.Event() for _ in range(4))

    def remove_late(*args: Any, **options: Any) -> None:
        has_begun.set()
        assert may_remove.wait(PATIENCE_S)
        remove_verdict(*args, **options)

    def link_late(*args: Any) -> Any:
        links.set()
        assert may_link.wait(PATIENCE_S)
        if fails:
            raise OSError(errno.ENOSPC, "injected")
        return publish(*args)

    monkeypatch.setattr(verdicts_module, "remove_verdict", remove_late)
    monkeypatch.setattr(allocate, "publish", link_late)

    async def run() -> None:
        cleared = list[bool]()

        async def clear() -> None:
            cleared.append(await verdicts.clear(file))

        async def move_once() -> None:
            with pytest.raises(DiskError) if fails else nullcontext():
                await parts.mover.move(file, DiskNumber(1), lambda: 0, lambda: True)

        verdicts.record(file, whole_verdict(Kind.UNREADABLE, SIZE, 5))
        await verdicts.record_on_disk(file)
        async with trio.open_nursery() as nursery:
            if begins == "before it":
                nursery.start_soon(clear)
                await until(has_begun.is_set)
            nursery.start_soon(move_once)
            await until(links.is_set)
            may_remove.set()
            if begins == "in it":
                nursery.start_soon(clear)
            await until(lambda: bool(cleared))
            may_link.set()
        assert cleared == [False]
        assert segment(parts, 1).disk == (file.disk if fails else 1)
        assert verdicts.kind_of(segment(parts, 1)) is Kind.UNREADABLE
        await verdicts.record_on_disk(segment(parts, 1))
        assert layout.XATTR_VERDICT in os.listxattr(place(parts, 1))

    trio.run(run)


@pytest.mark.parametrize("found", ["nothing", "damaged", "a newer version", "an error"])
def test_a_disk_whose_record_is_lost_is_read(parts: Parts, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    """It has segments of the run, so it takes part: not only a disk that has joined since has no record."""
    daemon, second = Daemon(parts, ScrubRules(0.0)), Daemon(parts, ScrubRules(0.0))
    directory = parts.directories[1]

    def read(of: int) -> Progress:
        if of == parts.commitlog.disks[DiskNumber(2)].dirfd:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_progress(of)

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            await until(lambda: recorded_on_second(parts).ended_s > 0)
            await others_have_recorded_the_end(parts)
        recorded = bytearray(os.getxattr(directory, layout.XATTR_SCRUB))
        recorded[0 if found == "a newer version" else 30] ^= 1
        os.setxattr(directory, layout.XATTR_SCRUB, bytes(recorded))
        if found == "nothing":
            os.removexattr(directory, layout.XATTR_SCRUB)
        if found == "an error":
            monkeypatch.setattr(module, "read_progress", read)
        second.busy.update(parts.commitlog.disks)
        async with second.running() as scrub:
            assert scrub.is_active
            assert scrub.completed_s() == 0
            assert second.left_by_disk() == {1: 0, 2: SEALED // 3 * SIZE, 3: 0}
            second.busy.clear()
            await second.ended()
            assert scrub.completed_s() > 0
            assert scrub.read_bytes == (SEALED + SEALED // 3) * SIZE

    trio.run(run)


def test_a_disk_that_has_joined_since_takes_no_part(parts: Parts) -> None:
    """It has no segment of the run: here, because they have left it."""
    daemon, second = Daemon(parts, ScrubRules(0.0)), Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            await until(lambda: recorded_on_second(parts).ended_s > 0)
            await others_have_recorded_the_end(parts)
            completed_s = scrub.completed_s()
        os.removexattr(parts.directories[1], layout.XATTR_SCRUB)
        for index in range(1, SEALED, 3):
            parts.commitlog.catalog.remove(segment(parts, index))
        second.busy.update(parts.commitlog.disks)
        async with second.running() as scrub:
            await second.stays(active=False)
            assert scrub.completed_s() == completed_s

    trio.run(run)


def test_none_is_complete_while_a_disk_is_missing(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.complete_one()
            parts.commitlog.missing = ("/data4/commitlog",)
            assert scrub.completed_s() == 0
            parts.commitlog.missing = ()
            assert scrub.completed_s() > 0

    trio.run(run)


# --- orders by hand --------------------------------------------------------------------------------------


def test_a_scheduled_scrub_continues_by_hand_outside_of_its_window(parts: Parts) -> None:
    midnight_s = time.mktime((2030, 5, 5, 0, 0, 0, 0, 0, -1))
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE, frozenset({3})), midnight_s)

    async def run() -> None:
        async with daemon.running() as scrub:
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s += 3 * HOUR_S
            await until(lambda: scrub.is_active)
            daemon.now_s += HOUR_S
            daemon.busy.clear()
            await daemon.stays(active=True)
            await scrub.change(Command.RUN, scrub.latest.rate, by_hand=True)
            await daemon.ended()
            assert scrub.completed_s() == daemon.now_s

    trio.run(run)


def test_the_orders_to_one_run_have_an_end(parts: Parts) -> None:
    """Their number has two bytes on the disks. A cancellation is the last one."""
    daemon = Daemon(parts, ScrubRules(0.0))
    daemon.busy.update(parts.commitlog.disks)

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            scrub.latest = replace(scrub.latest, sequence=MOST_ORDERS - 2)
            await scrub.change(Command.PAUSE, 0)
            with pytest.raises(PoolError, match="too many orders"):
                await scrub.change(Command.RUN, 0)
            await scrub.change(Command.CANCEL, 0)
            assert not scrub.is_active

    trio.run(run)
