"""How far the kernel reads ahead in the mount, where it asks the daemon: in files without passthrough."""

import logging
from pathlib import Path

from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 1 << 20
"""As much as one request can carry. The kernel's 128 KiB make eight requests of it, and a request costs the daemon
more than the bytes do. More would make a lone page fault in a mapping, which reads around itself, too dear."""

_BDI = Path("/sys/class/bdi")


def widen(mountpoint: str, folder: Path = _BDI) -> None:
    """Once mounted. Without root, or with a read-only /sys, it stays at what the kernel has chosen."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is None:
        return
    path = folder / f"{entry.major}:{entry.minor}" / "read_ahead_kb"
    try:
        path.write_text(f"{READ_AHEAD_BYTES >> 10}\n")
    except OSError as error:
        log_event(log, logging.INFO, "read_ahead_unchanged", path=path, reason=error.strerror)
