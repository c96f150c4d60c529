"""Work that goes on when nobody waits for it any longer: what has been sent to a disk cannot be called back."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class AbandonableWork(Generic[T]):
    """A task of its own that outlives the request it was started for."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], discard: Callable[[T], Awaitable[None]] | None = None
    ) -> None:
        """Starts `work`. A result that nobody waits for any longer is given to `discard`; an error then is
        dropped: `work` has told it to whom it concerns. Neither may raise BaseException of its own."""
        self._ended = trio.Event()
        self._abandoned = False
        self._result: list[T] = []
        self._error: Exception | None = None
        trio.lowlevel.spawn_system_task(self._run, work, discard)

    async def wait(self, deadline_s: float) -> T:
        """The result, or the error raised again. Raises TimeoutError after `deadline_s`. Once only."""
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
