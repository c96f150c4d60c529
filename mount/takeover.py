"""Whether the descriptors that this process was started with belong to a mount that it can go on with."""

import logging
import os
import re
import select
from pathlib import Path

from commitlogfs.fusefs.session import DEVICE, HANDSHAKE, TABLE, Kept
from commitlogfs.mount import mountinfo
from commitlogfs.mount.errors import RefusedError
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

_CONNECTION = re.compile(r"^fuse_connection:\s*(\d+)$", re.MULTILINE)


def find_kept(mountpoint: str, name: str, received: dict[str, int]) -> Kept | None:
    """None, and every descriptor closed, if there is nothing to go on with: the mount is gone by now, or somebody
    has aborted its connection. Touches nothing but /proc: nobody answers for the mount yet. Raises RefusedError if
    the mount is alive but cannot be gone on with.
    """
    device, handshake, table = received.get(DEVICE), received.get(HANDSHAKE), received.get(TABLE)
    if device is not None and _is_of_mount(device, mountpoint, name) and not _is_aborted(device):
        if handshake is None:
            raise RefusedError(
                f"{mountpoint}: the mount is not taken over: what was agreed with the kernel was not kept: open "
                "files go on; stop the broker, unmount and mount again"
            )
        for other in received.keys() - {DEVICE, HANDSHAKE, TABLE}:
            os.close(received[other])
        return Kept(device, handshake, table)
    for fd in received.values():
        os.close(fd)
    if received:
        log_event(log, logging.WARNING, "kept_mount_gone", path=mountpoint, descriptors=",".join(sorted(received)))
    return None


def _is_aborted(device: int) -> bool:
    """Whether the kernel has ended the connection, by whosever order."""
    poll = select.poll()
    poll.register(device, select.POLLIN)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _is_of_mount(device: int, mountpoint: str, name: str) -> bool:
    entry = mountinfo.find_mount(mountpoint)
    if entry is None or not mountinfo.is_commitlogfs(entry) or entry.source != name:
        return False
    # Newer kernels tell which connection a descriptor belongs to: the minor number of the mount's device.
    told = _CONNECTION.search(Path(f"/proc/self/fdinfo/{device}").read_text())
    return told is None or int(told[1]) == os.minor(entry.device)
