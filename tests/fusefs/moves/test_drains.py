"""Drains without a kernel, while what they need is measured."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from support.pooled import SIZE, Parts, make, open_parts
from support.waiting import until

from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.mount.location.control_client import PEER_TIMEOUT_S
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode
from commitlogfs.store.timing import DEFAULT

COUNT = 8
DRAINED = DiskNumber(1)
FAST = 10**9
"""Bytes per second: without a rate, a busy machine lets a drain wait."""


def fill(parts: Parts) -> None:
    for index in range(COUNT):
        trio.run(make, parts, index)
    for file in parts.commitlog.catalog:
        trio.run(parts.attributes.refresh, file)


class MeetsAChange:
    """Measures of the disks, during which a drain changes: a disk that hangs lets them take half a second."""

    def __init__(self, parts: Parts, then: Drain | None) -> None:
        self._log, self._then = parts.commitlog, then

    async def refresh(self, max_age_s: float) -> None:
        await trio.lowlevel.checkpoint()
        self._log.record_membership(self._log.membership.draining(DRAINED, self._then))


@pytest.mark.parametrize(
    ("then", "left"), [(None, 3), (Drain(1, DrainMode.EXPIRY), 3), (Drain(2, DrainMode.COPY), 1)]
)
def test_it_is_cancelled_or_ordered_anew_while_the_disks_are_measured(
    workdir: Path, then: Drain | None, left: int
) -> None:
    """A segment that was chosen by the former order is not moved by it, and the drains continue. Newest stay."""
    with open_parts(workdir) as parts:
        log = parts.commitlog
        fill(parts)
        log.record_membership(log.membership.draining(DRAINED, Drain(1, DrainMode.COPY)))
        assert log.catalog.count_on_disk(DRAINED) == 3

        async def task() -> None:
            async with trio.open_nursery() as nursery:

                async def nothing_is_left() -> bool:
                    nursery.cancel_scope.cancel()
                    return False

                drains = Drains(log, parts.mover, MeetsAChange(parts, then))  # type: ignore[arg-type]
                nursery.start_soon(drains.run, nothing_is_left)

        trio.run(task)
        assert log.catalog.count_on_disk(DRAINED) == left


class ReadOnlyMeanwhile:
    """Measures of the disks, during which the drained disk turns read-only."""

    def __init__(self, parts: Parts) -> None:
        self._usage, self._disk = parts.usage, parts.commitlog.disks[DRAINED]

    async def refresh(self, max_age_s: float) -> None:
        await self._usage.refresh(max_age_s)
        self._disk.is_read_only = True


@pytest.mark.parametrize(("mode", "left"), [(DrainMode.COPY, 3), (DrainMode.FAILING, 2)])
def test_the_disk_turns_read_only_while_the_disks_are_measured(workdir: Path, mode: DrainMode, left: int) -> None:
    """Its segments would have two files each. From a failing disk they are saved all the same."""
    with open_parts(workdir) as parts:
        log = parts.commitlog
        fill(parts)
        log.record_membership(log.membership.draining(DRAINED, Drain(1, mode, FAST)))
        drains = Drains(log, parts.mover, ReadOnlyMeanwhile(parts))  # type: ignore[arg-type]
        trio.run(drains._move_next)
        assert log.catalog.count_on_disk(DRAINED) == left
        assert len(list(log.others)) == 3 - left


def cancel(parts: Parts) -> None:
    parts.commitlog.record_membership(parts.commitlog.membership.draining(DRAINED, None))


def let_it_expire(parts: Parts) -> None:
    drain = Drain(1, DrainMode.EXPIRY)
    parts.commitlog.record_membership(parts.commitlog.membership.draining(DRAINED, drain))


def turn_read_only(parts: Parts) -> None:
    parts.commitlog.disks[DRAINED].is_read_only = True


@pytest.mark.parametrize("change", [cancel, let_it_expire, turn_read_only])
def test_what_ends_it_before_a_copy_gets_its_name_is_seen(workdir: Path, change: Callable[[Parts], None]) -> None:
    """The copy is complete, and waits for the lock of all names, which a create or a removal has."""
    with open_parts(workdir) as parts:
        log, lock = parts.commitlog, parts.changes.lock
        fill(parts)
        log.record_membership(log.membership.draining(DRAINED, Drain(1, DrainMode.COPY, FAST)))

        async def task() -> None:
            async with trio.open_nursery() as nursery, lock:
                nursery.start_soon(parts.drains._move_next)
                await until(lambda: lock.statistics().tasks_waiting == 1)
                change(parts)

        trio.run(task)
        assert log.catalog.count_on_disk(DRAINED) == 3
        assert list(log.others) == []


def test_a_disk_that_hangs_delays_the_end_of_one_for_a_limited_time(workdir: Path) -> None:
    """A change of names on it has the lock. The peer has waited for the record of the end already."""
    with open_parts(workdir, timing=DEFAULT) as parts:

        async def hold_lock(task_status: trio.TaskStatus[None]) -> None:
            async with parts.changes.lock:
                task_status.started()
                await trio.sleep_forever()

        async def task() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(hold_lock)
                with trio.move_on_after(PEER_TIMEOUT_S - DEFAULT.members.record_s) as patience:
                    await parts.drains.announce_end()
                assert not patience.cancelled_caught
                nursery.cancel_scope.cancel()

        trio.run(task, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_segment_whose_name_is_in_flight_is_not_movable(workdir: Path) -> None:
    """A disk has not answered to an earlier change of its name: another segment is moved instead."""
    with open_parts(workdir) as parts:
        fill(parts)
        disk = parts.commitlog.disks[DRAINED]
        last, first = parts.drains.waiting(disk)

        async def task() -> None:
            answered = trio.Event()
            async with trio.open_nursery() as nursery:
                files = parts.disk_files[DRAINED]
                nursery.start_soon(parts.changes.finish, files, "rename", (last.name,), answered.wait, 1000.0)
                await until(lambda: parts.changes.is_in_flight(last.name))
                assert parts.drains.first_movable([last, first]) is first
                answered.set()
            assert parts.drains.first_movable([last, first]) is last

        trio.run(task)


def test_the_newest_segments_are_not_waiting_for_it(workdir: Path) -> None:
    """Segments 0, 3 and 6 are on the disk, and 5, 6 and 7 are the newest of the log."""
    with open_parts(workdir) as parts:
        fill(parts)
        drains = Drains(parts.commitlog, parts.mover, MeetsAChange(parts, None))  # type: ignore[arg-type]
        disk = parts.commitlog.disks[DRAINED]
        assert [segment.base_offset // SIZE for segment in drains.waiting(disk)] == [3, 0]
        plan = drains.plan(disk)
        assert (plan.to_move, plan.kept) == (2, 1)
