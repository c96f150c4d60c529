"""Whether a broker has a store open: a running broker holds a lock on the file `lock` in the store's root.

It is a record lock (fcntl) of one byte for writing (DefaultMessageStore#start, FileChannel#tryLock). It belongs to
the process, so it is visible on this machine only.
"""

import fcntl
import os
import struct
from pathlib import Path

from commitlogfs.store.broker_store import LOCK_FILE

_FLOCK = struct.Struct("@hhqqi4x")
"""struct flock on 64-bit Linux: type, whence, start, length, pid."""


def broker_pid(store_root: Path) -> int | None:
    """Process that holds the store's lock; None if there is none. Raises OSError if this cannot be determined."""
    try:
        fd = os.open(store_root / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        fd = os.open(store_root / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)  # querying the lock needs no write access
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(fd)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else pid
