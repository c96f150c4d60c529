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
        self.discarded: list[str] = []

    async def work(self) -> str:
        await self.go_on.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def discard(self, result: str) -> None:
        self.discarded.append(result)


def test_a_result_in_time_is_the_waiters():
    async def main() -> None:
        slow = Slow("made")
        slow.go_on.set()
        assert await AbandonableWork(slow.work, slow.discard).wait(5) == "made"
        assert not slow.discarded

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_an_error_in_time_is_the_waiters():
    async def main() -> None:
        slow = Slow(OSError(5, "injected"))
        slow.go_on.set()
        with pytest.raises(OSError, match="injected"):
            await AbandonableWork(slow.work, slow.discard).wait(5)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("outcome", "discarded"), [("made", ["made"]), (OSError(5, "injected"), [])])
def test_what_comes_too_late_is_discarded(outcome, discarded):
    async def main() -> None:
        slow = Slow(outcome)
        detached = AbandonableWork(slow.work, slow.discard)
        with pytest.raises(TimeoutError):
            await detached.wait(0.01)
        slow.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert slow.discarded == discarded

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_cancelled_waiter_leaves_the_work_running():
    async def main() -> None:
        slow = Slow("made")
        detached = AbandonableWork(slow.work, slow.discard)
        with trio.move_on_after(0.01):
            await detached.wait(5)
        slow.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert slow.discarded == ["made"]

    trio.run(main, clock=MockClock(autojump_threshold=0))
