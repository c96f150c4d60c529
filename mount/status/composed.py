"""One value for many readers, composed no more often than needed."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Composed(Generic[T]):
    """A value that takes a while to compose, and that any number of readers may ask for at any time.

    Readers that ask while it is being composed wait for that composition instead of starting another one.
    """

    def __init__(self, compose: Callable[[], Awaitable[T]], max_age_s: float) -> None:
        self._compose = compose
        self._max_age_s = max_age_s
        self._lock = trio.Lock()
        self._latest: tuple[float, T] | None = None
        """When its composition began, and the value."""

    async def recent(self) -> T:
        """A value at most `max_age_s` old."""
        return await self._begun_at_or_after(trio.current_time() - self._max_age_s)

    async def current(self) -> T:
        """A value that shows everything that happened before this call."""
        return await self._begun_at_or_after(trio.current_time())

    async def _begun_at_or_after(self, earliest: float) -> T:
        async with self._lock:
            if self._latest is None or self._latest[0] < earliest:
                begun = trio.current_time()
                self._latest = (begun, await self._compose())
            return self._latest[1]
