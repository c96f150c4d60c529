"""Ctrl-C in a command: silent, with exit status 130, from its first import to its end.

Loading a command takes a fraction of a second. Python raises KeyboardInterrupt wherever it is, also in an import,
and prints the traceback. So a console script loads its command through `run`. A process that starts another Python
process blocks SIGINT for it (`block`), and the new process unblocks it as early as it can (`unblock`).
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""

_AGAIN_S: Final = 0.05

Main = Callable[[], int]


def run(load: Callable[[], Main]) -> int:
    """Load a command and run it; its exit status.

    During the import and after the command, an interrupt ends the process at once: there is nothing to undo. In
    between it raises KeyboardInterrupt.
    """
    sys.unraisablehook = _repeat_lost
    atexit.register(ignore)  # the last call of all: afterwards Python would let the signal kill the process
    try:
        _on_interrupt(_leave)
        gc.disable()  # nothing of what is loaded becomes garbage, and looking for it takes a sixth of the time
        main = load()
        gc.freeze()
        gc.enable()
        _on_interrupt(signal.default_int_handler)
        status = main()
        _on_interrupt(_leave)
    except KeyboardInterrupt:
        _on_interrupt(_leave)
        status = INTERRUPTED
    with contextlib.suppress(OSError):  # standard output is closed; the interpreter reports that
        sys.stdout.flush()
    return status


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delays an interrupt inside to the end: for a step that must be completed."""
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
    """For a process that has finished its work and is exiting: it must not report an interruption."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def block() -> None:
    """For a process that is about to exec another program: an interrupt waits for that program's `unblock`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))


def unblock() -> None:
    """Accept interrupts from here on, including one that arrived while they were blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))


def _repeat_lost(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python cannot raise an exception while it frees an object, and would print and forget an interrupt. py4j's
    objects take long enough to be hit: each tells the JVM. So the interrupt comes again when that is over."""
    if unraisable.exc_type is KeyboardInterrupt:
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _on_interrupt(handler: object) -> None:
    """Set the handler, unless this process was started with SIGINT ignored (nohup, a background job)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
