"""Deadlines, late results, and disks that hang: every hang is a threading.Event."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing
from support.pooled import has_calls
from support.waiting import eventually
from trio.testing import MockClock

from commitlogfs.fusefs.disks.disk_threads import PROMPT_THREADS, DiskThreads, PromptCalls, SingleCalls, _Outcome
from commitlogfs.store.disks.membership import DiskNumber

ONE, TWO = DiskNumber(1), DiskNumber(2)
SOON_S = 0.02
LONG_S = 300.0


class Hung:
    """A call that hangs until released; discards are kept."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.started = threading.Event()
        self.discarded: list[str] = []
        self.discard_seen = threading.Event()

    def work(self) -> str:
        self.started.set()
        assert self.released.wait(LONG_S)
        return "late"

    def discard(self, value: str) -> None:
        self.discarded.append(value)
        self.discard_seen.set()


@contextmanager
def hung():
    call = Hung()
    try:
        yield call
    finally:
        call.released.set()


async def wait_for(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, LONG_S)


async def until_idle(threads: DiskThreads) -> None:
    """Wait in real time, as threads end in real time whatever the clock of trio is."""
    await trio.to_thread.run_sync(eventually, lambda: not any(threads.statistics().values()))


@asynccontextmanager
async def deadline_passing(clock: MockClock, started: threading.Event | None = None) -> AsyncIterator[None]:
    """Let SOON_S pass when `started` is set; without it, when the call in the context waits."""

    async def let_it_pass() -> None:
        if started is None:
            await trio.testing.wait_all_tasks_blocked()
        else:
            await wait_for(started)
        clock.jump(SOON_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_it_pass)
        yield


def test_a_result_in_time_is_returned_and_never_discarded():
    discarded: list[int] = []

    async def main() -> None:
        threads = DiskThreads([ONE])
        assert await threads.run_within(ONE, LONG_S, lambda: 7, discarded.append) == 7
        assert await threads.run(ONE, lambda: 8) == 8

    trio.run(main)
    assert discarded == []


def test_a_late_result_is_discarded_exactly_once():
    clock = MockClock()

    async def main() -> None:
        threads = DiskThreads([ONE])
        with hung() as call:
            async with deadline_passing(clock, call.started):
                with pytest.raises(TimeoutError, match=r"no answer within 0\.02 s"):
                    await threads.run_within(ONE, SOON_S, call.work, call.discard)
            assert threads.statistics() == {ONE: 1}, "the hung thread is seen"
            assert call.discarded == []
            call.released.set()
            await until_idle(threads)
        assert call.discarded == ["late"]

    trio.run(main, clock=clock)


def test_a_result_that_nobody_waits_for_any_more_is_discarded_too():
    """The waiting task itself is cancelled (the daemon ends), long before the deadline."""

    async def main() -> None:
        threads = DiskThreads([ONE])
        with hung() as call:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(threads.run_within, ONE, 1000, call.work, call.discard)
                    await wait_for(call.started)
                    scope.cancel()
            call.released.set()
            await until_idle(threads)
        assert call.discarded == ["late"]

    trio.run(main)


def test_a_result_that_is_there_when_its_task_is_cancelled_is_returned():
    """As at the end of a limit around several calls: the event loop has not seen the answer yet."""
    results: list[str] = []

    async def main() -> None:
        threads = DiskThreads([ONE])

        async def ask(call: Hung) -> None:
            results.append(await threads.run_within(ONE, LONG_S, call.work, call.discard))

        with hung() as call:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, call)
                await wait_for(call.started)
                call.released.set()
                eventually(lambda: not has_calls())  # the event loop stands still meanwhile
                nursery.cancel_scope.cancel()
        assert (results, call.discarded) == (["late"], [])

    trio.run(main)


def test_errors_pass_through_in_time_and_are_dropped_when_late():
    clock = MockClock()

    def fail() -> None:
        raise OSError(5, "broken")

    async def main() -> None:
        threads = DiskThreads([ONE])
        with pytest.raises(OSError, match="broken"):
            await threads.run_within(ONE, LONG_S, fail)
        with hung() as call:

            def late_failure() -> str:
                call.work()
                raise OSError(5, "broken")

            async with deadline_passing(clock, call.started):
                with pytest.raises(TimeoutError):
                    await threads.run_within(ONE, SOON_S, late_failure, call.discard)
            call.released.set()
            await until_idle(threads)
        assert call.discarded == []

    trio.run(main, clock=clock)


def test_a_result_of_the_last_moment_belongs_to_exactly_one_side():
    """The first one to take the lock decides; the other one sees it."""
    for abandoned_first in (True, False):
        discarded: list[str] = []
        outcome = _Outcome(lambda: "value", discarded.append)
        if abandoned_first:
            assert outcome.abandon() is True
            outcome.work()
            assert (outcome.result, discarded) == ([], ["value"])
        else:
            outcome.work()
            assert outcome.abandon() is False
            assert (outcome.result, discarded) == (["value"], [])


def test_the_last_moment_under_real_threads():
    for _ in range(300):
        discarded: list[str] = []
        outcome = _Outcome(lambda: "value", discarded.append)
        gate = threading.Barrier(2)

        def work(run: Callable[[], object] = outcome.work, gate: threading.Barrier = gate) -> None:
            gate.wait()
            run()

        thread = threading.Thread(target=work)
        thread.start()
        gate.wait()
        abandoned = outcome.abandon()
        thread.join()
        assert discarded == (["value"] if abandoned else [])
        assert outcome.result == ([] if abandoned else ["value"])


def test_a_hung_disk_leaves_the_others_alone():
    clock = MockClock()

    async def main() -> None:
        threads = DiskThreads([ONE, TWO], threads_per_disk=3)
        with hung() as call:
            async with trio.open_nursery() as nursery:
                for _ in range(10):  # more than it has threads
                    nursery.start_soon(threads.run, ONE, call.work)
                await trio.testing.wait_all_tasks_blocked()
                assert threads.statistics() == {ONE: 3, TWO: 0}
                assert await threads.run(TWO, lambda: "fine") == "fine"
                async with deadline_passing(clock):
                    with pytest.raises(TimeoutError):
                        await threads.run_within(ONE, SOON_S, lambda: "never runs", call.discard)
                call.released.set()
        assert threads.statistics() == {ONE: 0, TWO: 0}
        assert call.discarded == [], "what never started has no result"

    trio.run(main, clock=clock)


def test_an_abandoned_thread_still_counts_against_its_disk():
    clock = MockClock()

    async def main() -> None:
        threads = DiskThreads([ONE], threads_per_disk=2)
        with hung() as call:
            for _ in range(2):
                async with deadline_passing(clock):
                    with pytest.raises(TimeoutError):
                        await threads.run_within(ONE, SOON_S, call.work)
            ran = threading.Event()
            async with deadline_passing(clock):
                with pytest.raises(TimeoutError):
                    await threads.run_within(ONE, SOON_S, ran.set)
            assert not ran.is_set(), "hung calls must not pile up without limit"
            call.released.set()
            await until_idle(threads)
            await threads.run_within(ONE, LONG_S, ran.set)
            assert ran.is_set()

    trio.run(main, clock=clock)


def test_run_waits_as_long_as_it_takes():
    async def main() -> None:
        threads = DiskThreads([ONE])
        with hung() as call:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(threads.run, ONE, call.work)
                await wait_for(call.started)
                nursery.cancel_scope.cancel()
                call.released.set()  # cancellation alone does not return: the work belongs to somebody
        assert threads.statistics() == {ONE: 0}

    trio.run(main)


def test_a_call_is_refused_while_an_earlier_one_hangs():
    clock = MockClock()

    async def main() -> None:
        calls = SingleCalls(DiskThreads([ONE, TWO]))
        with hung() as call:
            async with deadline_passing(clock, call.started):
                with pytest.raises(TimeoutError):
                    await calls.run_within(ONE, SOON_S, call.work)
            assert calls.is_under_way(ONE)
            with pytest.raises(TimeoutError, match="earlier"):
                await calls.run_within(ONE, LONG_S, lambda: "second")
            assert await calls.run_within(TWO, LONG_S, lambda: "other") == "other"

    trio.run(main, clock=clock)


def test_a_call_that_found_no_thread_is_not_under_way():
    clock = MockClock()

    async def main() -> None:
        threads = DiskThreads([ONE], threads_per_disk=1)
        calls = SingleCalls(threads)
        with hung() as call:
            async with deadline_passing(clock, call.started):
                with pytest.raises(TimeoutError):
                    await threads.run_within(ONE, SOON_S, call.work)
            async with deadline_passing(clock):
                with pytest.raises(TimeoutError, match="no answer"):
                    await calls.run_within(ONE, SOON_S, lambda: "too late")
            assert not calls.is_under_way(ONE)
        assert await calls.run_within(ONE, LONG_S, lambda: "well") == "well"

    trio.run(main, clock=clock)


class LateThreads(DiskThreads):
    """Its threads begin a call only after the deadline: `begin` is the thread of the last call."""

    begin: Callable[[], object]

    async def run_within(self, disk, deadline_s, function, discard=None, limiter=None):
        self.begin = function
        raise TimeoutError("no answer")


def test_a_call_whose_thread_begins_too_late_is_not_made():
    async def main() -> None:
        threads = LateThreads([ONE])
        calls, made = SingleCalls(threads), []
        with pytest.raises(TimeoutError, match="no answer"):
            await calls.run_within(ONE, SOON_S, lambda: made.append("late"))
        assert not calls.is_under_way(ONE)
        with pytest.raises(TimeoutError, match="nobody waits"):
            threads.begin()
        assert made == [], "a second call may hold another thread of a hung disk meanwhile"

    trio.run(main)


# --- calls that nobody waits long for ----------------------------------------------------------------------


def test_while_one_call_is_late_no_other_is_made_on_its_disk():
    clock, late = MockClock(), list[str]()

    async def main() -> None:
        threads = DiskThreads([ONE, TWO])
        calls = PromptCalls(threads)
        with hung() as call:
            async with deadline_passing(clock, call.started):
                with pytest.raises(TimeoutError, match="no answer"):
                    await calls.run_within(ONE, SOON_S, call.work, late.append)
            with pytest.raises(TimeoutError, match="an earlier call"):
                await calls.run_within(ONE, SOON_S, lambda: "second", late.append)
            assert threads.statistics() == {ONE: 1, TWO: 0}
            assert await calls.run_within(TWO, SOON_S, lambda: "other", late.append) == "other"
            assert late == []
            call.released.set()
            await until_idle(threads)
            await trio.testing.wait_all_tasks_blocked()
            assert late == ["late"]
        assert await calls.run_within(ONE, SOON_S, lambda: "well", late.append) == "well"

    trio.run(main, clock=clock)
    assert late == ["late"]


def test_calls_side_by_side_are_made_while_none_is_late():
    async def main() -> None:
        calls, answers = PromptCalls(DiskThreads([ONE])), list[int]()
        barrier = threading.Barrier(2)

        async def ask() -> None:
            answers.append(await calls.run_within(ONE, LONG_S, barrier.wait, answers.append))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert sorted(answers) == [0, 1]

    trio.run(main)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_error_of_a_prompt_call(is_late: bool):
    clock, late = MockClock(), list[str]()

    async def main() -> None:
        threads = DiskThreads([ONE])
        calls = PromptCalls(threads)
        with hung() as call:

            def fail() -> str:
                if is_late:
                    call.work()
                raise OSError(5, "broken")

            if is_late:
                async with deadline_passing(clock, call.started):
                    with pytest.raises(TimeoutError):
                        await calls.run_within(ONE, SOON_S, fail, late.append)
            else:
                with pytest.raises(OSError, match="broken"):
                    await calls.run_within(ONE, SOON_S, fail, late.append)
            call.released.set()
            await until_idle(threads)
            await trio.testing.wait_all_tasks_blocked()
        assert await calls.run_within(ONE, SOON_S, lambda: "well", late.append) == "well"

    trio.run(main, clock=clock)
    assert late == []


def test_a_cancelled_prompt_call_is_late_too():
    late: list[str] = []

    async def main() -> None:
        threads = DiskThreads([ONE])
        calls = PromptCalls(threads)
        with hung() as call:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(calls.run_within, ONE, LONG_S, call.work, late.append)
                await wait_for(call.started)
                nursery.cancel_scope.cancel()
            with pytest.raises(TimeoutError, match="an earlier call"):
                await calls.run_within(ONE, LONG_S, lambda: "second", late.append)
            call.released.set()
            await until_idle(threads)
            await trio.testing.wait_all_tasks_blocked()
        assert await calls.run_within(ONE, LONG_S, lambda: "well", late.append) == "well"

    trio.run(main)
    assert late == ["late"]


def test_prompt_calls_have_threads_of_their_own():
    async def main() -> None:
        threads = DiskThreads([ONE], threads_per_disk=2)
        calls, late = PromptCalls(threads), list[str]()
        with hung() as first, hung() as second:
            async with trio.open_nursery() as nursery:
                for call in (first, second):
                    nursery.start_soon(threads.run, ONE, call.work)
                    await wait_for(call.started)
                assert await calls.run_within(ONE, LONG_S, lambda: "well", late.append) == "well"
                first.released.set()
                second.released.set()
        assert late == []

    trio.run(main)


def test_prompt_calls_that_begin_before_one_is_late_hold_few_threads():
    clock = MockClock()

    async def main() -> None:
        threads = DiskThreads([ONE])
        calls, late = PromptCalls(threads), list[str]()
        all_begun = threading.Barrier(PROMPT_THREADS + 1)

        def work() -> str:
            all_begun.wait()
            return call.work()

        async def ask() -> None:
            with pytest.raises(TimeoutError, match="no answer"):
                await calls.run_within(ONE, SOON_S, work, late.append)

        with hung() as call:
            async with trio.open_nursery() as nursery:
                for _ in range(PROMPT_THREADS + 1):
                    nursery.start_soon(ask)
                await trio.to_thread.run_sync(all_begun.wait)
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(SOON_S)
            assert threads.statistics() == {ONE: PROMPT_THREADS}
            call.released.set()
            await until_idle(threads)
            await trio.testing.wait_all_tasks_blocked()
            assert late == ["late"] * PROMPT_THREADS
        assert await calls.run_within(ONE, LONG_S, lambda: "well", late.append) == "well"

    trio.run(main, clock=clock)
