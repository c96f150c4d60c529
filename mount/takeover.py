"""Whether the descriptors that this process was started with belong to a mount that it can go on with."""

import logging
import os
import re
from pathlib import Path

from commitlogfs.fusefs.session import DEVICE, HANDSHAKE, TABLE, Kept
from commitlogfs.mount import mountinfo
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

_CONNECTION = re.compile(r"^fuse_connection:\s*(\d+)$", re.MULTILINE)


def find_kept(mountpoint: str, name: str, received: dict[str, int]) -> Kept | None:
    """None, and every descriptor closed, if there is nothing to go on with: the mount is gone by now. Touches
    nothing but /proc: nobody answers for the mount yet."""
    device, handshake, table = received.get(DEVICE), received.get(HANDSHAKE), received.get(TABLE)
    if device is not None and handshake is not None and _is_of_mount(device, mountpoint, name):
        for other in received.keys() - {DEVICE, HANDSHAKE, TABLE}:
            os.close(received[other])
        return Kept(device, handshake, table)
    for fd in received.values():
        os.close(fd)
    if received:
        log_event(log, logging.WARNING, "kept_mount_gone", path=mountpoint, descriptors=",".join(sorted(received)))
    return None


def _is_of_mount(device: int, mountpoint: str, name: str) -> bool:
    entry = mountinfo.find_mount(mountpoint)
    if entry is None or not mountinfo.is_commitlogfs(entry) or entry.source != name:
        return False
    # Newer kernels tell which connection a descriptor belongs to: the minor number of the mount's device.
    told = _CONNECTION.search(Path(f"/proc/self/fdinfo/{device}").read_text())
    return told is None or int(told[1]) == os.minor(entry.device)
