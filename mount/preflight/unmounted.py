"""Work on the disks of a pool that is not mounted."""

import contextlib
from collections.abc import Iterator

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import runtime_directory
from commitlogfs.mount.location.name_lock import hold_name, is_of_this_directory, release_file


@contextlib.contextmanager
def kept_unmounted(config: Config, why_not_mounted: str) -> Iterator[None]:
    """No daemon mounts the pool meanwhile. Raises RefusedError, which gives the reason, if it is mounted, with or
    without a daemon."""
    name = config.name
    lock_fd = hold_name(name)
    try:
        if _is_mounted(config):
            raise RefusedError(f"{name}: is mounted, {why_not_mounted}; unmount it first")
        yield
    finally:
        release_file(runtime_directory.lock_path(name), lock_fd, name)


def _is_mounted(config: Config) -> bool:
    """Whether there is a mount of the pool, served or not: its users may have removed files open."""
    at_mountpoint = mountinfo.find_mount(config.mountpoint)
    if at_mountpoint is not None and mountinfo.is_commitlogfs(at_mountpoint):
        return True
    return any(entry.source == config.name and is_of_this_directory(entry) for entry in mountinfo.read_mounts())
