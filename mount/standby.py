"""A daemon that stands by: everything is loaded, nothing is opened, until its keeper calls it.

Most of a successor's start is the interpreter and some hundreds of modules; taking the mount over is the smaller
part of it. A broker waits for both, so the keeper has the first done in advance.
"""

import fcntl
import os
import socket
import sys
from typing import NoReturn

from commitlogfs.mount import keeper_call
from commitlogfs.mount.descriptor_store import FIRST_FD
from commitlogfs.mount.keeper_call import STANDBY_OPTION, Call

_FLOOR = 64


def wait_until_called(fd: int) -> dict[str, int]:
    """Wait until the keeper calls; the descriptors that it hands over, as of descriptor_store.take_received. The
    environment is then that of a daemon that is started now.

    Raises SystemExit (status 0) if the keeper ends, or does without this process. If a file with code that was
    loaded is not what it was, the process becomes a fresh one (exec), and this does not return: half of an upgrade
    is no version at all.
    """
    loaded = _code_files()
    with socket.socket(fileno=fd) as channel:
        keeper_call.tell_loaded(channel)
        call = keeper_call.receive(channel)
    if call is None:
        sys.exit(0)
    os.environ.update(call.variables)
    if any(_look(path) != seen for path, seen in loaded.items()):
        _become_fresh(call)
    received: dict[str, int] = {}
    for name, descriptor in call.descriptors:
        if name in received:
            os.close(received[name])
        received[name] = descriptor
    return received


def _code_files() -> dict[str, tuple[int, int, int]]:
    """The files that all modules are from, as they look now."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {path: _look(path) for path in paths if path is not None}


def _look(path: str) -> tuple[int, int, int]:
    """Inode, size in bytes, time of change in ns; zeros if it is gone."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of some hundreds, while a broker waits
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


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
