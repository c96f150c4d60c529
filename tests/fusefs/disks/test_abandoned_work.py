"""Work that outlives the one who waits for it."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork


class Slow:
    """Work that ends when the test lets it end."""

    def __init__(self, outcome: str | Exception) -> None:
        self.outcome = outcome
        self.go_on = trio.Event()
        self.begun = 0

    async def work(self) -> str:
        self.begun += 1
        await self.go_on.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_a_result_in_time_is_the_waiters():
    async def main() -> None:
        slow = Slow("made")
        slow.go_on.set()
        assert await AbandonableWork(slow.work).wait() == "made"

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_an_error_in_time_is_the_waiters():
    async def main() -> None:
        slow = Slow(OSError(5, "injected"))
        slow.go_on.set()
        with pytest.raises(OSError, match="injected"):
            await AbandonableWork(slow.work).wait()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_work_outlives_its_waiter_and_another_gets_the_result():
    async def main() -> None:
        slow = Slow("made")
        detached = AbandonableWork(slow.work)
        with trio.move_on_after(0.01) as scope:
            await detached.wait()
        assert scope.cancelled_caught
        slow.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await detached.wait() == "made"
        assert slow.begun == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("error", [None, OSError(5, "injected")])
def test_what_ends_in_the_moment_in_which_its_waiter_gives_up_counts(error: OSError | None):
    async def main() -> None:
        async def work() -> str:
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            if error is not None:
                raise error
            return "made"

        with trio.CancelScope() as scope:
            waiting = AbandonableWork(work).wait()
            if error is None:
                assert await waiting == "made"
            else:
                with pytest.raises(OSError, match="injected"):
                    await waiting
        assert scope.cancel_called
        assert not scope.cancelled_caught

    trio.run(main)


def test_an_error_that_nobody_waits_for_ends_nothing_else():
    async def main() -> None:
        slow = Slow(OSError(5, "injected"))
        detached = AbandonableWork(slow.work)
        with trio.move_on_after(0.01):
            await detached.wait()
        slow.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            with pytest.raises(OSError, match="injected"):
                await detached.wait()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_all_waiters_get_the_result():
    async def main() -> None:
        slow, results = Slow("made"), list[str]()
        shared = AbandonableWork(slow.work)

        async def wait() -> None:
            results.append(await shared.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            slow.go_on.set()
        assert results == ["made", "made"]

    trio.run(main, clock=MockClock(autojump_threshold=0))
