"""Reminders: none is lost, and a disk that gets none is checked in time."""

import trio
from trio.testing import MockClock

from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.store.disks.membership import DiskNumber

ONE, OTHER = DiskNumber(1), DiskNumber(2)


def test_a_reminder_during_the_work_ends_the_next_wait() -> None:
    async def main() -> None:
        reminders = Reminders([ONE, OTHER])
        reminders.remind(ONE)
        reminders.remind(ONE)
        started = trio.current_time()
        await reminders.wait(ONE, 10)
        assert trio.current_time() == started
        await reminders.wait(ONE, 10)
        await reminders.wait(OTHER, 5)
        assert trio.current_time() == started + 15
        reminders.remind_all()
        await reminders.wait(ONE, 10)
        await reminders.wait(OTHER, 10)
        assert trio.current_time() == started + 15

    trio.run(main, clock=MockClock(autojump_threshold=0))
