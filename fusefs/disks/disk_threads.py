"""Blocking calls in worker threads, limited per disk, so that one hung disk cannot stop the others."""

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import trio

from commitlogfs.store.disks.identity import DiskNumber

T = TypeVar("T")

THREADS_PER_DISK = 16


class DiskThreads:
    """Runs functions on behalf of disks."""

    def __init__(self, disks: Iterable[DiskNumber], threads_per_disk: int = THREADS_PER_DISK) -> None:
        self._limiters = {number: trio.CapacityLimiter(threads_per_disk) for number in disks}

    async def run(self, disk: DiskNumber, function: Callable[[], T]) -> T:
        """Wait for the result however long it takes."""
        return await trio.to_thread.run_sync(function, limiter=self._limiters[disk])

    async def run_within(
        self,
        disk: DiskNumber,
        deadline_s: float,
        function: Callable[[], T],
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """Wait at most `deadline_s`; then raise TimeoutError and leave the thread behind.

        A result that comes too late, or after the waiting task was cancelled, is given to `discard` (in that
        thread).
        """
        outcome: _Outcome[T] = _Outcome(function, discard)
        try:
            with trio.move_on_after(deadline_s):
                return await trio.to_thread.run_sync(
                    outcome.work, limiter=self._limiters[disk], abandon_on_cancel=True
                )
        except trio.Cancelled:
            if not outcome.abandon():
                outcome.discard(outcome.result[0])
            raise
        if outcome.abandon():
            raise TimeoutError(f"no answer within {deadline_s:g} s")
        return outcome.result[0]

    def statistics(self) -> dict[DiskNumber, int]:
        """Threads busy (or hung) per disk."""
        return {number: int(limiter.borrowed_tokens) for number, limiter in self._limiters.items()}


class _Outcome(Generic[T]):
    """A result that belongs either to the waiting task or, once abandoned, to `discard`. Never to both."""

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
        """False if the result arrived in the last moment and is to be used after all."""
        with self._lock:
            self._abandoned = not self.result
            return self._abandoned
