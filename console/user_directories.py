"""Directories of the user by the XDG Base Directory Specification, also for processes with a sparse environment
(cron, setpriv, a container)."""

import os
import pwd
from pathlib import Path


def home_directory() -> Path | None:
    """$HOME if it is an absolute path, else the home in the user database; None if neither is known.

    It may belong to another user (`setpriv` keeps $HOME), not exist, or be a file.
    """
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return None
    return Path(home) if home.startswith("/") else None


def user_directory(variable: str, default: str) -> Path | None:
    """The directory that `variable` names, else `default` in the user's home. A relative value is ignored, as the
    specification requires."""
    named = os.environ.get(variable, "")
    if named.startswith("/"):
        return Path(named)
    home = home_directory()
    return None if home is None else home / default
