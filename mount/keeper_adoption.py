"""The daemon's side of its keeper's death: it gets itself another one, before it needs it."""

import logging
import os
from collections.abc import Mapping
from typing import Final

import trio

from commitlogfs.mount.keeper_environment import take_told
from commitlogfs.mount.keeper_spawn import spawn
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 60.0
STEADY_S: Final = 10.0
"""A keeper that lived this long was not the one to blame for its death."""


async def watch_keeper(descriptors: Mapping[str, int]) -> None:
    """While this process has a keeper, see to it that it has one that lives; returns at once if it has none.

    To be started when the mount is READY: the new keeper takes that for granted. It is started as a child of this
    process, with copies of `descriptors` (name to number, as given to descriptor_store.store), and binds the socket
    that $NOTIFY_SOCKET names anew. Until then notifications fail.
    """
    told = take_told(os.getpid())
    if told is None:
        return
    pid, options = told
    pidfd = _open_parent(pid)
    pause_s = FIRST_PAUSE_S
    is_child = False
    while True:
        started = trio.current_time()
        if pidfd is not None:
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
            if is_child:
                os.waitpid(pid, 0)  # noqa: ASYNC222 - it has ended
        log_event(log, logging.ERROR, "keeper_died", pid=pid, repeat_key=pid)
        if trio.current_time() - started >= STEADY_S:
            pause_s = FIRST_PAUSE_S
        elif is_child:
            await trio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        try:
            pid = spawn(options.command_line(), {}, list(descriptors.items()))
        except OSError as error:
            log_event(log, logging.ERROR, "keeper_not_started", reason=str(error))
            pidfd, is_child = None, False
            await trio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            continue
        pidfd, is_child = os.pidfd_open(pid), True
        log_event(log, logging.WARNING, "keeper_started", pid=pid, repeat_key=pid)


def _open_parent(pid: int) -> int | None:
    """A pidfd of our parent; None if that is not, or no longer, the keeper."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if os.getppid() == pid:
        return pidfd
    os.close(pidfd)
    return None
