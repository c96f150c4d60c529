"""Handles Ctrl-C and SIGTERM only where no step is incomplete."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedByUserError(BaseException):
    """Not an Exception, like KeyboardInterrupt, so that no handler takes it for a failed step."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into InterruptedByUserError, at once or at the end of a shielded block."""

    def __init__(self) -> None:
        self._shields = 0
        self._pending: int | None = None

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._note)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Delays interrupts inside: for a step that makes something and registers how to undo it."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            self._raise_pending()  # before the error of a step that failed because of the same interrupt

    def shield_for_good(self) -> None:
        """Block interrupts for this process and its children from here on: for the clean-up at the end.

        A child is in our process group, and gets Ctrl-C, until it has made its own session.
        """
        self._shields += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending = number
        self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pending is not None and not self._shields:
            self.shield_for_good()  # a second Ctrl-C must not interrupt the clean-up of the first one
            raise InterruptedByUserError(self._pending)
