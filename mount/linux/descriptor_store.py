"""Descriptors that outlive this process: sd_notify(3) FDSTORE, sd_listen_fds(3).

systemd and our own keeper use the same protocol. The next process of the service gets the stored descriptors from
number 3 on, with their names in $LISTEN_FDNAMES.
"""

import os
import select
from collections.abc import Iterable, Mapping

from commitlogfs.mount.linux import notify

BARRIER_TIMEOUT_S = 5.0
FIRST_FD = 3
"""SD_LISTEN_FDS_START."""


def take_received() -> dict[str, int]:
    """Descriptors that this process was started with, by name. Call it once.

    It clears the environment, so that no child takes them for its own. Of two with one name the later counts, and
    the other is closed.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    fds = range(FIRST_FD, FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    return by_name((names[index] if index < len(names) else "", fd) for index, fd in enumerate(fds))


def by_name(descriptors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Descriptors by name. Of two with one name the later counts, and the other is closed."""
    found: dict[str, int] = {}
    for name, fd in descriptors:
        if name in found:
            os.close(found[name])
        found[name] = fd
    return found


def store(descriptors: Mapping[str, int]) -> bool:
    """Have the manager keep copies of the descriptors; returns once it has taken them.

    False if there is no manager. Raises OSError, TimeoutError.
    """
    for name, fd in descriptors.items():
        # FDPOLL=0: systemd would drop a descriptor that reports an error, which an aborted connection does.
        if not notify.notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", [fd]):
            return False
    return not descriptors or _barrier()


def remove(name: str) -> bool:
    """Have the manager drop all descriptors of this name. Raises OSError."""
    return notify.notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


def forget(names: Iterable[str]) -> None:
    """Have the manager drop all descriptors of these names, and wait until it has. Raises OSError, TimeoutError."""
    for name in names:
        remove(name)
    _barrier()


def _barrier() -> bool:
    """Wait until the manager has handled all messages before: it then closes its end of a pipe."""
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
