"""The keeper's standby: the next daemon, loaded while the present one serves, called when that has ended."""

import contextlib
import logging
import math
import os
import select
import signal
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from socket import socket

from commitlogfs.mount.keeper import standby_call
from commitlogfs.mount.keeper.spawn import Process, spawn_watched
from commitlogfs.mount.keeper.standby_call import FAILED, LOADED, STANDBY_OPTION, Call
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import KeeperTiming

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Loaded:
    process: Process
    channel: socket
    is_loading: bool = True
    """Whether its channel is polled for the message that it has loaded everything."""
    asked_by: int | None = None
    """Descriptor that gets the answer whether it has."""


class Standby:
    """At most one daemon that stands by."""

    def __init__(self, command: Sequence[str], poll: select.poll, timing: KeeperTiming) -> None:
        """`poll` becomes readable when `take_events` has something to do."""
        self._command = command
        self._poll = poll
        self._timing = timing
        self._standby: _Loaded | None = None
        self._ending: dict[int, int] = {}
        """Pids of dismissed ones by pidfd, until they have ended."""
        self.due = math.inf
        """When `start` is to be called, as of time.monotonic()."""
        self.is_reloaded = False
        """Whether the present one was started by `reload`."""

    def want(self) -> None:
        """Set the time to start one, unless there is one."""
        if self._standby is None:
            self.due = time.monotonic() + self._timing.standby_s

    def start(self) -> None:
        """Start one. If that fails, the keeper works without."""
        self.due = math.inf
        try:
            channel, theirs = standby_call.channel()
            with theirs, contextlib.ExitStack() as stack:
                stack.enter_context(channel)
                command = [*self._command, STANDBY_OPTION, str(theirs.fileno())]
                process = spawn_watched(command, {}, [], inherited=theirs.fileno())
                stack.pop_all()
        except OSError as error:
            log_event(log, logging.WARNING, "standby_not_started", repeat_key=time.monotonic(), reason=str(error))
            return
        self._standby = _Loaded(process, channel)
        self._poll.register(process.pidfd, select.POLLIN)
        self._poll.register(channel, select.POLLIN)
        log_event(log, logging.DEBUG, "standby_started", repeat_key=process.pid, pid=process.pid)

    def reload(self, asked_by: int | None) -> None:
        """Replace it by one of the program that is installed now. `asked_by`, a descriptor, gets the result."""
        self.dismiss()
        self.start()
        self.is_reloaded = self._standby is not None
        if self._standby is not None:
            self._standby.asked_by = asked_by
        else:
            _answer(asked_by, FAILED)

    def call(self, call: Call) -> Process | None:
        """Make the standby the daemon. Its process belongs to the caller then, and its pidfd is not polled any
        more. None without a standby that can be called."""
        self.due = math.inf
        standby = self._take()
        if standby is None:
            return None
        try:
            standby_call.send(standby.channel, call)
        except OSError as error:
            pid = standby.process.pid
            log_event(log, logging.WARNING, "standby_not_called", repeat_key=pid, pid=pid, reason=str(error))
            self._end(standby.process)
            return None
        finally:
            standby.channel.close()
        self._poll.unregister(standby.process.pidfd)
        return standby.process

    def send(self, number: signal.Signals) -> None:
        """To the standby, if there is one."""
        if self._standby is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._standby.process.pidfd, number)

    def dismiss(self) -> None:
        """End it: the next daemon will be another version, or none will follow."""
        self.due = math.inf
        standby = self._take()
        if standby is not None:
            standby.channel.close()
            self._end(standby.process)

    def take_events(self, readable: Container[int]) -> None:
        """`readable`: what `poll` has found. Read the standby's message, and collect those that have ended."""
        standby = self._standby
        if standby is not None and standby.process.pidfd in readable:
            pid = standby.process.pid
            log_event(log, logging.WARNING, "standby_died", repeat_key=pid, pid=pid)
            self.dismiss()
            self.due = time.monotonic() + self._timing.standby_again_s
        elif standby is not None and standby.channel.fileno() in readable:
            self._poll.unregister(standby.channel)
            standby.is_loading = False
            if standby_call.has_loaded(standby.channel):  # otherwise it ends, and its pidfd becomes readable
                asked_by, standby.asked_by = standby.asked_by, None
                _answer(asked_by, LOADED)
        for pidfd in [pidfd for pidfd in self._ending if pidfd in readable]:
            self._poll.unregister(pidfd)
            os.waitpid(self._ending.pop(pidfd), 0)
            os.close(pidfd)

    def _take(self) -> _Loaded | None:
        standby, self._standby, self.is_reloaded = self._standby, None, False
        if standby is not None:
            if standby.is_loading:
                self._poll.unregister(standby.channel)
            _answer(standby.asked_by, FAILED)
        return standby

    def _end(self, process: Process) -> None:
        self._ending[process.pidfd] = process.pid
        signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)


def _answer(asked_by: int | None, result: bytes) -> None:
    if asked_by is not None:
        with contextlib.suppress(OSError):  # the daemon that asked has ended
            os.write(asked_by, result)
        os.close(asked_by)
