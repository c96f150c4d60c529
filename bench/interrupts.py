"""Ctrl-C and SIGTERM, taken only where nothing is half made."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedByUserError(BaseException):
    """Like KeyboardInterrupt no Exception, so that nobody on the way takes it for a failed step."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into InterruptedByUserError, at once or at the end of a shielded block."""

    def __init__(self) -> None:
        self._shields = 0
        self._wanted: int | None = None

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._note)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """For steps that must not be cut in half: make something and note how to undo it."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            self._raise_if_wanted()  # before the error of a step that the same interrupt has ended

    def shield_for_good(self) -> None:
        """From now on nothing interrupts, nor what is started: for the clearing up at the end.

        A process is in our group, and hears Ctrl-C, until it has made a session of its own.
        """
        self._shields += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._wanted = number
        self._raise_if_wanted()

    def _raise_if_wanted(self) -> None:
        if self._wanted is not None and not self._shields:
            self.shield_for_good()  # a second Ctrl-C must not cut short what the first one has started
            raise InterruptedByUserError(self._wanted)
