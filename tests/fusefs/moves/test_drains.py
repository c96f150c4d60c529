"""Drains without a kernel, while what they need is measured."""

from pathlib import Path

import pytest
import trio
from support.pooled import Parts, make, open_parts

from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode

COUNT = 8
DRAINED = DiskNumber(1)


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
        for index in range(COUNT):
            trio.run(make, parts, index)
        for file in log.catalog:
            trio.run(parts.attributes.refresh, file)
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
