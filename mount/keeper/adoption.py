"""The daemon's side of its keeper's death: it gets itself another one, before it needs it."""

import logging
import os
import select
from collections.abc import Mapping
from typing import Final

import trio

from commitlogfs.mount.keeper.command_line import Options
from commitlogfs.mount.keeper.environment import take_told
from commitlogfs.mount.keeper.spawn import spawn
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 60.0
STEADY_S: Final = 10.0
"""A keeper that lived this long was not the one to blame for its death."""


class KeeperWatch:
    """This process's keeper, if it has one."""

    def __init__(self) -> None:
        self._pid = 0
        self._pidfd: int | None = None
        self._options: Options | None = None
        self._is_child = False
        told = take_told(os.getpid())
        if told is not None:
            self._pid, self._options = told
            self._pidfd = _open_parent(self._pid)

    @property
    def is_alone(self) -> bool:
        """Whether a keeper is missing just now: nobody would go on with the mount. Never where there was none."""
        if self._options is None:
            return False
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def run(self, descriptors: Mapping[str, int]) -> None:
        """See to it that a keeper lives; returns at once if there was none.

        To be started when the mount is READY: the new keeper takes that for granted. It is started as a child of
        this process, with copies of `descriptors` (name to number, as given to descriptor_store.store), and binds
        the socket that $NOTIFY_SOCKET names anew. Until then notifications fail.
        """
        if self._options is None:
            return
        pause_s = FIRST_PAUSE_S
        while True:
            started = trio.current_time()
            was_child = self._is_child
            await self._wait_for_end()
            log_event(log, logging.ERROR, "keeper_died", pid=self._pid, repeat_key=self._pid)
            if trio.current_time() - started >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            elif was_child:
                await trio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            while True:
                try:
                    self._pid = spawn(self._options.command_line(), {}, list(descriptors.items()))
                    break
                except OSError as error:
                    log_event(log, logging.ERROR, "keeper_not_started", reason=str(error))
                await trio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            self._pidfd, self._is_child = os.pidfd_open(self._pid), True
            log_event(log, logging.WARNING, "keeper_started", pid=self._pid, repeat_key=self._pid)

    async def _wait_for_end(self) -> None:
        if self._pidfd is None:
            return
        try:
            await trio.lowlevel.wait_readable(self._pidfd)
        finally:
            os.close(self._pidfd)
            self._pidfd = None
        if self._is_child:
            self._is_child = False
            os.waitpid(self._pid, 0)  # noqa: ASYNC222 - it has ended


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
