"""The kernel's read-ahead in the mount, for files without passthrough."""

import logging
from pathlib import Path

from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 1 << 20
"""As much as one request can carry. With the kernel's 128 KiB it would be eight requests, and a request costs the
daemon more than the bytes. More would make a single page fault in a mapping, which also reads around itself, too
expensive."""

_BDI = Path("/sys/class/bdi")


def widen(mountpoint: str, directory: Path = _BDI) -> None:
    """Widen the read-ahead of a mount. Without root, or with a read-only /sys, the kernel's value stays."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is None:
        return
    path = directory / f"{entry.major}:{entry.minor}" / "read_ahead_kb"
    try:
        path.write_text(f"{READ_AHEAD_BYTES >> 10}\n")
    except OSError as error:
        log_event(log, logging.INFO, "read_ahead_unchanged", path=path, reason=error.strerror)
