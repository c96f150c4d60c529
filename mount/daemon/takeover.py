"""The mount that this process inherits from a former daemon: what its descriptors say, and where the mount is."""

import logging
import os
from dataclasses import dataclass

from commitlogfs.console.errors import RefusedError
from commitlogfs.fusefs.kernel import inherited_session
from commitlogfs.fusefs.kernel.inherited_session import DEVICE, STORED, InheritedSession
from commitlogfs.fusefs.kernel.inherited_state import InheritedStateError
from commitlogfs.mount.linux import fuse_device, mountinfo
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InheritedMount:
    session: InheritedSession
    mountpoint: str
    """Its path: perhaps covered by another mount, or detached and not visible anywhere."""
    device: int | None
    """The st_dev of its files; None if it cannot be found out."""


def find_inherited(mountpoint: str, name: str, received: dict[str, int]) -> InheritedMount | None:
    """None, and every descriptor is closed, if there is nothing to take over: the mount has ended, or its
    connection was aborted. A living mount is never given up: RefusedError if it cannot be taken over.

    Touches only /proc: no daemon serves the mount yet.
    """
    device = received.get(DEVICE)
    if device is None or not fuse_device.is_fuse_device(device) or not fuse_device.is_connected(device):
        for fd in received.values():
            os.close(fd)
        if received:
            names = ",".join(sorted(received))
            log_event(log, logging.WARNING, "kept_mount_gone", path=mountpoint, descriptors=names)
        return None
    others = {entry.source for entry in _entries(device, None)} - {name}
    if others:
        raise RefusedError(
            f"{name}: the mount is not taken over: its name is {', '.join(sorted(others))}; "
            "put the former name back, or stop the broker, unmount and mount again"
        )
    try:
        session = inherited_session.read(received)
    except InheritedStateError as error:
        raise not_taken_over(mountpoint, error) from error
    for other in received.keys() - set(STORED):
        os.close(received[other])
    return _locate(mountpoint, name, session)


def not_taken_over(mountpoint: str, error: InheritedStateError) -> RefusedError:
    """The error of a process that leaves the mount to another one."""
    return RefusedError(f"{mountpoint}: the mount is not taken over: {error}; {error.remedy}")


def _locate(mountpoint: str, name: str, session: InheritedSession) -> InheritedMount:
    """At `mountpoint` if it is there, even with another mount above it; otherwise where it is visible, because its
    directory has been moved or the configuration has changed."""
    entries = _entries(session.device, name)
    configured = mountinfo.resolve_path(mountpoint)
    if not entries:
        return InheritedMount(session, mountpoint, fuse_device.mount_device(session.device))
    here = [entry for entry in entries if entry.mountpoint == configured]
    if here:
        return InheritedMount(session, mountpoint, here[-1].device)
    entry = entries[-1]
    log_event(log, logging.WARNING, "mounted_elsewhere", path=entry.mountpoint, configured=mountpoint)
    return InheritedMount(session, entry.mountpoint, entry.device)


def _entries(device: int, name: str | None) -> list[mountinfo.MountEntry]:
    """Every place where the connection's mount is visible; on kernels that do not show which mount that is, all of
    this name (none without a name)."""
    number = fuse_device.mount_device(device)
    return [
        entry
        for entry in mountinfo.read_mounts()
        if mountinfo.is_commitlogfs(entry)
        and entry.root == "/"  # otherwise a bind mount of one file
        and (entry.source == name if number is None else entry.device == number)
    ]
