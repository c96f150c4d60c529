"""Messages of a daemon to its keeper: about its successor, and as a successor.

For `restart` the keeper loads the successor first: the mount waits for a shorter time, and not at all for a version
that cannot be loaded.
"""

import contextlib
import os
import select

from commitlogfs.mount.keeper.standby_call import LOADED, PREPARE, SERVING
from commitlogfs.mount.linux import notify


def report_serving() -> None:
    """To the keeper; a service manager ignores the field."""
    with contextlib.suppress(OSError):
        notify.notify(f"{SERVING}=1")


def prepare(timeout_s: float) -> bool | None:
    """Whether a successor of the installed program stands by. None if it cannot be had: under systemd, or where the
    keeper loads no standby. Blocks for at most `timeout_s`."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            notify.notify(f"{PREPARE}=1", [writer])
        except OSError:
            return None
        finally:
            os.close(writer)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        answer = os.read(reader, 1) if poll.poll(timeout_s * 1000) else b""
    finally:
        os.close(reader)
    return None if not answer else answer == LOADED
