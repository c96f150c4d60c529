"""A daemon that stands by: all its code is loaded and nothing is open, until its keeper calls it.

Most of a successor's start is loading the interpreter and some hundreds of modules; the takeover itself is the
smaller part. A broker waits for both, so the keeper has the first part done in advance.
"""

import fcntl
import os
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from commitlogfs.mount.keeper import standby_call
from commitlogfs.mount.keeper.standby_call import STANDBY_OPTION, BrokenCallError, Call
from commitlogfs.mount.linux import notify
from commitlogfs.mount.linux.descriptor_store import FIRST_FD, by_name

_FLOOR = 64
_STARTTIME = 19
"""Field of /proc/PID/stat, counted from the one after the name (proc(5): 22)."""


def wait_until_called(fd: int, start_s: float) -> dict[str, int]:
    """Wait until the keeper calls; returns the descriptors that it sends, as descriptor_store.take_received does.
    The environment is then that of a daemon that is started now, which has `start_s` to get ready.

    Raises SystemExit: status 0 if the keeper ends or dismisses this process; 1 if a part of the call is missing. If
    a file with loaded code has changed, the process becomes a fresh one (exec), and this does not return: a process
    must not mix the code of two versions.
    """
    loaded = _code_files(changed_since_ns=_started_ns())
    with socket.socket(fileno=fd) as channel:
        standby_call.report_loaded(channel)
        try:
            call = standby_call.receive(channel)
        except BrokenCallError as error:
            sys.exit(f"commitlogfs: {error}")
    if call is None:
        sys.exit(0)
    os.environ.update(call.variables)
    notify.needs_time(start_s)  # also says that this process runs
    if any(_version(path) != version for path, version in loaded.items()):
        _become_fresh(call)
    return by_name(call.descriptors)


Version = tuple[int, int, int, int]
"""Inode of a file, its size in bytes, mtime and ctime in ns. Zeros if it is gone."""


def _code_files(changed_since_ns: int) -> dict[str, Version | None]:
    """The files of all loaded modules with their present versions. None for a file that has changed during loading,
    perhaps after it was read."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    versions = {path: _version(path) for path in paths if path is not None}
    return {path: found if found[3] < changed_since_ns else None for path, found in versions.items()}


def _version(path: str) -> Version:
    try:
        found = os.stat(path)  # noqa: PTH116 - of some hundreds, while a broker waits
    except OSError:
        return 0, 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _started_ns() -> int:
    """Start time of this process on the clock of file times, made one tick of both clocks earlier."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTTIME])
    per_second = os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // per_second
    return time.time_ns() - age_ns - 2 * 1_000_000_000 // per_second


def _become_fresh(call: Call) -> NoReturn:
    """Start this process again, as a service manager would (sd_listen_fds(3)). Raises OSError."""
    os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["LISTEN_FDS"] = str(len(call.descriptors))
    os.environ["LISTEN_FDNAMES"] = ":".join(name for name, _ in call.descriptors)
    # Copies with high numbers first, so that none is overwritten before it has found its place.
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FLOOR) for _, fd in call.descriptors]
    for place, source in enumerate(sources, FIRST_FD):
        os.dup2(source, place)
    command = list(sys.orig_argv)
    at = command.index(STANDBY_OPTION)
    del command[at : at + 2]
    os.execv(sys.executable, command)  # noqa: S606 - a list of arguments, no shell
