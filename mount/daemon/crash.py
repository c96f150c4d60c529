"""The crash of a daemon, or its end by the watchdog: it leaves the stacks of its threads, and no core dump."""

import contextlib
import faulthandler
import os
import sys

from commitlogfs.store import _syscalls


def leave_stacks_and_no_core() -> None:
    """From now on, a signal that would dump core writes the Python stacks of all threads to standard error, and the
    process ends at once.

    Before a core dump, the kernel waits until each other thread has left its system call, and the first thread of
    the process does not show meanwhile that it is dead. Beside a disk that hangs, a successor would take it for a
    living daemon. The kernel reads the size limit and the pattern of the dump only after that wait.
    """
    if sys.stderr is not None:
        faulthandler.enable()
    # A mount without root has no successor, and its user could not read its /proc/PID/fd any more.
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            _syscalls.set_dumpable(False)
