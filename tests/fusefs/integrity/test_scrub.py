"""The schedule of scrubs and their orders, without a kernel and under a clock of the test."""

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.checksums import LONG_AGO_NS
from support.pooled import SIZE, Parts, make, open_parts, place, segment
from support.records import make_sealed

from commitlogfs.fusefs.integrity import scrub as module
from commitlogfs.fusefs.integrity.scrub import Scrub
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store import layout
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.scrub.progress import Command
from commitlogfs.store.scrub.schedule import ScrubRules

COUNT = 9
SEALED = COUNT - NEWEST_KEPT
HOUR_S = 3600.0
RATE = 1 << 40
NOW_S = 1_800_000_000.0
PATIENCE_S = 10.0


@pytest.fixture
def parts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    """Nine segments of records in turn on three disks."""
    for name in ("START_DELAY_S", "CHECK_INTERVAL_S", "SCHEDULE_INTERVAL_S"):
        monkeypatch.setattr(module, name, 0.01)
    with open_parts(workdir) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
            place(parts, index).write_bytes(make_sealed(index * SIZE, SIZE))
            os.utime(place(parts, index), ns=(LONG_AGO_NS, LONG_AGO_NS + index))
            trio.run(parts.attributes.refresh, segment(parts, index))
        yield parts


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(round(PATIENCE_S / 0.01)):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE_S:g} s")


class Daemon:
    """The scrub, as while a daemon serves."""

    def __init__(self, parts: Parts, rules: ScrubRules, now_s: float = NOW_S) -> None:
        self.now_s = now_s
        self.busy: set[DiskNumber] = set()
        self.scrub = Scrub(
            parts.commitlog,
            parts.threads,
            SilentObserver(),
            parts.verdicts,
            self.busy.__contains__,
            lambda _: False,
            rules,
            lambda: self.now_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Scrub]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scrub.run)
            await self.scrub.await_loaded()
            yield self.scrub
            nursery.cancel_scope.cancel()

    def left_bytes(self) -> int:
        return sum(figures.left_bytes for figures in self.scrub.figures().values())

    async def ended(self) -> None:
        await until(lambda: not self.scrub.is_active)

    async def stays(self, *, active: bool) -> None:
        for _ in range(20):
            await trio.sleep(0.01)
            assert self.scrub.is_active is active


def test_the_schedule_counts_from_the_first_start(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(HOUR_S, RATE))

    async def run() -> None:
        async with daemon.running() as scrub:
            await daemon.stays(active=False)
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
            await trio.sleep(0.05)
            daemon.now_s += 2 * HOUR_S
            await daemon.stays(active=False)
            daemon.busy.update(parts.commitlog.disks)
            daemon.now_s += HOUR_S  # 03:00
            await until(lambda: scrub.is_active)
            daemon.now_s += HOUR_S  # 04:00, before anything was read
            daemon.busy.clear()
            await daemon.stays(active=True)
            assert daemon.left_bytes() == SEALED * SIZE
            assert {figures.waits_for for figures in scrub.figures().values()} == {"outside of its window"}
            daemon.now_s += 23 * HOUR_S
            await daemon.ended()
            assert scrub.completed_s() == daemon.now_s

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
            await scrub.begin(RATE, follows_chains=False)
            await daemon.ended()
            assert layout.XATTR_SCRUB in os.listxattr(parts.directories[0])

    trio.run(run)


def test_it_gives_way_to_moves_of_a_disk(parts: Parts) -> None:
    daemon = Daemon(parts, ScrubRules(0.0))
    daemon.busy.add(DiskNumber(2))

    async def run() -> None:
        async with daemon.running() as scrub:
            await scrub.begin(RATE, follows_chains=False)
            await daemon.stays(active=True)
            left = {number: figures.left_bytes for number, figures in scrub.figures().items()}
            assert left == {1: 0, 2: SEALED // 3 * SIZE, 3: 0}
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
