"""Work that continues when its caller has given up waiting: a call that a disk has received cannot be taken
back."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class AbandonableWork(Generic[T]):
    """A task that may outlive the requests that wait for it."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        """Start `work`. It reports errors itself that matter when nobody waits any more. It may not raise a
        BaseException that is not an Exception."""
        self._ended = trio.Event()
        self._result: list[T] = []
        self._error: Exception | None = None
        trio.lowlevel.spawn_system_task(self._run, work)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self) -> T:
        """The result of the work; raises its error. A caller that is cancelled leaves the work running; what
        has ended in the same moment counts."""
        try:
            await self._ended.wait()
        except trio.Cancelled:
            if not self.has_ended:
                raise
        if self._error is not None:
            raise self._error
        return self._result[0]

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            self._result.append(await work())
        except Exception as error:
            self._error = error
        self._ended.set()
