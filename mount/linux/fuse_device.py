"""A descriptor of /dev/fuse: does its connection live, and which mount is it of? Asked of the kernel alone.

A connection lives as long as anything of its mount does: in sight, covered by another one, moved with its folder,
in another mount namespace, or detached with files still open. So this decides, not what is to be seen at a path.
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
    """Whether the kernel still waits for answers here: false once unmounted for good, or aborted by anybody."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def mount_device(fd: int) -> int | None:
    """The st_dev of the files of its mount; None on kernels that do not tell."""
    told = _CONNECTION.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    return None if told is None else os.makedev(0, int(told[1]))
