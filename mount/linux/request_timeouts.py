"""Time limits on FUSE requests, which newer kernels have. If one is set, a request that waits longer aborts the
whole mount: one disk that hangs, or a daemon that is away, is enough.
"""

from pathlib import Path
from typing import Final

DIRECTORY: Final = Path("/proc/sys/fs/fuse")
_NAMES: Final = ("default_request_timeout", "max_request_timeout")


def read_request_timeouts(directory: Path = DIRECTORY) -> dict[str, int | None]:
    """Limits in seconds by name of the setting: 0 for no limit, None for a setting that this kernel does not
    have."""
    return {name: _read_number(directory / name) for name in _NAMES}


def describe_limits(timeouts: dict[str, int | None]) -> str:
    """The limits that are set, as in `sysctl`: "fs.fuse.max_request_timeout = 30"; "" if there are none."""
    return " and ".join(f"fs.fuse.{name} = {value}" for name, value in timeouts.items() if value)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
