"""Work that continues when its caller has given up waiting: a call that a disk has received cannot be taken
back."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class AbandonableWork(Generic[T]):
    """A task that may outlive the request for which it was started."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], discard: Callable[[T], Awaitable[None]] | None = None
    ) -> None:
        """Start `work`.

        After the caller has given up, a late result is passed to `discard`, and a late error is dropped: `work`
        reports its errors itself. Neither may raise a BaseException that is not an Exception.
        """
        self._ended = trio.Event()
        self._abandoned = False
        self._result: list[T] = []
        self._error: Exception | None = None
        trio.lowlevel.spawn_system_task(self._run, work, discard)

    async def wait(self, deadline_s: float) -> T:
        """The result of the work; raises its error, or TimeoutError after `deadline_s`. Call it once."""
        try:
            with trio.move_on_after(deadline_s):
                await self._ended.wait()
        finally:
            self._abandoned = not self._ended.is_set()
        if self._abandoned:
            raise TimeoutError(f"no answer within {deadline_s:g} s")
        if self._error is not None:
            raise self._error
        return self._result[0]

    async def _run(self, work: Callable[[], Awaitable[T]], discard: Callable[[T], Awaitable[None]] | None) -> None:
        try:
            result = await work()
        except Exception as error:
            self._error = error
        else:
            self._result.append(result)
        self._ended.set()
        if self._abandoned and self._result and discard is not None:
            await discard(self._result[0])
