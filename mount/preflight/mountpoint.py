"""The directory to mount at: whether a mount may be made there."""

import logging
import os
from typing import Final

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.linux import fuse_device, mountinfo
from commitlogfs.mount.linux.probe import probe_mount
from commitlogfs.mount.linux.unmount import unmount
from commitlogfs.mount.location import guard
from commitlogfs.mount.location.guard import BareState
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

_PROBE_TIMEOUT_S: Final = 10.0
_FUSE_DEVICE: Final = "/dev/fuse"


def check_mountpoint(config: Config) -> None:
    """Refuse anything but an absent, empty or guarded directory; unmount one dead commitlogfs there.

    Raises RefusedError.
    """
    path = config.mountpoint
    _require_fuse_device()
    if is_ours(path):
        answer = probe_mount(path, _PROBE_TIMEOUT_S)
        if answer.ok:
            raise RefusedError(f"{path}: a commitlogfs is mounted here already; see `commitlogfs status`")
        if not answer.dead:
            raise RefusedError(
                f"{path}: a commitlogfs is mounted here and may answer again ({answer.reason}); "
                "end its daemon, or unmount it"
            )
        log_event(log, logging.WARNING, "dead_mount_found", path=path)
        unmount(path)
    try:
        bare = guard.check_bare(path)
        if bare.state not in (BareState.ABSENT, BareState.EMPTY, BareState.GUARDED):
            raise RefusedError(bare.message)
        configured_pool.require_separate(config)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def is_ours(path: str) -> bool:
    """Whether a commitlogfs is mounted there, dead or alive."""
    entry = mountinfo.find_mount(path)
    return entry is not None and mountinfo.is_commitlogfs(entry)


def _require_fuse_device() -> None:
    """Raises RefusedError where no filesystem can be served at all."""
    try:
        fd = os.open(_FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        reason = error.strerror
    else:
        with os.fdopen(fd, "rb", buffering=0):
            if fuse_device.is_fuse_device(fd):
                return
        reason = "not the FUSE device"
    raise RefusedError(
        f"{_FUSE_DEVICE}: {reason}; load the module (modprobe fuse), or give this user or container access to it"
    )
