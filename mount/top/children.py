"""Processes that were forked from one that draws on a terminal."""

import contextlib
import os
import signal

_LIMIT = 1 << 20


def keep_only(*descriptors: int) -> None:
    """Close all others: one that is inherited would keep a pipe open, or the terminal."""
    lowest = 0
    for descriptor in sorted(descriptors):
        if lowest < descriptor:
            os.closerange(lowest, descriptor)
        lowest = descriptor + 1
    os.closerange(lowest, _LIMIT)


def end_child(pid: int) -> None:
    """End a child that has nothing more to do, even if somebody has stopped it."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
