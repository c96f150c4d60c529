"""The control verbs that change disks, without a kernel."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from support.pooled import PATIENT, SIZE, Kernel, Parts, make, open_parts, place
from support.waiting import until

from commitlogfs.mount.daemon.disk_changes import DiskChanges
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode
from commitlogfs.store.timing import DaemonTiming

COUNT = 12
LEAVING = DiskNumber(1)
FAST = 10**9
"""Bytes per second: without a rate, a busy machine lets a drain wait."""
WAITING = replace(PATIENT, daemon=DaemonTiming(free_s=1000.0))


class AskedTwice(Kernel):
    """Calls `then` when it is asked for what it holds once more."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then, self._is_again = then, False

    async def sent(self) -> None:
        if self._is_again:
            self._then()
        self._is_again = True


async def _answer_after_drain(parts: Parts) -> dict[str, Any]:
    """The answer to `disk-leave`, as soon as the disk has no segment of the log any more."""
    log = parts.commitlog

    async def no_other_work() -> bool:
        return False

    async def is_drained() -> None:
        for file in log.catalog:
            await parts.attributes.refresh(file)
        log.record_membership(log.membership.draining(LEAVING, Drain(1, DrainMode.COPY, FAST)))
        for index in range(COUNT, COUNT + 3):  # the newest are not moved
            await make(parts, index)
        await until(lambda: not log.catalog.count_on_disk(LEAVING))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.freeing.run)
        nursery.start_soon(parts.sources.run)
        nursery.start_soon(parts.drains.run, no_other_work)
        nursery.start_soon(parts.member_records.run)
        await is_drained()
        answer = await DiskChanges(parts, FormerDaemons()).verbs()["disk-leave"]({"disk": str(LEAVING)})
        nursery.cancel_scope.cancel()
    assert isinstance(answer, dict)
    return answer


def test_a_disk_leaves_once_a_reader_beside_the_mount_has_closed_its_file(workdir: Path) -> None:
    """A checksum that was under way when its segment was moved reads the source for a moment more. It is no user
    whose process `disk safe-to-remove` could name."""
    with open_parts(workdir, timing=WAITING) as parts:

        async def task() -> dict[str, Any]:
            for index in range(COUNT):
                await make(parts, index)
            reader = os.open(place(parts, 0), os.O_RDONLY)
            parts.kernel = AskedTwice(lambda: os.close(reader))
            return await _answer_after_drain(parts)

        answer = trio.run(task)
        assert "refused" not in answer
        assert not [file for file in parts.commitlog.others if file.disk == LEAVING]


def test_a_disk_whose_file_is_open_in_the_mount_is_refused_at_once(workdir: Path) -> None:
    with open_parts(workdir, timing=WAITING) as parts:

        async def task() -> dict[str, Any]:
            await make(parts, 0, close=False)
            os.truncate(place(parts, 0), SIZE)
            for index in range(1, COUNT):
                await make(parts, index)
            return await _answer_after_drain(parts)

        assert "that are still open" in trio.run(task)["refused"]
