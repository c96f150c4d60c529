"""Ctrl-C in a command: silent, and exit status 130, from its first import to its end.

Loading a command takes a part of a second. Python turns a SIGINT into a KeyboardInterrupt wherever it is, also in
an import, and prints the traceback. So a console script loads its command through `run`; what starts another Python
process blocks SIGINT for it (`block`), and that process takes it as soon as it can (`unblock`).
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
"""128 + SIGINT, as a shell reports it."""

Main = Callable[[], int]


def run(load: Callable[[], Main]) -> int:
    """Load a command and run it; its exit status.

    While it loads there is nothing to be undone, and an interrupt ends the process at once. So it does after the
    command, while the interpreter ends. In between it is a KeyboardInterrupt.
    """
    try:
        _on_interrupt(_leave)
        main = load()
        _on_interrupt(signal.default_int_handler)
        status = main()
        _on_interrupt(_leave)
    except KeyboardInterrupt:
        _on_interrupt(_leave)
        status = INTERRUPTED
    with contextlib.suppress(OSError):  # nobody reads it any more: for the interpreter to say
        sys.stdout.flush()
    return status


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """An interrupt inside becomes a KeyboardInterrupt at the end: for a step that must not be cut in half."""
    came: list[int] = []
    former = signal.getsignal(signal.SIGINT)
    _on_interrupt(lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        _on_interrupt(former)
    if came:
        raise KeyboardInterrupt


def ignore() -> None:
    """Of a process that has done what it was started for, and only ends now: not to report an interruption."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def block() -> None:
    """Of a process that is about to become another one (exec): an interrupt waits for its `unblock`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))


def unblock() -> None:
    """Take interrupts from now on, one that has waited included."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))


def _on_interrupt(handler: object) -> None:
    """Unless this process was started to ignore it (nohup, a background job)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
