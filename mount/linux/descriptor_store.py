"""Descriptors that survive this process: sd_notify(3) FDSTORE, sd_listen_fds(3).

One protocol for systemd and for our own keeper. What is stored comes back to the next process of the service as
open descriptors from number 3 on, named in $LISTEN_FDNAMES.
"""

import os
import select
from collections.abc import Iterable, Mapping

from commitlogfs.mount.linux import notify

BARRIER_TIMEOUT_S = 5.0
FIRST_FD = 3
"""SD_LISTEN_FDS_START."""


def take_received() -> dict[str, int]:
    """The descriptors that this process was started with, by name; empty if none. Once: the environment is cleared,
    so that no child takes them for its own. The later of two with one name counts, the other is closed."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    fds = range(FIRST_FD, FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    return by_name((names[index] if index < len(names) else "", fd) for index, fd in enumerate(fds))


def by_name(descriptors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The later of two with one name counts, the other is closed."""
    found: dict[str, int] = {}
    for name, fd in descriptors:
        if name in found:
            os.close(found[name])
        found[name] = fd
    return found


def store(descriptors: Mapping[str, int]) -> bool:
    """Have copies kept. True when they are: the manager has taken them, not just been sent them. False where nobody
    listens. Raises OSError, TimeoutError."""
    for name, fd in descriptors.items():
        # FDPOLL=0: systemd would drop a descriptor that reports an error, which an aborted connection does.
        if not notify.notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", [fd]):
            return False
    return not descriptors or _barrier()


def remove(name: str) -> bool:
    """Have all descriptors of this name dropped. Raises OSError."""
    return notify.notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


def forget(names: Iterable[str]) -> None:
    """Have all descriptors of these names dropped, and wait until they are. Raises OSError, TimeoutError."""
    for name in names:
        remove(name)
    _barrier()


def _barrier() -> bool:
    """Wait until the manager has worked off all that was sent: it closes its end of a pipe then."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            sent = notify.notify("BARRIER=1", [writer])
        finally:
            os.close(writer)
        if not sent:
            return False
        poll = select.poll()
        poll.register(reader, select.POLLHUP)
        if not poll.poll(BARRIER_TIMEOUT_S * 1000):
            raise TimeoutError("the service manager does not take our descriptors")
    finally:
        os.close(reader)
    return True
