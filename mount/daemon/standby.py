"""A daemon that stands by: everything is loaded, nothing is opened, until its keeper calls it.

Most of a successor's start is the interpreter and some hundreds of modules; taking the mount over is the smaller
part of it. A broker waits for both, so the keeper has the first done in advance.
"""

import fcntl
import os
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from commitlogfs.mount.keeper import standby_call
from commitlogfs.mount.keeper.standby_call import STANDBY_OPTION, START_TIMEOUT_S, BrokenCallError, Call
from commitlogfs.mount.linux import notify
from commitlogfs.mount.linux.descriptor_store import FIRST_FD, by_name

_FLOOR = 64
_STARTTIME = 19
"""Of /proc/PID/stat, counted from the field behind the name (proc(5): 22)."""


def wait_until_called(fd: int) -> dict[str, int]:
    """Wait until the keeper calls; the descriptors that it hands over, as of descriptor_store.take_received. The
    environment is then that of a daemon that is started now.

    Raises SystemExit: status 0 if the keeper ends, or does without this process; 1 if it calls in vain. If a file
    with code that was loaded is not what it was, the process becomes a fresh one (exec), and this does not return:
    half of an upgrade is no version at all.
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
    notify.needs_time(START_TIMEOUT_S)  # also says that this process runs
    if any(_look(path) != seen for path, seen in loaded.items()):
        _become_fresh(call)
    return by_name(call.descriptors)


Look = tuple[int, int, int, int]
"""Of a file: inode, size in bytes, time of change of its content and of itself in ns. Zeros if it is gone."""


def _code_files(changed_since_ns: int) -> dict[str, Look | None]:
    """The files that all modules are from, as they look now; None for one that has changed while they were loaded,
    perhaps after its turn."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    looks = {path: _look(path) for path in paths if path is not None}
    return {path: look if look[3] < changed_since_ns else None for path, look in looks.items()}


def _look(path: str) -> Look:
    try:
        found = os.stat(path)  # noqa: PTH116 - of some hundreds, while a broker waits
    except OSError:
        return 0, 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _started_ns() -> int:
    """When this process was started, as files have their times; a tick of both clocks earlier."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTTIME])
    per_second = os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // per_second
    return time.time_ns() - age_ns - 2 * 1_000_000_000 // per_second


def _become_fresh(call: Call) -> NoReturn:
    """This process, started anew as by sd_listen_fds(3). Raises OSError."""
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
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
