"""Reminders: one event loop task per disk waits for work, and others say that there may be some."""

from collections.abc import Iterable

import trio

from commitlogfs.store.disks.membership import DiskNumber


class Reminders:
    """A reminder that comes while its task works is kept, so that nothing is missed; several count as one."""

    def __init__(self, disks: Iterable[DiskNumber]) -> None:
        self._events = {number: trio.Event() for number in disks}
        self._round_ends = {number: trio.Event() for number in self._events}
        self._next_round_ends = {number: trio.Event() for number in self._events}

    def remind(self, number: DiskNumber) -> None:
        self._events[number].set()

    def remind_all(self) -> None:
        for event in self._events.values():
            event.set()

    async def wait(self, number: DiskNumber, at_most_s: float) -> None:
        """Wait for the next reminder of a disk, at most `at_most_s`. The work since the last wait is done."""
        self._round_ends[number].set()
        with trio.move_on_after(at_most_s):
            await self._events[number].wait()
        self._events[number] = trio.Event()
        self._round_ends[number], self._next_round_ends[number] = self._next_round_ends[number], trio.Event()

    async def run_round(self, number: DiskNumber) -> None:
        """Remind the task of a disk; return once it has done all its work. A round under way does not count."""
        ended = self._next_round_ends[number]
        self.remind(number)
        await ended.wait()
