"""What a keeper is told, on its command line: by `commitlogfs mount`, or by a daemon whose keeper has died."""

import argparse
import logging
import sys
from dataclasses import dataclass

MODULE = "commitlogfs.mount.keeper"
DEFAULT_WATCHDOG_S = 3.0
"""A broker gives up a create after 5 s; noticed, ended and replaced is a hung daemon within 4 s."""


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
    """Inherited by the first daemon, which writes its first word there (mount.daemon.daemonize)."""
    adopt: int | None = None
    """The pid of a daemon that runs already, and whose mount's descriptors this process is started with."""
    standby: bool = False
    """Have a daemon stand by for the present one's end: `command` knows --standby-fd."""

    def command_line(self) -> list[str]:
        """Starts such a keeper. Nothing of the current folder gets onto its module path (-P)."""
        line = [sys.executable, "-P", "-m", MODULE, "--name", self.name, "--mountpoint", self.mountpoint]
        line += ["--watchdog", f"{self.watchdog_s:g}", "--log-level", str(self.log_level)]
        line += ["--report-fd", str(self.report_fd)] if self.report_fd is not None else []
        line += ["--adopt", str(self.adopt)] if self.adopt is not None else []
        line += ["--standby"] if self.standby else []
        return [*line, "--", *self.command]


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
