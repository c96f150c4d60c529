"""Starting a process with descriptors of a service: the sending side of sd_listen_fds(3)."""

import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commitlogfs.mount.linux.descriptor_store import FIRST_FD
from commitlogfs.mount.linux.priority import AUTOGROUP, NICE

_FLOOR = 64

_MANAGERS = frozenset({"NOTIFY_SOCKET", "MAINPID"})
_MANAGER_PREFIXES = ("LISTEN_", "WATCHDOG_")
"""Variables that a service manager sets for this process only, not for the processes that it starts."""

# The environment of the new process must contain its own pid, which only it knows, and nothing but the stored
# descriptors may be open in it. So a shell fills in the pid and becomes the command; posix_spawn runs no code of
# this process, whose threads a fork would not have, in between.
_SHELL = "/bin/sh"
# SIGHUP, which may come at any time (logs.catch_hangup), would end a process that does not catch it yet. A new
# session does not inherit its priority (mount.linux.priority): raised here, it holds while the command is loaded.
_SCRIPT = (
    f'trap "" HUP; {{ echo {NICE} >{AUTOGROUP}; }} 2>/dev/null; export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Process:
    """A child of this process. The pidfd belongs to the owner of the process."""

    pid: int
    pidfd: int


def spawn_watched(
    command: Sequence[str],
    variables: Mapping[str, str],
    descriptors: Sequence[tuple[str, int]],
    *,
    inherited: int | None = None,
) -> Process:
    """As `spawn`. Raises OSError, and then no process is left without a pidfd."""
    pid = spawn(command, variables, descriptors, inherited=inherited)
    try:
        return Process(pid, os.pidfd_open(pid))
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def spawn(
    command: Sequence[str],
    variables: Mapping[str, str],
    descriptors: Sequence[tuple[str, int]],
    *,
    inherited: int | None = None,
) -> int:
    """Start `command` in a session of its own; its pid. It is the caller's child.

    It has copies of `descriptors` from number 3 on, with their names in $LISTEN_FDNAMES. Of everything else that
    this process has open it has only standard output and error, and `inherited`, with the same number as here. Its
    standard input is /dev/null. Raises OSError.
    """
    if inherited is not None and inherited < FIRST_FD + len(descriptors):
        raise ValueError(f"descriptor {inherited} would be overwritten")
    environment = {key: value for key, value in os.environ.items() if not _is_of_manager(key)} | dict(variables)
    if descriptors:
        environment["LISTEN_FDS"] = str(len(descriptors))
        environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in descriptors)
    # Copies with high numbers, so that none is overwritten before it has found its place.
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FLOOR) for _, fd in descriptors]
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ]
    actions += [(os.POSIX_SPAWN_DUP2, source, FIRST_FD + index) for index, source in enumerate(sources)]
    if inherited is not None:
        os.set_inheritable(inherited, True)
    try:
        return os.posix_spawn(
            _SHELL,
            [_SHELL, "-c", _SCRIPT, _SHELL, *command],
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(signal.SIGINT,),  # until it can take it (console.interrupts)
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them for itself
        )
    finally:
        if inherited is not None:
            os.set_inheritable(inherited, False)
        for source in sources:
            os.close(source)


def _is_of_manager(variable: str) -> bool:
    return variable in _MANAGERS or variable.startswith(_MANAGER_PREFIXES)
