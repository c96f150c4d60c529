"""The list of members on the disks: who records it when, and what a disk that fails does to the others."""

import errno
import math
import os
from contextlib import closing
from pathlib import Path

import pytest
import trio
from support.member_directories import SIZE, Directories
from support.waiting import until
from trio.testing import MockClock

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.member_records import MemberRecords
from commitlogfs.store import layout
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.identity import parse_identity
from commitlogfs.store.disks.membership import Cordon, DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.timing import MemberTiming, Timing

CORDON = Cordon(1_700_000_000, "noisy")
RETRYING = Timing(members=MemberTiming(retry_s=0.05))


@pytest.fixture
def directories(workdir: Path) -> Directories:
    return Directories(workdir)


def recorded(directories: Directories, index: int) -> int:
    spec = (*directories.specs, directories.new)[index]
    raw = os.getxattr(spec.path, layout.XATTR_IDENTITY)
    return parse_identity(raw, spec.path).membership.generation


def inode(spec: DiskSpec) -> int:
    return os.stat(spec.path).st_ino


class Failing:
    """Extended attributes of some directories cannot be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inodes: set[int] = set()
        self.order: list[int] = []
        self.refused: dict[int, int] = {}
        """How often each of them has refused."""
        change = os.setxattr

        def setxattr(target: int, name: str, value: bytes) -> None:
            ino = os.fstat(target).st_ino
            if ino in self.inodes:
                self.refused[ino] = self.refused.get(ino, 0) + 1
                raise OSError(errno.EIO, "test")
            if name == layout.XATTR_IDENTITY:
                self.order.append(ino)
            change(target, name, value)

        monkeypatch.setattr(os, "setxattr", setxattr)


def test_a_change_is_recorded_by_every_disk(directories):
    async def main() -> None:
        with closing(CommitLog(directories.open(*directories.specs), POLICIES["round-robin"])) as log:
            records = MemberRecords(log, DiskThreads(log.disks))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(records.run)
                assert await records.change(log.membership.cordoned(DiskNumber(2), CORDON), math.inf) == []
                assert log.disks[DiskNumber(2)].intended_state is DiskState.CORDONED
                assert [recorded(directories, index) for index in range(3)] == [1, 1, 1]
                assert await records.change(log.membership.cordoned(DiskNumber(2), None), math.inf) == []
                assert log.disks[DiskNumber(2)].intended_state is DiskState.RW
                assert [recorded(directories, index) for index in range(3)] == [2, 2, 2]
                nursery.cancel_scope.cancel()
        with closing(directories.open(*directories.specs)) as pool:
            assert pool.membership == log.membership

    trio.run(main)


def test_a_disk_that_cannot_be_written_lags_and_learns_later(directories, monkeypatch):
    clock, patience_s = MockClock(rate=1.0), 10_000.0

    async def lose_patience(log: CommitLog) -> None:
        """Once only that disk lags."""
        await until(lambda: [disk.number for disk in log.lagging()] == [2])
        clock.jump(patience_s)

    async def main() -> None:
        failing = Failing(monkeypatch)
        failing.inodes = {inode(directories.specs[1])}
        pool = directories.open(*directories.specs)
        with closing(CommitLog(pool, POLICIES["round-robin"], timing=RETRYING)) as log:
            records = MemberRecords(log, DiskThreads(log.disks))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(records.run)
                nursery.start_soon(lose_patience, log)
                lagging = await records.change(log.membership.cordoned(DiskNumber(1), CORDON), patience_s)
                assert [disk.number for disk in lagging] == [2]
                assert [recorded(directories, index) for index in range(3)] == [1, 0, 1]
                failing.inodes.clear()
                await until(lambda: not (log.lagging()))
                assert recorded(directories, 1) == 1
                nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_a_read_only_disk_is_not_waited_for(directories):
    async def main() -> None:
        with closing(CommitLog(directories.open(*directories.specs), POLICIES["round-robin"])) as log:
            log.disks[DiskNumber(3)].state = DiskState.RO
            records = MemberRecords(log, DiskThreads(log.disks))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(records.run)
                lagging = await records.change(log.membership.cordoned(DiskNumber(1), CORDON), math.inf)
                assert [disk.number for disk in lagging] == [3]
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_joining_disk_records_after_a_member_and_then_gets_segments(directories, monkeypatch):
    async def main() -> None:
        directories.mark(directories.new, "new")
        failing = Failing(monkeypatch)
        failing.inodes = {inode(spec) for spec in directories.specs}
        pool = directories.open(*directories.specs, directories.new)
        with closing(CommitLog(pool, POLICIES["round-robin"], timing=RETRYING)) as log:
            new = log.disks[DiskNumber(4)]
            records = MemberRecords(log, DiskThreads(log.disks))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(records.run)
                await until(lambda: [failing.refused.get(ino, 0) > 1 for ino in failing.inodes] == [True] * 3)
                assert failing.order == []
                assert new.present_state is DiskState.JOINING
                assert DiskNumber(4) not in log.evaluate(0.0).eligible
                failing.inodes = {inode(directories.specs[0])}  # one of the members is enough
                await until(lambda: not new.is_joining)
                assert failing.order.index(inode(directories.new)) > 0
                assert layout.XATTR_JOINING not in os.listxattr(directories.new.path)
                await until(lambda: [disk.number for disk in log.lagging()] == [1])
                assert [recorded(directories, index) for index in range(4)] == [0, 1, 1, 1]
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_segment_size_is_the_pools(directories):
    with closing(CommitLog(directories.open(*directories.specs), POLICIES["round-robin"])) as log:
        assert log.identity_of(log.disks[DiskNumber(1)]).segment_size == SIZE


def test_a_vanished_disk_is_cordoned(directories):
    """It comes back, and must not take segments then."""

    async def main() -> None:
        with closing(CommitLog(directories.open(*directories.specs), POLICIES["round-robin"])) as log:
            for number in log.disks:
                log.space.record_usage(number, DiskUsage(64 * SIZE, 64 * SIZE, 64 * SIZE))
            log.disks[DiskNumber(2)].is_vanished = True
            records = MemberRecords(log, DiskThreads(log.disks))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(records.run)
                assert await records.cordon(log.disks[DiskNumber(2)], CORDON)
                assert log.disks[DiskNumber(2)].cordon == CORDON
                assert not await records.cordon(log.disks[DiskNumber(2)], CORDON)
                nursery.cancel_scope.cancel()

    trio.run(main)
