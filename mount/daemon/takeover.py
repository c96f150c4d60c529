"""Whether the descriptors that this process was started with belong to a mount that it can go on with, and where
that is to be seen by now."""

import logging
import os
from dataclasses import dataclass

from commitlogfs.console.errors import RefusedError
from commitlogfs.fusefs.kernel.session import DEVICE, HANDSHAKE, TABLE, Kept
from commitlogfs.mount.linux import fuse_device, mountinfo
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sight:
    """Where a kept mount is."""

    mountpoint: str
    """By its path: covered by another mount, perhaps, or detached and nowhere."""
    device: int | None
    """The st_dev of its files; None if nothing tells."""


def find_kept(mountpoint: str, name: str, received: dict[str, int]) -> Kept | None:
    """None, and every descriptor closed, if there is nothing to go on with: the mount has ended by now, or somebody
    has aborted its connection. A mount that lives is never given up: RefusedError if it cannot be gone on with.
    Touches nothing but /proc: nobody answers for the mount yet.
    """
    device, handshake, table = received.get(DEVICE), received.get(HANDSHAKE), received.get(TABLE)
    if device is not None and fuse_device.is_fuse_device(device) and fuse_device.is_connected(device):
        others = {entry.source for entry in _entries(device, None)} - {name}
        if others:
            raise RefusedError(
                f"{name}: the mount that was kept has the name {', '.join(sorted(others))}: it is not taken over "
                "by this one: put the former name back, or stop the broker, unmount and mount again"
            )
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


def locate(mountpoint: str, name: str, kept: Kept) -> Sight:
    """Where the kept mount is: at `mountpoint` if it is there, whatever lies on top; else where it is seen, for the
    folder has been moved or the configuration has changed."""
    entries = _entries(kept.device, name)
    wanted = mountinfo.resolve_path(mountpoint)
    device = fuse_device.mount_device(kept.device)
    if not entries:
        return Sight(mountpoint, device)
    here = [entry for entry in entries if entry.mountpoint == wanted]
    if here:
        return Sight(mountpoint, here[-1].device)
    entry = entries[-1]
    log_event(log, logging.WARNING, "mounted_elsewhere", path=entry.mountpoint, configured=mountpoint)
    return Sight(entry.mountpoint, entry.device)


def _entries(device: int, name: str | None) -> list[mountinfo.MountEntry]:
    """All that is seen of the connection's mount; on kernels that do not tell which that is, all of this name (none
    without one)."""
    number = fuse_device.mount_device(device)
    return [
        entry
        for entry in mountinfo.read_mounts()
        if mountinfo.is_commitlogfs(entry)
        and entry.root == "/"  # else a view of one file
        and (entry.source == name if number is None else entry.device == number)
    ]
