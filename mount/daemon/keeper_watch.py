"""The daemon's watch over its keeper: when the keeper dies, the daemon starts another one before it needs it."""

import logging
import os
import select
from collections.abc import Mapping

import trio

from commitlogfs.mount.keeper.options import Options, take_keeper
from commitlogfs.mount.keeper.spawn import spawn
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import DaemonTiming

log = logging.getLogger(__name__)


class KeeperWatch:
    """This process's keeper, if it has one."""

    def __init__(self, timing: DaemonTiming) -> None:
        self._timing = timing
        self._pid = 0
        self._pidfd: int | None = None
        self._options: Options | None = None
        self._is_child = False
        taken = take_keeper()
        if taken is not None:
            self._pid, self._options = taken
            self._pidfd = _open_parent(self._pid)

    @property
    def is_missing(self) -> bool:
        """Whether this process had a keeper and has none at this moment: the mount would end with the daemon."""
        if self._options is None:
            return False
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def run(self, descriptors: Mapping[str, int]) -> None:
        """Start another keeper whenever the present one dies; returns at once if there never was one.

        Only when the mount is ready: a new keeper relies on it. It is started as a child of this process, with
        copies of `descriptors` (name to number, as given to descriptor_store.store), and binds the socket that
        $NOTIFY_SOCKET names again. Until then notifications fail.
        """
        if self._options is None:
            return
        timing = self._timing
        pause_s = timing.keeper_first_s
        while True:
            started = trio.current_time()
            was_child = self._is_child
            await self._wait_for_end()
            log_event(log, logging.ERROR, "keeper_died", pid=self._pid, repeat_key=self._pid)
            if trio.current_time() - started >= timing.keeper_steady_s:
                pause_s = timing.keeper_first_s
            elif was_child:
                await trio.sleep(pause_s)
                pause_s = min(timing.keeper_longest_s, 2 * pause_s)
            while True:
                try:
                    self._pid = spawn(self._options.command_line(), {}, list(descriptors.items()))
                    break
                except OSError as error:
                    log_event(log, logging.ERROR, "keeper_not_started", reason=str(error))
                await trio.sleep(pause_s)
                pause_s = min(timing.keeper_longest_s, 2 * pause_s)
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
    """A pidfd of this process's parent; None if that is not the keeper, or is not any more."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if os.getppid() == pid:
        return pidfd
    os.close(pidfd)
    return None
