"""Unmounting, always plainly: a mount that is in use stays, and the one who uses it is named. Never lazily."""

import os
import shutil
import subprocess

from commitlogfs.mount import mountinfo
from commitlogfs.mount.errors import RefusedError
from commitlogfs.mount.holders import describe_holders, find_holders

_TIMEOUT_S = 30.0


def unmount(mountpoint: str) -> None:
    """Unmount once. Raises RefusedError if it is busy (naming the holders) or the system refuses.

    Runs umount(8) as a child: the system call waits for the daemon, which may be the caller.
    """
    command = _command(mountpoint)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},  # its words are read below
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(
            f"{mountpoint}: umount does not return within {_TIMEOUT_S:g} s: is a disk hung?"
        ) from None
    if done.returncode == 0 or mountinfo.find_mount(mountpoint) is None:
        return
    if "busy" in done.stderr:
        holders = describe_holders(find_holders(mountpoint))
        raise RefusedError(f"{mountpoint}: in use by {holders}: stop that first")
    raise RefusedError(f"{mountpoint}: {done.stderr.strip() or f'umount failed ({done.returncode})'}")


def _command(mountpoint: str) -> list[str]:
    if os.geteuid() != 0:
        tool = shutil.which("fusermount3") or shutil.which("fusermount")
        if tool is not None:
            return [tool, "-u", "--", mountpoint]
    return ["umount", "--no-canonicalize", "--", mountpoint]
