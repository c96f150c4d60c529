"""A daemon that is to step back has its keeper load the successor first: the mount waits for a shorter time, and
not at all for a version that cannot even be loaded."""

import contextlib
import os
import select

from commitlogfs.mount.linux import notify

SERVING = "X_COMMITLOGFS_SERVING"
"""Of a notification: a daemon that has taken a mount over is about to answer its first request."""
PREPARE = "X_COMMITLOGFS_PREPARE"
"""Of a notification that brings a descriptor for one of the answers:"""
LOADED, FAILED = b"1", b"0"

TIMEOUT_S = 3.0
"""One that takes longer is started as ever, when this process has ended."""


def tell_serving() -> None:
    """To the keeper; a service manager does not know the word."""
    with contextlib.suppress(OSError):
        notify.notify(f"{SERVING}=1")


def prepare() -> bool | None:
    """Whether a successor of what is installed now stands by. None if nobody has it so: under systemd, or where no
    daemon is to stand by. Blocks for TIMEOUT_S at most."""
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
        word = os.read(reader, 1) if poll.poll(TIMEOUT_S * 1000) else b""
    finally:
        os.close(reader)
    return None if not word else word == LOADED
