"""What a keeper tells its daemons through their environment, beside the service manager's protocol."""

import json
import os
from pathlib import Path

from commitlogfs.mount.keeper.command_line import Options

VARIABLE = "COMMITLOGFS_KEEPER"
"""{"pid": of the keeper, ...}: how a daemon gets itself another one when it dies."""


def for_daemon(options: Options, inbox: Path) -> dict[str, str]:
    """The variables of a daemon that is started by this process."""
    told = {
        "pid": os.getpid(),
        "name": options.name,
        "mountpoint": options.mountpoint,
        "command": options.command,
        "watchdog_s": options.watchdog_s,
        "log_level": options.log_level,
        "standby": options.standby,
    }
    variables = {"NOTIFY_SOCKET": os.fspath(inbox), VARIABLE: json.dumps(told)}
    if options.watchdog_s:
        variables["WATCHDOG_USEC"] = str(round(options.watchdog_s * 1_000_000))
    return variables


def is_told() -> bool:
    """Whether a keeper has started this process, which has not asked what it was told yet."""
    return VARIABLE in os.environ


def take_told(adopt: int) -> tuple[int, Options] | None:
    """The pid of this process's keeper, and what a keeper that adopts process `adopt` has to be told. None if this
    process has none. Once: the variable is removed, so that no child takes the keeper for its own."""
    text = os.environ.pop(VARIABLE, "")
    if not text:
        return None
    told = json.loads(text)
    options = Options(
        told["name"],
        told["mountpoint"],
        tuple(told["command"]),
        told["watchdog_s"],
        told["log_level"],
        adopt=adopt,
        standby=told.get("standby", False),  # a keeper of an older version does not say
    )
    return told["pid"], options
