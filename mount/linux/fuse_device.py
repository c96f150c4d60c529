"""A descriptor of /dev/fuse: is its connection alive, and to which mount does it belong? The kernel knows.

A connection lives as long as its mount exists anywhere: visible, covered by another mount, moved with its
directory, in another mount namespace, or detached with files still open. What is visible at a path does not show
that.
"""

import os
import re
import select
import stat
from pathlib import Path

_NUMBER = os.makedev(10, 229)
_CONNECTION = re.compile(r"^fuse_connection:\s*(\d+)$", re.MULTILINE)


def is_fuse_device(fd: int) -> bool:
    """Whether this is a descriptor of /dev/fuse. Raises OSError for one that is not open."""
    status = os.fstat(fd)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _NUMBER


def is_connected(fd: int) -> bool:
    """Whether the connection is alive: false once the mount has ended or the connection was aborted."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def mount_device(fd: int) -> int | None:
    """The st_dev of the files of its mount; None on kernels that do not show it."""
    match = _CONNECTION.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    return None if match is None else os.makedev(0, int(match[1]))
