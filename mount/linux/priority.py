"""CPU priority and locked memory for the processes that a mount waits for: keeper, standby and daemon.

While a daemon is replaced, every user of the mount waits. On a machine with many more busy tasks than processors,
each of these processes would have to wait for a processor again and again, and for the disk if its memory was paged
out.
"""

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from commitlogfs.store import _syscalls

NICE: Final = -15
"""Nice value of the process and of its autogroup: 28 times the share of a task of nice 0. Not a real-time class: a
daemon that spins would take a processor from all other processes."""
AUTOGROUP: Final = Path("/proc/self/autogroup")
_CAPABILITIES: Final = Path("/proc/self/status")
_CAP_IPC_LOCK: Final = 14


def raise_priority() -> None:
    """Raise the priority of this process and of the threads and children that it starts from now on. Without the
    right to do so, nothing changes.

    With sched_autogroup_enabled a nice value counts only among the processes of one session, and the session as a
    whole competes with others by a value of its own. Only the leader of a session raises that: the other processes
    in the session of a shell are not ours.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        if os.getsid(0) == os.getpid() and AUTOGROUP.exists():
            AUTOGROUP.write_text(str(NICE))


def lock_memory() -> None:
    """Load and lock all memory of this process; memory that it maps later is locked when it is touched. Without the
    right to do so, nothing changes.

    Call it before any thread is started: the whole stack of each would be loaded. Locks end at exec, and children
    do not inherit them.
    """
    if not _may_lock():
        return
    with contextlib.suppress(OSError):
        _syscalls.mlockall(_syscalls.MCL_CURRENT)
        _syscalls.mlockall(_syscalls.MCL_CURRENT | _syscalls.MCL_FUTURE | _syscalls.MCL_ONFAULT)


def _may_lock() -> bool:
    """Whether there is no limit of locked memory. With a limit, a later allocation beyond it would fail."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    effective = next(line for line in _CAPABILITIES.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) & 1 << _CAP_IPC_LOCK)
