"""Blocking calls in worker threads, limited for each disk, so that one hung disk cannot stop the others.

The kernel knows each thread by its disk, so that a daemon can tell which disks hold threads of its own
(disk_places.py), and those of one that was killed (mount/daemon/former_daemons.py).
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import trio

from commitlogfs.fusefs.disks.kernel_waits import Wait, read_waits
from commitlogfs.store.disks.membership import DiskNumber

T = TypeVar("T")

OUTSIDE: Final = DiskNumber(0)
"""In place of a disk: where a restored segment comes from. Numbers of disks begin with 1."""
THREADS_PER_DISK = 16
PROMPT_THREADS = 4
"""Threads of a disk for each kind of calls that nobody waits long for."""
_THREAD_NAME: Final = re.compile(r"disk-(\d+)")


def disk_of_thread(name: str) -> DiskNumber | None:
    """The disk on which a thread with this name works; None if it does not work on a disk."""
    match = _THREAD_NAME.fullmatch(name)
    return None if match is None else DiskNumber(int(match[1]))


def _thread_name(disk: DiskNumber) -> str:
    return f"disk-{disk}"


class DiskThreads:
    """Runs functions in the threads of a disk."""

    def __init__(self, disks: Iterable[DiskNumber], threads_per_disk: int = THREADS_PER_DISK) -> None:
        self._limiters = {number: trio.CapacityLimiter(threads_per_disk) for number in disks}
        self._set_aside: dict[DiskNumber, list[trio.CapacityLimiter]] = {number: [] for number in self._limiters}

    async def run(self, disk: DiskNumber, function: Callable[[], T]) -> T:
        """Result of `function`, however long it takes."""
        return await self._call(disk, self._limiters[disk], function, may_be_abandoned=False)

    async def aside(self, function: Callable[[], T], *, may_be_abandoned: bool = False) -> T:
        """Result of `function`, which waits for no disk of the pool, but for the machine, or for another disk."""
        return await trio.to_thread.run_sync(function, abandon_on_cancel=may_be_abandoned)

    async def run_within(
        self,
        disk: DiskNumber,
        deadline_s: float,
        function: Callable[[], T],
        discard: Callable[[T], None] | None = None,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Result of `function`. Raises TimeoutError after `deadline_s`, and leaves the thread behind.

        A result that comes later, or after the waiting task was cancelled, is passed to `discard` in that thread;
        one that is there in that moment counts. `limiter` is one of `set_aside`.
        """
        outcome: _Outcome[T] = _Outcome(function, discard)
        try:
            with trio.move_on_after(deadline_s):
                return await self._call(disk, limiter or self._limiters[disk], outcome.work, may_be_abandoned=True)
        except trio.Cancelled:
            if outcome.abandon():
                raise
        else:
            if outcome.abandon():
                raise TimeoutError(f"no answer within {deadline_s:g} s")
        return outcome.result[0]

    def set_aside(self, disk: DiskNumber, threads: int) -> trio.CapacityLimiter:
        """More threads of a disk, which the calls of others do not use."""
        limiter = trio.CapacityLimiter(threads)
        self._set_aside[disk].append(limiter)
        return limiter

    def statistics(self) -> dict[DiskNumber, int]:
        """Number of busy or hung threads by disk."""
        return {
            number: sum(int(one.borrowed_tokens) for one in (limiter, *self._set_aside[number]))
            for number, limiter in self._limiters.items()
        }

    def waits(self) -> set[Wait]:
        """Waits of the threads of this process in the kernel, where no signal ends them: those of disks, and all
        others. Reads only /proc: does not block."""
        return read_waits(os.getpid())

    async def _call(
        self, disk: DiskNumber, limiter: trio.CapacityLimiter, function: Callable[[], T], *, may_be_abandoned: bool
    ) -> T:
        """The one place where a call waits for a disk."""
        return await trio.to_thread.run_sync(
            function,
            limiter=limiter,
            abandon_on_cancel=may_be_abandoned,
            thread_name=_thread_name(disk),
        )


class FirstTaker:
    """Decides which of two gets hold of one thing first, such as a call: the thread that would make it, or the task
    that has stopped waiting for a thread. If the thread began later, nobody would expect the call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> bool:
        """True for the first caller, False for each later one."""
        return self._lock.acquire(blocking=False)


class SingleCalls:
    """Calls of one kind, at most one at a time on each disk, so that a hung disk holds only one thread."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._under_way: set[DiskNumber] = set()

    def is_under_way(self, disk: DiskNumber) -> bool:
        """Whether an earlier call on this disk has not ended, although its caller may not wait any more."""
        return disk in self._under_way

    async def run_within(self, disk: DiskNumber, deadline_s: float, function: Callable[[], T]) -> T:
        """As DiskThreads.run_within. Raises TimeoutError at once while an earlier call is under way."""
        if disk in self._under_way:
            raise TimeoutError("an earlier call has not ended")
        self._under_way.add(disk)
        begin = FirstTaker()

        def work() -> T:
            if not begin.take():
                raise TimeoutError("nobody waits for this call any more")
            try:
                return function()
            finally:
                self._under_way.discard(disk)

        try:
            return await self._threads.run_within(disk, deadline_s, work)
        finally:
            if begin.take():  # no thread ever will, which would end the call
                self._under_way.discard(disk)


class PromptCalls:
    """Calls of one kind that nobody waits long for. While one of them is late, no other one is made on its disk: it
    would hold one more thread there. They have threads of their own: a disk on which others wait for long calls is
    not late for that."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._limiters: dict[DiskNumber, trio.CapacityLimiter] = {}
        self._late: dict[DiskNumber, set[object]] = {}
        """Calls under way that nobody waits for any more."""

    async def run_within(
        self, disk: DiskNumber, deadline_s: float, function: Callable[[], T], late: Callable[[T], object]
    ) -> T:
        """As DiskThreads.run_within, but a result that comes later is passed to `late`, in the event loop. Raises
        TimeoutError at once while an earlier call is late."""
        calls = self._late.setdefault(disk, set())
        if calls:
            raise TimeoutError("an earlier call has not ended")
        if disk not in self._limiters:
            self._limiters[disk] = self._threads.set_aside(disk, PROMPT_THREADS)
        call, loop = object(), trio.lowlevel.current_trio_token()
        begin, has_ended = FirstTaker(), threading.Event()

        def work() -> T | Exception:
            if not begin.take():
                raise TimeoutError("nobody waits for this call any more")
            try:
                return function()
            except Exception as error:  # it ends a late call, too
                return error

        def discard(outcome: T | Exception) -> None:
            has_ended.set()
            with contextlib.suppress(trio.RunFinishedError):
                loop.run_sync_soon(take_late, outcome)

        def take_late(outcome: T | Exception) -> None:
            calls.discard(call)
            if not isinstance(outcome, Exception):
                late(outcome)

        try:
            outcome = await self._threads.run_within(disk, deadline_s, work, discard, self._limiters[disk])
        except (TimeoutError, trio.Cancelled):
            if not begin.take() and not has_ended.is_set():
                calls.add(call)  # before `take_late`, which the event loop has not run yet
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class _Outcome(Generic[T]):
    """A result that goes either to the waiting task or, once abandoned, to `discard`, never to both."""

    def __init__(self, function: Callable[[], T], discard: Callable[[T], None] | None) -> None:
        self._function = function
        self._discard = discard
        self._lock = threading.Lock()
        self._abandoned = False
        self.result: list[T] = []

    def work(self) -> T:
        value = self._function()
        with self._lock:
            if not self._abandoned:
                self.result.append(value)
                return value
        self.discard(value)
        return value

    def discard(self, value: T) -> None:
        if self._discard is not None:
            self._discard(value)

    def abandon(self) -> bool:
        """Give up waiting. Returns False if the result arrived at the last moment and is to be used."""
        with self._lock:
            self._abandoned = not self.result
            return self._abandoned
