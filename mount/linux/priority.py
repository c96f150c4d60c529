"""CPU priority and locked memory for the processes that a mount waits for: keeper, standby and daemon.

While a daemon is replaced, everybody who uses the mount waits. On a machine with many more busy tasks than
processors each of these processes would wait for its turn again and again, and for the disk if its memory was paged
out.
"""

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from commitlogfs.store import _syscalls

NICE: Final = -15
"""Of the process and of its autogroup: 28 times the share of a task of nice 0. Not a real-time class: a daemon that
spins would take a processor from everybody else."""
AUTOGROUP: Final = Path("/proc/self/autogroup")
_CAPABILITIES: Final = Path("/proc/self/status")
_CAP_IPC_LOCK: Final = 14


def raise_priority() -> None:
    """Raise this process's priority, also for the threads and children that it starts from now on. Where this user
    may not, nothing changes.

    With sched_autogroup_enabled a nice value counts only among the processes of one session, and the session as a
    whole competes with others by a value of its own. Only the leader of a session raises that: the other processes
    in the session of a shell are not ours.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        if os.getsid(0) == os.getpid() and AUTOGROUP.exists():
            AUTOGROUP.write_text(str(NICE))


def lock_memory() -> None:
    """Load all that this process has mapped and keep it in memory, and what it maps later once it has touched it.
    Where this user may not, nothing changes.

    To be called before any thread is started: the whole stack of each would be loaded. Locks end at exec, and are
    not inherited by children.
    """
    if not _may_lock():
        return
    with contextlib.suppress(OSError):
        _syscalls.mlockall(_syscalls.MCL_CURRENT)
        _syscalls.mlockall(_syscalls.MCL_CURRENT | _syscalls.MCL_FUTURE | _syscalls.MCL_ONFAULT)


def _may_lock() -> bool:
    """Whether no limit applies. Within one, a process that has locked its memory gets no more when it needs it."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    effective = next(line for line in _CAPABILITIES.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) & 1 << _CAP_IPC_LOCK)
