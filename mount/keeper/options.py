"""Options of a keeper: on its command line, and in the environment of its daemons.

`commitlogfs mount` and a daemon whose keeper has died start a keeper by its command line. From the environment, a
daemon learns how to start another keeper when its own dies.
"""

import argparse
import json
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

MODULE = "commitlogfs.mount.keeper"
DEFAULT_WATCHDOG_S = 3.0
"""A broker gives up a create after 5 s. With this interval, a hung daemon is replaced within 4 s."""

VARIABLE = "COMMITLOGFS_KEEPER"
"""Environment variable: {"pid": of the keeper, ...} as JSON."""


@dataclass(frozen=True, slots=True)
class Options:
    name: str
    mountpoint: str
    """Absolute and without symlinks, as mountinfo shows it."""
    command: tuple[str, ...]
    """Starts a daemon."""
    watchdog_s: float = DEFAULT_WATCHDOG_S
    """A daemon that is silent for longer is replaced; 0: never."""
    log_level: int = logging.INFO
    report_fd: int | None = None
    """Inherited by the first daemon, which writes there whether it is ready (mount.daemon.daemonize)."""
    adopt: int | None = None
    """Pid of a running daemon; this process is started with copies of its mount's descriptors."""
    standby: bool = False
    """Whether a standby is loaded: `command` knows --standby-fd."""

    def command_line(self) -> list[str]:
        """Starts such a keeper. -P keeps the working directory off its module path."""
        line = [sys.executable, "-P", "-m", MODULE, "--name", self.name, "--mountpoint", self.mountpoint]
        line += ["--watchdog", f"{self.watchdog_s:g}", "--log-level", str(self.log_level)]
        line += ["--report-fd", str(self.report_fd)] if self.report_fd is not None else []
        line += ["--adopt", str(self.adopt)] if self.adopt is not None else []
        line += ["--standby"] if self.standby else []
        return [*line, "--", *self.command]

    def daemon_variables(self, inbox: Path) -> dict[str, str]:
        """Environment variables for a daemon that this process starts; `inbox` is the path of its socket."""
        sent = {
            "pid": os.getpid(),
            "name": self.name,
            "mountpoint": self.mountpoint,
            "command": self.command,
            "watchdog_s": self.watchdog_s,
            "log_level": self.log_level,
            "standby": self.standby,
        }
        variables = {"NOTIFY_SOCKET": os.fspath(inbox), VARIABLE: json.dumps(sent)}
        if self.watchdog_s:
            variables["WATCHDOG_USEC"] = str(round(self.watchdog_s * 1_000_000))
        return variables


def parse(arguments: list[str]) -> Options:
    """The inverse of `command_line`. Raises SystemExit (status 2) on anything else."""
    parser = argparse.ArgumentParser(prog=MODULE, allow_abbrev=False)
    parser.add_argument("--name", required=True)
    parser.add_argument("--mountpoint", required=True)
    parser.add_argument("--watchdog", type=float, default=DEFAULT_WATCHDOG_S)
    parser.add_argument("--log-level", type=int, default=logging.INFO)
    parser.add_argument("--report-fd", type=int)
    parser.add_argument("--adopt", type=int)
    parser.add_argument("--standby", action="store_true")
    border = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:border], arguments[border + 1 :]
    given = parser.parse_args(own)
    if not command:
        parser.error("no command after --")
    return Options(
        given.name,
        given.mountpoint,
        tuple(command),
        given.watchdog,
        given.log_level,
        given.report_fd,
        given.adopt,
        given.standby,
    )


def has_keeper() -> bool:
    """Whether a keeper has started this process. Only before `take_keeper`."""
    return VARIABLE in os.environ


def take_keeper() -> tuple[int, Options] | None:
    """Pid of the keeper that started this process, and the options of a keeper that would adopt this process. None
    without a keeper. Removes the variable, so that no child of this process mistakes the keeper for its own."""
    text = os.environ.pop(VARIABLE, "")
    if not text:
        return None
    sent = json.loads(text)
    options = Options(
        sent["name"],
        sent["mountpoint"],
        tuple(sent["command"]),
        sent["watchdog_s"],
        sent["log_level"],
        adopt=os.getpid(),
        standby=sent.get("standby", False),  # a keeper of an older version does not send it
    )
    return sent["pid"], options
