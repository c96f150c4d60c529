"""The end of a change of names and of its time, in virtual time."""

from pathlib import Path

import trio
from support.pooled import open_parts
from trio.testing import MockClock

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskSilentError

ROUNDS = 40
"""The order in which two tasks wake in the same moment is random."""


def test_a_change_that_ends_with_its_time_has_succeeded_or_is_late(workdir: Path) -> None:
    """An error without anybody who knows that the change is late would be wrong for good."""
    answers: list[str] = []

    async def change() -> str:
        await trio.sleep(1.0)
        return "done"

    async def task() -> None:
        disk = parts.disk_files[DiskNumber(1)]
        for _ in range(ROUNDS):
            late: list[str] = []
            try:
                answer = await parts.changes.finish(
                    disk, "unlink", (b"x",), change, 1.0, lambda told=late: told.append("late")
                )
            except DiskSilentError:
                assert late == ["late"]
            else:
                assert (answer, late) == ("done", [])
                answers.append(answer)
            await trio.testing.wait_all_tasks_blocked()

    with open_parts(workdir) as parts:
        trio.run(task, clock=MockClock(autojump_threshold=0))
    assert answers
