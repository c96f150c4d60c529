"""Unmounting. A mount that is in use stays, and the processes that use it are named. Nothing is unmounted
lazily.

A container may have a copy of the mount in its own mount namespace. The kernel would unmount ours although
processes there have files open, and the daemon would continue to serve them.
"""

import os
import shutil
import subprocess
import time

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.holders import Holder, describe_holders, find_holders, find_holders_elsewhere

_TIMEOUT_S = 30.0
_PASSING_S = 1.0
"""How long a request that is being answered may keep the mount busy."""
_PAUSE_S = 0.02


def unmount(mountpoint: str) -> None:
    """Unmount once. Raises RefusedError if it is busy, here or in another mount namespace (naming the holders), or
    the system refuses.

    Runs umount(8) as a child: the system call waits for the daemon, which may be the caller.
    """
    _require_unused_elsewhere(mountpoint)
    command = _command(mountpoint)
    deadline = time.monotonic() + _PASSING_S
    while True:
        done = _run(command, mountpoint)
        if done.returncode == 0 or mountinfo.find_mount(mountpoint) is None:
            return
        if "busy" not in done.stderr:
            break
        holders = find_holders(mountpoint)
        # Without holders, only a short call such as a stat or the daemon's own probe keeps the mount busy.
        if holders or time.monotonic() > deadline:
            if holders:
                reason = _in_use_by(holders)
            else:
                reason = (
                    "busy, but no process was found that uses it; run as root to see all processes, or try again"
                )
            raise RefusedError(f"{mountpoint}: {reason}")
        time.sleep(_PAUSE_S)
    raise RefusedError(f"{mountpoint}: {done.stderr.strip() or f'umount failed ({done.returncode})'}")


def _require_unused_elsewhere(mountpoint: str) -> None:
    """Raises RefusedError if processes in other mount namespaces hold the mount."""
    holders = find_holders_elsewhere(mountpoint)
    if holders:
        raise RefusedError(f"{mountpoint}: {_in_use_by(holders)}")


def _in_use_by(holders: list[Holder]) -> str:
    return f"in use by {describe_holders(holders)}; stop these processes first"


def not_visible(mountpoint: str) -> RefusedError:
    """The error for a mount of ours that is not the topmost one at its mountpoint."""
    return RefusedError(
        f"{mountpoint}: the mount is not visible there; unmount what lies on top of it first (`findmnt`), or, "
        "after `umount -l`, end the processes that use it"
    )


def _run(command: list[str], mountpoint: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},  # `unmount` searches its messages
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(
            f"{mountpoint}: umount has not returned within {_TIMEOUT_S:g} s; check for a disk that hangs (`dmesg`)"
        ) from None


def _command(mountpoint: str) -> list[str]:
    if os.geteuid() != 0:
        tool = shutil.which("fusermount3") or shutil.which("fusermount")
        if tool is not None:
            return [tool, "-u", "--", mountpoint]
    return ["umount", "--no-canonicalize", "--", mountpoint]
