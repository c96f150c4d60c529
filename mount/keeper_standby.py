"""The keeper's daemon in reserve: started while the present one serves, called when that has ended."""

import logging
import math
import os
import select
import signal
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from socket import socket

from commitlogfs.mount import keeper_call
from commitlogfs.mount.keeper_call import STANDBY_OPTION, Call
from commitlogfs.mount.keeper_spawn import spawn
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""After READY: whatever waited for the present daemon goes first."""


@dataclass(frozen=True, slots=True)
class Process:
    """A child of this process. The pidfd is whose the process is."""

    pid: int
    pidfd: int


class Reserve:
    """At most one daemon that stands by. One that ends by itself is not replaced before `want` is called again."""

    def __init__(self, command: Sequence[str], poll: select.poll) -> None:
        """`poll` becomes readable when `take_ends` has something to do."""
        self._command = command
        self._poll = poll
        self._standby: tuple[Process, socket] | None = None
        self._dismissed: dict[int, int] = {}
        """Their pids by pidfd, until they have ended."""
        self.due = math.inf
        """When `start` is to be called, as of time.monotonic()."""

    def want(self) -> None:
        """Have one soon, unless there is one."""
        if self._standby is None:
            self.due = time.monotonic() + PAUSE_S

    def start(self) -> None:
        """One that cannot be started is done without."""
        self.due = math.inf
        try:
            channel, theirs = keeper_call.channel()
            with theirs:
                command = [*self._command, STANDBY_OPTION, str(theirs.fileno())]
                pid = spawn(command, {}, [], inherited=theirs.fileno())
        except OSError as error:
            log_event(log, logging.WARNING, "standby_not_started", repeat_key=time.monotonic(), reason=str(error))
            return
        process = Process(pid, os.pidfd_open(pid))
        self._standby = process, channel
        self._poll.register(process.pidfd, select.POLLIN)
        log_event(log, logging.DEBUG, "standby_started", repeat_key=pid, pid=pid)

    def call(self, call: Call) -> Process | None:
        """Make the standby the daemon; None if there is none that hears it. It is the caller's then, and its
        pidfd is not polled any more."""
        self.due = math.inf
        if self._standby is None:
            return None
        process, channel = self._standby
        try:
            keeper_call.send(channel, call)
        except OSError as error:
            log_event(log, logging.WARNING, "standby_not_called", repeat_key=process.pid, reason=str(error))
            self.dismiss()
            return None
        channel.close()
        self._poll.unregister(process.pidfd)
        self._standby = None
        return process

    def dismiss(self) -> None:
        """Do without one: it is of another version than the next daemon is to be, or the mount has ended."""
        self.due = math.inf
        if self._standby is None:
            return
        process, channel = self._standby
        self._standby = None
        self._dismissed[process.pidfd] = process.pid
        channel.close()
        signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)

    def take_ends(self, readable: Container[int]) -> None:
        """Wait for those that have ended, given what `poll` has found."""
        if self._standby is not None and self._standby[0].pidfd in readable:
            process, channel = self._standby
            self._standby = None
            channel.close()
            self._dismissed[process.pidfd] = process.pid
            log_event(log, logging.WARNING, "standby_died", repeat_key=process.pid, pid=process.pid)
        for pidfd in [pidfd for pidfd in self._dismissed if pidfd in readable]:
            self._poll.unregister(pidfd)
            os.waitpid(self._dismissed.pop(pidfd), 0)
            os.close(pidfd)
