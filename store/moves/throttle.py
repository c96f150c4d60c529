"""How fast a move may be: at a given rate, or by default for a part of the time that is left idle. Pure."""

from typing import Final

from commitlogfs.store.timing import Pace

_LONGEST_CREDIT_S: Final = 0.1
_CHUNKS_A_SECOND: Final = 8
_SMALLEST_CHUNK: Final = 4096


class Throttle:
    """Paces one move after the other. Times are in seconds of a steady clock."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._due_s = 0.0
        """When the next bytes may be moved."""

    def record(self, rate: int, count: int, began_s: float, ended_s: float, busy: float) -> None:
        """`count` bytes were read or written, from `began_s` to `ended_s`. `rate` is in bytes per second, 0 for
        none given: then `busy` counts, from 0 to 1, the part of the time for which the machine works."""
        if rate:
            self._due_s = max(self._due_s, began_s - _LONGEST_CREDIT_S) + count / rate
        else:
            share = max(self._pace.smallest_share, self._pace.idle_share * (1 - busy))
            self._due_s = ended_s + (ended_s - began_s) * (1 / share - 1)

    def pause_s(self, now_s: float) -> float:
        """How long to wait now; ask again afterwards."""
        return min(max(0.0, self._due_s - now_s), self._pace.longest_pause_s)

    def forget(self) -> None:
        """The rate has changed: what was moved before does not count."""
        self._due_s = 0.0


def chunk_bytes(rate: int, largest: int) -> int:
    """Bytes to move at once, so that a low rate is kept evenly."""
    if not rate:
        return largest
    return min(largest, max(_SMALLEST_CHUNK, rate // _CHUNKS_A_SECOND // _SMALLEST_CHUNK * _SMALLEST_CHUNK))
