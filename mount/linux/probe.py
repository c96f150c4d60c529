"""Whether a mount answers, found out by a child process with a deadline.

A process that accesses a FUSE mount waits for its daemon. If the daemon is dead or hung, or is this process itself,
it waits for ever, in a state that even SIGKILL does not end. So only a child process touches the mount.
"""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from commitlogfs.mount.linux import mountinfo

KILL_GRACE_S = 0.2
"""How long a killed child may take to end before a later probe has to reap it."""

# Imports next to nothing: a mount is ready only afterwards. statfs always reaches the daemon, as the kernel
# caches nothing of it, except for a user without access to the mount, for whom the lookup fails.
_CHILD = """
import errno, os, sys
mountpoint, hidden, device = sys.argv[1], sys.argv[2], int(sys.argv[3])
def step(name, call, *args):
    try:
        return call(*args)
    except OSError as error:
        print(f"{name}: {error.strerror}")
        sys.exit(2 if error.errno in (errno.ENOTCONN, errno.ECONNABORTED) else 1)
step("statfs", os.statvfs, mountpoint)
if step("stat of the root", os.stat, mountpoint).st_dev != device:
    print("another filesystem is visible here now")
    sys.exit(1)
step("lookup of " + hidden, os.stat, os.path.join(mountpoint, hidden))
print("ok")
"""
_HIDDEN = ".commitlogfs/status.json"
_DEAD_STATUS = 2

_stuck: list[tuple[str, subprocess.Popen[str]]] = []
"""Killed children that have not ended, with their mountpoints. They end when the mount answers or is aborted."""
_stuck_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe. `reason` says what is wrong; it is empty if `ok`.

    `dead` if the mount will never answer again, because its connection has ended.
    """

    ok: bool
    reason: str
    seconds: float
    dead: bool = False


def probe_mount(mountpoint: str | os.PathLike[str], timeout_s: float) -> ProbeResult:
    """Whether a commitlogfs mount at `mountpoint` answers within `timeout_s`. Blocks, but not much longer than
    that.

    While the child of an earlier probe still hangs in the mount, no further one is started and the result comes at
    once.
    """
    started = time.monotonic()
    reason, dead = _probe(mountinfo.resolve_path(mountpoint), timeout_s)
    return ProbeResult(not reason, reason, time.monotonic() - started, dead)


def _probe(mountpoint: str, timeout_s: float) -> tuple[str, bool]:
    """The fault ("" if there is none), and whether it is permanent."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is None:
        return "nothing is mounted here", False
    if not mountinfo.is_commitlogfs(entry):
        return f"a {entry.fstype} filesystem is mounted here, not commitlogfs", False
    stuck_pid = _reap_stuck(mountpoint)
    if stuck_pid is not None:
        return f"does not answer: an earlier probe (pid {stuck_pid}) still hangs", False
    try:
        child = _start_child(mountpoint, entry.device)
    except OSError as error:  # no descriptor or no process left
        return f"cannot be probed ({error.strerror})", False
    try:
        answer, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(child, mountpoint)
        return f"does not answer within {timeout_s:g} s", False
    except BaseException:
        _kill(child, mountpoint)
        raise
    if child.returncode == 0 and answer == "ok\n":
        return "", False
    reason = answer.strip() or f"the probe died with status {child.returncode}"
    return reason, child.returncode == _DEAD_STATUS


def _start_child(mountpoint: str, device: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", "-c", _CHILD),
            *(mountpoint, _HIDDEN, str(device)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        close_fds=True,
        cwd="/",
        env={"LC_ALL": "C.UTF-8"},
        text=True,
        errors="replace",
        process_group=0,  # keeps Ctrl-C away from it; it stays in our session, whose priority is raised
    )


def _kill(child: subprocess.Popen[str], mountpoint: str) -> None:
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    try:
        child.wait(KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        with _stuck_lock:
            _stuck.append((mountpoint, child))


def _reap_stuck(mountpoint: str) -> int | None:
    """Reap every former child that has ended. Returns the pid of one that still hangs in this mount, or None."""
    with _stuck_lock:
        _stuck[:] = [(place, child) for place, child in _stuck if child.poll() is None]
        return next((child.pid for place, child in _stuck if place == mountpoint), None)
