"""Stop signals: as events of a poll, and recorded for later."""

import os
import signal
from collections.abc import Iterator

from commitlogfs.console import interrupts

STOPS = (signal.SIGTERM, signal.SIGINT)
REOPEN = signal.SIGHUP
"""Signal that opens the log file again. It is caught even if the process was started to ignore it (nohup)."""
_WAKE = 0
"""No signal's number."""


class Signals:
    """Catches REOPEN, and STOPS except those that this process was started to ignore."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _ignore)
        signal.signal(REOPEN, _ignore)
        interrupts.unblock()

    def fileno(self) -> int:
        return self._reader

    def take(self) -> Iterator[signal.Signals | None]:
        """Signals since the last call, in their order; None for a `wake`."""
        try:
            numbers = os.read(self._reader, 1024)
        except BlockingIOError:
            return
        for number in numbers:
            yield None if number == _WAKE else signal.Signals(number)

    def wake(self) -> None:
        """End the poll, from another thread."""
        os.write(self._writer, bytes([_WAKE]))

    def close(self) -> None:
        """Close the pipe. A process that does not end now has to set other handlers first."""
        os.close(self._reader)
        os.close(self._writer)


def _ignore(_number: int, _frame: object) -> None:
    """The number itself goes into the pipe."""


def record_stops() -> list[int]:
    """Record stop signals from now on, instead of acting on them. Returns the list that gets them, in their
    order."""
    came: list[int] = []
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: came.append(number))
    return came
