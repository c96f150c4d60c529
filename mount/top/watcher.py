"""A process that gives the terminal back when the one that draws on it was killed."""

import contextlib
import os
import signal
import termios
from typing import Any, Final, NoReturn

from commitlogfs.mount.top.children import end_child, keep_only

Modes = list[Any]
"""As tcgetattr returns them."""

_ENTERED: Final = b"+"
_LEFT: Final = b"-"


class Watcher:
    """Made before the process has a second thread, as it forks.

    `fd`: the terminal. `former`: its modes to be restored; `ours`: the modes while we draw. `farewell`: what makes
    the terminal leave the state in which we draw.
    """

    def __init__(self, fd: int, former: Modes, ours: Modes, farewell: bytes) -> None:
        reports, self._reports = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _watch(reports, fd, former, ours, farewell)
        os.close(reports)

    def entered(self) -> None:
        """From here on the terminal needs to be restored."""
        self._report(_ENTERED)

    def left(self) -> None:
        """The terminal is as it was."""
        self._report(_LEFT)

    def _report(self, report: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._reports, report)

    def close(self) -> None:
        """End the process, which has nothing more to do."""
        os.close(self._reports)
        end_child(self._pid)


def _watch(reports: int, fd: int, former: Modes, ours: Modes, farewell: bytes) -> NoReturn:
    """Wait for the end of the process that draws. Never returns."""
    try:
        # In a session of its own, no key of the terminal ends or stops it, and it may set the terminal's modes
        # while the shell is in the foreground again.
        os.setsid()
        keep_only(reports, fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # A shell that is quicker writes its prompt to the screen that is left here, and it is lost until the next
        # one. This process sleeps all its life, so its priority costs nobody anything.
        with contextlib.suppress(OSError):  # without the right to it, it is the first one most of the time
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        last = _LEFT
        while report := os.read(reports, 64):
            last = report[-1:]
        if last == _ENTERED:
            os.write(fd, farewell)
            # Once a shell has set the modes that it needs itself, the former ones would break its line editor.
            if termios.tcgetattr(fd)[:4] == ours[:4]:
                termios.tcsetattr(fd, termios.TCSANOW, former)
    finally:
        os._exit(0)
