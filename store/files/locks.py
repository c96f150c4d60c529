"""Exclusive locks of daemons on directories and files (flock), and their holders, read from /proc/locks."""

import fcntl
import os
import re
import time
from pathlib import Path

# 1: FLOCK  ADVISORY  WRITE 6390 07:02:12 0 EOF      (device in hexadecimal, inode number in decimal)
_LINE = re.compile(r"^\d+: FLOCK +ADVISORY +WRITE +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)

_PAUSE_S = 0.01


def take_lock(fd: int, patience_s: float = 0.0) -> bool:
    """Take the lock on the file or directory of `fd`; False where another process still has it after `patience_s`.

    The lock lasts as long as the descriptor or any copy of it: a child that a holder was starting when it died has
    one for a moment. Blocks for that time at most.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def lock_holder(path: str, locks: str | None = None) -> int | None:
    """The pid of the daemon that holds this disk's directory (or its own lock file); None if none does.

    A daemon in another pid namespace is not seen. `locks` is the text of /proc/locks.
    """
    try:
        st = os.stat(path)
        text = Path("/proc/locks").read_text() if locks is None else locks
    except OSError:
        return None
    held = (os.major(st.st_dev), os.minor(st.st_dev), st.st_ino)
    for pid, major, minor, ino in _LINE.findall(text):
        if (int(major, 16), int(minor, 16), int(ino)) == held:
            return int(pid)
    return None
