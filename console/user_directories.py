"""The folders of this user, by the XDG Base Directory Specification and for processes that have little environment
(cron, setpriv, a container)."""

import os
import pwd
from pathlib import Path


def home_folder() -> Path | None:
    """$HOME if it is an absolute path, else the one of the user database; None where neither is known.

    It may belong to another user (`setpriv` keeps $HOME), be absent, or be a file.
    """
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return None
    return Path(home) if home.startswith("/") else None


def user_folder(variable: str, default: str) -> Path | None:
    """The folder that `variable` names, else `default` in the user's home. A relative value is invalid and ignored,
    as the specification has it."""
    named = os.environ.get(variable, "")
    if named.startswith("/"):
        return Path(named)
    home = home_folder()
    return None if home is None else home / default
