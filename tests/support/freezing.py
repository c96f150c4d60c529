"""A disk that hangs: writes to a frozen filesystem wait in the kernel until it is thawed."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.loop_disks import LoopDisk

FROZEN_AT_MOST_S = 20


@contextmanager
def frozen(disk: LoopDisk, at_most_s: float = FROZEN_AT_MOST_S) -> Iterator[Callable[[], None]]:
    """Freeze a disk; the value thaws it early. Never leaves it frozen: a watchman of its own process thaws it
    even when this process hangs in it, beyond the reach of any signal."""
    thaw_command = ["fsfreeze", "-u", str(disk.path)]
    watchman = subprocess.Popen(
        ["sh", "-c", f'sleep {at_most_s}; exec "$@"', "watchman", *thaw_command], start_new_session=True
    )
    try:
        subprocess.run(["fsfreeze", "-f", str(disk.path)], check=True)
        is_frozen = True

        def thaw() -> None:
            nonlocal is_frozen
            if is_frozen:
                is_frozen = False
                subprocess.run(thaw_command, check=True)

        try:
            yield thaw
        finally:
            thaw()
    finally:
        os.killpg(watchman.pid, signal.SIGKILL)  # its sleep too
        watchman.wait()
