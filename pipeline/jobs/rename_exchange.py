"""Two names exchanged in one step (renameat2 with RENAME_EXCHANGE), for which Python has no call."""

import ctypes
import os
import re
import tempfile
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


def require_exchange(folder: Path) -> None:
    """Raises OSError unless names in `folder` can be exchanged: not every filesystem can."""
    probe = Path(tempfile.mkdtemp(prefix=".exchange-", dir=folder))
    (probe / "one").mkdir()
    (probe / "other").mkdir()
    try:
        exchange(probe / "one", probe / "other")
    finally:
        for path in probe / "one", probe / "other", probe:
            path.rmdir()


def mount_points() -> set[str]:
    """All of this process, bind mounts included, as resolved paths."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines}
