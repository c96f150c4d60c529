"""A mount that outlives its daemons: the real keeper, stopped and continued, so that a test decides when daemons
start.

The test's own process never starts a daemon: it has files of the mount open, and a fork closes them, which asks a
daemon that may be dead.
"""

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from support.pools import PoolMount
from support.processes import has_ended
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.mount.keeper.options import Options


@dataclass
class KeptMount:
    """One pool under its keeper (`pool.daemon` is the keeper's process)."""

    pool: PoolMount
    daemon: int = 0
    """Process id of the present daemon."""

    def start(self) -> None:
        """The keeper is started as `mount --watchdog 0` starts it, without the time that loading `mount` takes."""
        pool = self.pool
        pool.write_config()
        daemon = (str(Path(sys.executable).with_name("commitlogfs-daemon")), str(pool.config), "-v")
        keeper = Options(pool.name, os.path.realpath(pool.mountpoint), daemon, 0.0, logging.DEBUG, standby=True)
        pool.launch(keeper.command_line())
        # Before the keeper knows, the death of a daemon is a failed start, and it gives up.
        eventually(lambda: "event=daemon_ready " in self.pool.log_since_start(), shown=self.pool.log_path.read_text)
        self.daemon = self._daemon_pid()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the daemon; none comes before `go_on`."""
        assert self.pool.daemon is not None
        os.kill(self.pool.daemon.pid, signal.SIGSTOP)
        os.kill(self.daemon, number)
        eventually(lambda: has_ended(self.daemon))

    def go_on(self) -> None:
        """Let the keeper start the next daemon; returns when that is ready."""
        assert self.pool.daemon is not None
        seen = self._ready_count()
        os.kill(self.pool.daemon.pid, signal.SIGCONT)
        eventually(lambda: self._ready_count() > seen, shown=self.pool.log_path.read_text)
        self.daemon = self._daemon_pid()

    def end(self) -> None:
        """Unmount; the keeper ends with it."""
        assert self.pool.cli("umount", self.pool.mountpoint).status == 0
        assert self.pool.daemon is not None
        self.pool.daemon.wait(PATIENCE_S)
        self.pool.daemon = None

    def replace(self) -> None:
        """Kill the daemon; returns when the next one is ready."""
        self.kill()
        self.go_on()

    def change(self, how: str) -> None:
        """Another daemon serves afterwards: by "kill", or by "restart"."""
        if how == "kill":
            self.replace()
            return
        ran = self.pool.cli("restart", self.pool.name)
        assert ran.status == 0, ran.err
        self.await_successor()  # which answers a moment before it says that it is ready
        self.newest_daemon()

    def newest_daemon(self) -> int:
        """Process id of the daemon that got ready last."""
        self.daemon = self._daemon_pid()
        return self.daemon

    def await_handover(self) -> int:
        """Process id of the daemon that serves, once no former one does."""
        eventually(lambda: self.newest_daemon() == self._answering())
        return self.daemon

    def await_successor(self) -> None:
        """Wait until another daemon than the one last asked for is ready; the keeper is running."""
        eventually(lambda: self._daemon_pid() != self.daemon)

    def _answering(self) -> int:
        try:
            return int(self.pool.ask("status")["daemon"]["pid"])
        except UnreachableError:  # none at the moment
            return 0

    def _ready_count(self) -> int:
        return self.pool.log_since_start().count("event=ready ")

    def _daemon_pid(self) -> int:
        lines = [line for line in self.pool.log_since_start().splitlines() if "event=ready " in line]
        return int(lines[-1].rpartition("pid=")[2].split()[0])


def newest_keeper(pool: PoolMount, former: int) -> int:
    """Process id of the keeper started last; 0 if that is still `former`."""
    lines = [line for line in pool.log_since_start().splitlines() if "event=keeper_started" in line]
    pid = int(lines[-1].rpartition("pid=")[2].split()[0]) if lines else former
    return pid if pid != former else 0
