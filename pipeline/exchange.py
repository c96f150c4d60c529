"""Two names exchanged in one step (renameat2 with RENAME_EXCHANGE), for which Python has no call."""

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Both must exist, on one filesystem; at no moment is either name without a file. Raises OSError."""
    # ctypes, as the pipeline must do without the daemon's C extension, and this is called once or twice a run.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))
