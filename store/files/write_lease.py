"""Lease probe: whether another process has a segment open. The kernel grants a write lease to a sole opener only.

A native broker keeps every segment open and mapped, so its newest one shows it. See fcntl(2), F_SETLEASE.
"""

import errno
import fcntl
import os
import signal

from commitlogfs.store.files import safe_open


def is_open_elsewhere(dirfd: int, path: bytes) -> bool | None:
    """Whether any other process has the file open; None where that cannot be known.

    Leases need a local filesystem and the file's owner or CAP_LEASE. The lease is given back at once.
    Raises OSError if the file cannot be opened.
    """
    fd = safe_open.open_file(dirfd, path, os.O_RDONLY)
    try:
        # An open meanwhile, even by another thread of ours, sends the holder a signal: by default SIGIO, which ends
        # the process. SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ETXTBSY):
            return True
        if error.errno in (errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOLCK):
            return None
        raise
    finally:
        os.close(fd)
    return False
