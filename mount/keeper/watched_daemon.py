"""The daemon that a keeper watches: its process, its deadline, its signs of life, and its end."""

import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass, field

from commitlogfs.mount.keeper.spawn import Process
from commitlogfs.mount.linux.process_activity import Activity, read_activity


@dataclass(frozen=True, slots=True)
class End:
    """The end of a daemon, or a start that failed (pid 0)."""

    status: int | None
    """As of os.waitstatus_to_exitcode; None if unknown."""
    pid: int = 0
    lived_s: float = 0.0
    has_served: bool = False

    @property
    def how(self) -> str:
        if self.status is None:
            return "unknown"
        if self.status >= 0:
            return f"exit {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:  # a real-time signal
            return f"signal {-self.status}"


@dataclass(slots=True)
class WatchedDaemon:
    process: Process
    is_child: bool
    """False for an adopted one: its exit status cannot be read."""
    has_served: bool = False
    """Whether it has answered a request, or was ready."""
    started: float = field(default_factory=time.monotonic)
    deadline: float = math.inf
    heard: float = field(init=False)
    """When it gave its last sign of life."""
    activity: Activity = field(init=False)
    """Work that it had done when it was last found alive."""

    def __post_init__(self) -> None:
        self.heard = self.started
        self.activity = read_activity(self.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pidfd(self) -> int:
        """Readable when the daemon has ended."""
        return self.process.pidfd

    def allow(self, seconds: float) -> None:
        """Set the deadline."""
        self.deadline = time.monotonic() + seconds

    def expect_watchdog(self, interval_s: float) -> None:
        """Record a sign of life; the next one is due within the interval (infinity: never)."""
        self.heard = time.monotonic()
        self.deadline = self.heard + interval_s
        if not math.isinf(interval_s):
            self.activity = read_activity(self.pid)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def collect(self) -> End:
        """After its end; closes the pidfd."""
        lived_s = time.monotonic() - self.started
        os.close(self.pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) if self.is_child else None
        return End(status, self.pid, lived_s, self.has_served)
