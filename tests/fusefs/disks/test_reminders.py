"""Reminders: none is lost, and a disk that gets none is checked in time."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

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


def test_a_round_ends_with_the_work_that_began_after_the_request() -> None:
    async def main() -> None:
        reminders, may_end = Reminders([ONE]), trio.Semaphore(0)
        begun, ended = list[int](), list[int]()

        async def work() -> None:
            while True:
                begun.append(len(begun))
                await may_end.acquire()
                await reminders.wait(ONE, 1000)

        async def request() -> None:
            await reminders.run_round(ONE)
            ended.append(len(begun))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await wait_all_tasks_blocked()
            nursery.start_soon(request)  # during the first round
            await wait_all_tasks_blocked()
            may_end.release()
            await wait_all_tasks_blocked()
            assert (len(begun), ended) == (2, [])
            may_end.release()
            await wait_all_tasks_blocked()
            assert (len(begun), ended) == (2, [2])
            nursery.start_soon(request)  # while the task waits
            await wait_all_tasks_blocked()
            assert (len(begun), ended) == (3, [2])
            may_end.release()
            await wait_all_tasks_blocked()
            assert ended == [2, 3]
            nursery.cancel_scope.cancel()

    trio.run(main)
