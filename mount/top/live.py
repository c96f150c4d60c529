"""The loop of `commitlogfs top` on a terminal. It waits for keys, signals, answers and the next frame, never for a
daemon or a disk."""

import contextlib
import errno
import os
import selectors
import signal
import sys
import time
from typing import Final

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.plain_text import is_plain_text
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.top.figures import Collector, Figures
from commitlogfs.mount.top.frame import View, compose
from commitlogfs.mount.top.screen import Screen
from commitlogfs.mount.top.signals import Signals
from commitlogfs.mount.top.table import SORTS

_PATIENCE_S: Final = 0.3
"""How long a frame waits for the daemon's answer. One that comes later is in the next frame."""
_FIRST_PATIENCE_S: Final = 0.15
_SECOND_FRAME_S: Final = 0.7
"""The first frame has no rates yet, so the second one comes soon."""
_REDRAW: Final = "\x0c"
"""Ctrl-L, after another program has written to the terminal."""
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Live:
    def __init__(self, collector: Collector, screen: Screen, signals: Signals, view: View) -> None:
        self._collector, self._screen, self._signals, self._view = collector, screen, signals, view
        self._figures: Figures | None = None
        self._rows = 1
        self._ends_with: int | None = None
        self._next_s = time.monotonic()
        """When the daemon is asked for the next frame."""
        self._draws_at_s: float | None = None
        """When a frame is drawn without the daemon's answer; None while none is due."""
        self._frames = 0

    def run(self) -> int:
        """Draw until the end; the exit status, negative for the signal that has ended it."""
        self._screen.enter()
        feed, directories = self._collector.feed, self._collector.directories
        with selectors.DefaultSelector() as selector:
            for source in (self._screen, self._signals, feed, directories):
                selector.register(source, selectors.EVENT_READ)
            while self._ends_with is None:
                self._advance(time.monotonic())
                for key, _ in selector.select(self._wait_s()):
                    self._handle(key.fileobj)
        return self._ends_with

    def _handle(self, source: object) -> None:
        if source is self._screen:
            keys = self._screen.read_keys()
            if keys is None:
                self._ends_with = -signal.SIGHUP
            for key in keys or ():
                self._press(key)
            self._redraw()
        elif source is self._signals:
            for number in sorted(self._signals.received()):
                self._receive(number)
        elif source is self._collector.feed:
            self._collector.feed.receive()
            if self._draws_at_s is not None:
                self._draws_at_s = time.monotonic()
            elif self._figures is None or self._figures.document is None or self._figures.trouble:
                self._update(measures=False)  # what was away is back
        else:
            self._collector.receive()
            if self._figures is not None and self._figures.trouble:
                self._update(measures=False)

    def _wait_s(self) -> float:
        due = self._next_s if self._draws_at_s is None else self._draws_at_s
        return max(0.0, due - time.monotonic()) if not self._view.is_paused else 3600.0

    def _advance(self, now_s: float) -> None:
        """Ask for, or draw, the frame that is due."""
        if self._view.is_paused:
            return
        if self._draws_at_s is None and now_s >= self._next_s:
            self._collector.request()
            self._draws_at_s = now_s + (_PATIENCE_S if self._frames else _FIRST_PATIENCE_S)
            is_second_due = self._frames == 0
            self._next_s = now_s + min(self._view.interval_s, _SECOND_FRAME_S if is_second_due else 3600)
        elif self._draws_at_s is not None and now_s >= self._draws_at_s:
            self._draws_at_s = None
            self._frames += 1
            self._update(measures=True)

    def _update(self, *, measures: bool) -> None:
        if not self._view.is_paused:
            self._figures = self._collector.collect(measures=measures)
            self._redraw()

    def _redraw(self) -> None:
        if self._figures is None:
            return
        self._view.width, self._view.height = self._screen.size()
        frame = compose(self._figures, self._view)
        self._rows = max(1, frame.disk_rows)
        self._screen.draw(frame.lines)

    def _press(self, key: str) -> None:
        view, last = self._view, 0 if self._figures is None else len(self._figures.disks) - 1
        if view.shows_help:
            view.shows_help = False
            return
        steps = {"up": -1, "down": 1, "page up": -self._rows, "page down": self._rows, "home": -last, "end": last}
        if key in steps:
            most = max(0, last + 1 - self._rows)
            view.first = max(0, min(most, view.first + steps[key]))
        elif key == "q":
            self._ends_with = int(ExitCode.OK)
        elif key == "p":
            view.is_paused = not view.is_paused
        elif key == "s":
            view.sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
        elif key == _REDRAW:
            self._screen.forget()
        elif key == "?":
            view.shows_help = True

    def _receive(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._screen.forget()
            self._redraw()
        elif number == signal.SIGTSTP:
            self._screen.leave()
            self._signals.stop()
            self._resume()
        elif number == signal.SIGCONT:
            self._resume()
        elif number == signal.SIGINT:
            self._ends_with = int(ExitCode.INTERRUPTED)
        elif number in _ENDS:
            self._ends_with = -number

    def _resume(self) -> None:
        self._screen.enter()
        self._redraw()


def run(target: Target, file: str, interval_s: float) -> int:
    """Draw the state of a mount until the user quits; the exit status. A signal that ends this ends the process.

    `file`: the NAME or FILE of its configuration.
    """
    encoding = sys.stdout.encoding or "ascii"
    screen = Screen(0, 1, styled=not is_plain_text(), encoding=encoding)
    try:
        with contextlib.closing(Collector(target, file)) as collector, contextlib.closing(Signals()) as signals:
            view = View(80, 24, interval_s, is_unicode=encoding.lower().startswith("utf"))
            status = Live(collector, screen, signals, view).run()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        status = -signal.SIGHUP  # the terminal is gone
    finally:
        screen.close()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def is_terminal() -> bool:
    """Whether frames can be drawn: on a terminal that knows more than lines."""
    return os.isatty(0) and os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"
