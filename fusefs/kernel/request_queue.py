"""The kernel's queue of requests that no daemon has taken yet."""

import select
from collections.abc import Callable


class RequestQueue:
    """The queue of one connection."""

    def __init__(self, device: int, taken: Callable[[], int]) -> None:
        """`taken` returns the number of requests that this process has taken from it."""
        self._poll = select.poll()
        self._poll.register(device, select.POLLIN)
        self._taken = taken
        self._seen: int | None = None
        """Number of taken requests at the last call, if others waited then."""

    def has_stopped(self) -> bool:
        """Whether requests wait that waited at the last call already, and none was taken since then."""
        before, taken = self._seen, self._taken()
        waits = any(events & select.POLLIN for _, events in self._poll.poll(0))
        self._seen = taken if waits else None
        return waits and before == taken
