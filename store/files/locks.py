"""Locks of daemons on directories and files (flock), and their holders, read from /proc/locks."""

import fcntl
import os
import re
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

# 1: FLOCK  ADVISORY  WRITE 6390 07:02:12 0 EOF      (device in hexadecimal, inode number in decimal)
# 1: -> FLOCK  ADVISORY  WRITE 6391 07:02:12 0 EOF   (waits for it)
_LINE = re.compile(
    r"^\d+: (-> )?FLOCK +ADVISORY +(WRITE|READ) +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE
)
_EXCLUSIVE: Final = "WRITE"

_PAUSE_S = 0.01


def take_lock(fd: int, patience_s: float = 0.0, dying: Collection[int] = (), clock: Clock = SYSTEM_CLOCK) -> bool:
    """Take the lock on the file or directory of `fd`; False where another process still has it after `patience_s`.

    The lock lasts as long as the descriptor or any copy of it: a child that a holder was starting when it died has
    one for a moment. Blocks for that time at most. One that a process of `dying` has, which does nothing any more,
    keeps everybody else out as long as that process is there, and is taken when it has ended. The caller makes sure
    that no other process waits for it, too.
    """
    deadline = clock.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if dying and _holders(os.fstat(fd), _EXCLUSIVE) & set(dying):
                threading.Thread(target=_take_when_free, args=(os.dup(fd),), name="lock", daemon=True).start()
                return True
            if clock.monotonic() >= deadline:
                return False
            clock.sleep(_PAUSE_S)
        else:
            return True


def _take_when_free(fd: int) -> None:
    """`fd` is a copy: the lock belongs to all copies of a descriptor, and lasts until the last one is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def share(fd: int) -> frozenset[int]:
    """Take a lock that many processes may have at once. Returns the pids of the others that have one. Raises
    OSError."""
    fcntl.flock(fd, fcntl.LOCK_SH)
    return frozenset(_holders(os.fstat(fd))) - {os.getpid()}


def lock_holder(path: str, locks: str | None = None) -> int | None:
    """The pid of the daemon that holds this disk's directory (or its own lock file); None if none does. If a daemon
    waits for one that is dying (take_lock), the one that waits.

    A daemon in another pid namespace is not seen. `locks` is the text of /proc/locks.
    """
    try:
        st = os.stat(path)
        text = Path("/proc/locks").read_text() if locks is None else locks
        holders = _holders(st, _EXCLUSIVE, text)
        waiting = _holders(st, _EXCLUSIVE, text, are_waiting=True)
    except OSError:
        return None
    return next(iter(waiting or holders), None)


def _holders(
    st: os.stat_result, kind: str = "", locks: str | None = None, *, are_waiting: bool = False
) -> set[int]:
    """The pids of the processes that have such a lock on this file, or wait for one, as far as this pid namespace
    has them. Raises OSError."""
    text = Path("/proc/locks").read_text() if locks is None else locks
    wanted = (os.major(st.st_dev), os.minor(st.st_dev), st.st_ino)
    return {
        int(pid)
        for arrow, found, pid, major, minor, ino in _LINE.findall(text)
        if (int(major, 16), int(minor, 16), int(ino)) == wanted
        and kind in ("", found)
        and int(pid) > 0
        and bool(arrow) == are_waiting
    }
