"""Exchanges two names in one step (renameat2 with RENAME_EXCHANGE), for which Python has no function."""

import ctypes
import os
import re
import tempfile
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Exchange two existing names on one filesystem; each name exists at every moment. Raises OSError."""
    # ctypes: the pipeline must work without the daemon's C extension, and calls this once or twice in a run.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def require_exchange(directory: Path) -> None:
    """Raises OSError unless names in `directory` can be exchanged, which not every filesystem supports."""
    probe = Path(tempfile.mkdtemp(prefix=".exchange-", dir=directory))
    (probe / "one").mkdir()
    (probe / "other").mkdir()
    try:
        exchange(probe / "one", probe / "other")
    finally:
        for path in probe / "one", probe / "other", probe:
            path.rmdir()


def mount_points() -> set[str]:
    """All mount points of this process, bind mounts included, as resolved paths."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines}
