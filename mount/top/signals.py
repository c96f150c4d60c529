"""Signals of a program that draws on a terminal, as events of its loop."""

import contextlib
import os
import signal
from types import FrameType
from typing import Final

_HANDLED: Final = (
    *(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT),
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
)


class Signals:
    """Its descriptor (`fileno`) is readable when a signal has arrived. For the main thread."""

    def __init__(self) -> None:
        self._arrived, self._wakes = os.pipe()
        os.set_blocking(self._arrived, False)
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        self._former = {number: signal.getsignal(number) for number in _HANDLED}
        for number, former in self._former.items():
            if former is not signal.SIG_IGN:  # nohup, for instance
                signal.signal(number, _note)

    def fileno(self) -> int:
        return self._arrived

    def received(self) -> set[int]:
        """The signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self._arrived, 4096))
        return set()

    def stop(self) -> None:
        """Stop this process, as SIGTSTP would have. Returns when it continues."""
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)

    def close(self) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(-1)
        os.close(self._arrived)
        os.close(self._wakes)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor carries the number."""
