"""The rebalance without a kernel, on disks of which the test says how full they are."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from support.pooled import SIZE, Parts, make, name_of, open_parts
from support.waiting import until

from commitlogfs.fusefs.disks.member_records import MemberRecords
from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.fusefs.moves.rebalancing import Rebalancing
from commitlogfs.store.disks.membership import Cordon, DiskNumber, Rebalance, RebalanceMode
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.pool.commitlog import CommitLog

COUNT = 60
CAPACITY = 100 * SIZE
ONE, TWO, THREE = DiskNumber(1), DiskNumber(2), DiskNumber(3)


class CountedUsage:
    """Measures what the ledgers know, instead of a filesystem, with a capacity of 100 segments for each disk."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._commitlog = commitlog
        self.of_others: dict[DiskNumber, int] = {}

    async def refresh(self, max_age_s: float) -> None:
        for number in self._commitlog.disks:
            files = [*self._commitlog.catalog, *self._commitlog.others]
            held = sum(file.disk == number for file in files) + self.of_others.get(number, 0)
            free = CAPACITY - held * SIZE
            self._commitlog.space.record_usage(number, DiskUsage(CAPACITY, free, free))


class Balanced:
    """A pool of three disks with 20 segments each."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.log = parts, parts.commitlog
        self.usage = CountedUsage(parts.commitlog)
        drains = Drains(parts.commitlog, parts.mover, self.usage)  # type: ignore[arg-type]
        self.records = MemberRecords(parts.commitlog, parts.threads)
        self.rebalancing = Rebalancing(parts.commitlog, drains, self.records)

    def begin(self, mode: RebalanceMode = RebalanceMode.COPY) -> None:
        self.log.record_membership(self.log.membership.rebalancing(Rebalance(1, mode)))

    async def run(self, steps: int) -> int:
        """Number of segments moved in that many steps."""
        moved = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.records.run)
            for _ in range(steps):
                moved += await self.rebalancing.step()
                await self.parts.sources.finish()
            nursery.cancel_scope.cancel()
        return moved

    def counts(self) -> list[int]:
        return [self.log.catalog.count_on_disk(number) for number in self.log.disks]


@pytest.fixture
def pool(workdir: Path) -> Iterator[Balanced]:
    with open_parts(workdir) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
            file = parts.commitlog.find_name(name_of(index))
            assert file is not None
            trio.run(parts.attributes.refresh, file)
        pool = Balanced(parts)
        trio.run(pool.usage.refresh, 0.0)
        yield pool


def test_segments_go_to_the_emptier_disks_and_it_ends(pool: Balanced) -> None:
    pool.usage.of_others = {ONE: 30}
    pool.begin()
    moved = trio.run(pool.run, 30)
    used = [count + other for count, other in zip(pool.counts(), (30, 0, 0), strict=True)]
    assert max(used) - min(used) <= 2
    assert moved == 20 - pool.counts()[0]
    assert pool.rebalancing.levels().is_reached
    assert pool.log.membership.rebalance is None
    assert set(pool.log.recorded.values()) == {pool.log.membership.generation}


def test_nothing_moves_without_a_rebalance(pool: Balanced) -> None:
    pool.usage.of_others = {ONE: 30}
    assert trio.run(pool.run, 3) == 0


def test_the_end_is_confirmed_by_a_second_measurement(pool: Balanced) -> None:
    pool.begin(RebalanceMode.PLACEMENT)
    trio.run(pool.run, 1)
    assert pool.log.membership.rebalance is not None
    trio.run(pool.run, 1)
    assert pool.log.membership.rebalance is None


def test_a_disk_in_trouble_is_waited_for(pool: Balanced) -> None:
    pool.begin(RebalanceMode.PLACEMENT)
    disk = pool.log.disks[TWO]
    pool.log.admission.record_trouble(TWO, DiskFailedError(disk.path, "test"), 0.0)
    trio.run(pool.run, 3)
    assert pool.rebalancing.levels().awaited == {TWO: disk.last_error}
    assert pool.log.membership.rebalance is not None
    pool.log.admission.record_success(TWO)
    trio.run(pool.run, 2)
    assert pool.log.membership.rebalance is None


def test_nothing_leaves_a_disk_that_turns_read_only_meanwhile(pool: Balanced) -> None:
    """Each of its segments would have two files. The copy is complete, and waits for the lock of all names."""
    pool.usage.of_others = {ONE: 30}
    pool.begin()
    lock = pool.parts.changes.lock

    async def main() -> None:
        async with trio.open_nursery() as nursery, lock:
            nursery.start_soon(pool.run, 1)
            await until(lambda: lock.statistics().tasks_waiting == 1)
            pool.log.disks[ONE].is_read_only = True

    trio.run(main)
    assert pool.counts()[0] == 20
    assert list(pool.log.others) == []


def test_a_cordoned_disk_is_left_alone(pool: Balanced) -> None:
    pool.usage.of_others = {ONE: 30, THREE: 10}
    pool.log.record_membership(pool.log.membership.cordoned(ONE, Cordon(1)))
    pool.begin()
    assert trio.run(pool.run, 20) > 0
    assert pool.counts()[0] == 20
    assert pool.rebalancing.levels().left_out == {ONE: "cordoned"}
    assert pool.log.membership.rebalance is None, "the others are equal"


def test_moved_segments_that_are_open_do_not_count(pool: Balanced) -> None:
    pool.usage.of_others = {ONE: 30}
    fds = [os.open(pool.parts.directories[0] / name, os.O_RDONLY) for name in os.listdir(pool.parts.directories[0])]
    try:
        pool.begin()
        moved = trio.run(pool.run, 30)
    finally:
        for fd in fds:
            os.close(fd)
    assert 0 < moved < 20
    assert pool.log.membership.rebalance is None


def test_a_segment_that_leaves_the_log_soon_is_not_moved(pool: Balanced) -> None:
    pool.usage.of_others = {ONE: 30}
    now_s, life_left_s = pool.log.clock.wall(), pool.log.timing.moves.life_left_s
    pool.log.removals.record(now_s - (life_left_s - 10), now_s, 0)  # all were made a moment ago
    pool.begin()
    assert trio.run(pool.run, 5) == 0
    assert pool.log.membership.rebalance is not None
    pool.log.removals.record(now_s - (life_left_s + 1000), now_s, 0)
    assert trio.run(pool.run, 1) == 1
