"""Who holds a lock on a folder or file, told from /proc/locks: a look that does not take the lock itself."""

import os
import re
from pathlib import Path

# 1: FLOCK  ADVISORY  WRITE 6390 07:02:12 0 EOF      (device in hexadecimal, inode number in decimal)
_LINE = re.compile(r"^\d+: FLOCK +ADVISORY +WRITE +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def lock_holder(path: str, locks: str | None = None) -> int | None:
    """The pid of the daemon that holds this disk's folder (or its own lock file); None if nobody does.

    A daemon in another pid namespace is not seen. `locks` is the text of /proc/locks.
    """
    try:
        st = os.stat(path)
        text = Path("/proc/locks").read_text() if locks is None else locks
    except OSError:
        return None
    wanted = (os.major(st.st_dev), os.minor(st.st_dev), st.st_ino)
    for pid, major, minor, ino in _LINE.findall(text):
        if (int(major, 16), int(minor, 16), int(ino)) == wanted:
            return int(pid)
    return None
