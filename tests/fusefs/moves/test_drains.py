"""Drains without a kernel, while what they need is measured."""

from pathlib import Path

import pytest
import trio
from support.pooled import SIZE, Parts, make, open_parts

from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode

COUNT = 8
DRAINED = DiskNumber(1)


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


def test_the_newest_segments_are_not_waiting_for_it(workdir: Path) -> None:
    """Segments 0, 3 and 6 are on the disk, and 5, 6 and 7 are the newest of the log."""
    with open_parts(workdir) as parts:
        fill(parts)
        drains = Drains(parts.commitlog, parts.mover, MeetsAChange(parts, None))  # type: ignore[arg-type]
        disk = parts.commitlog.disks[DRAINED]
        assert [segment.base_offset // SIZE for segment in drains.waiting(disk)] == [3, 0]
        plan = drains.plan(disk)
        assert (plan.to_move, plan.kept) == (2, 1)
