"""`commitlogfs check --repair`: finish or undo what a crash has left half done on the disks of a pool that is not
mounted."""

import contextlib

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.daemon.start_cleanup import clean_up_unmounted
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import runtime_directory
from commitlogfs.mount.location.name_lock import hold_name, is_of_this_directory, release_file
from commitlogfs.mount.preflight.configured_pool import configured_segment_size, disk_specs, on_missing, refusal
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool.open import PoolRefusedError, open_pool, require_mountable


def repair(config: Config, *, dry_run: bool) -> list[str]:
    """One line for each file. Raises RefusedError if the pool is mounted, with or without a daemon, or if a mount
    would be refused; then nothing has changed."""
    name = config.name
    with contextlib.ExitStack() as stack:
        lock_fd = hold_name(name)
        stack.callback(release_file, runtime_directory.lock_path(name), lock_fd, name)
        if _is_mounted(config):
            raise RefusedError(f"{name}: is mounted, and its daemon repairs the pool; unmount it first")
        try:
            pool = open_pool(disk_specs(config), configured_segment_size(config))
            stack.callback(pool.close)
            require_mountable(pool, on_missing(config))
            return clean_up_unmounted(pool, dry_run=dry_run)
        except PoolRefusedError as error:
            raise refusal(error, name) from error
        except PoolError as error:
            raise RefusedError(f"{name}: cannot be repaired: {error}") from error


def _is_mounted(config: Config) -> bool:
    """Whether there is a mount of the pool, served or not: its users may have removed files open."""
    at_mountpoint = mountinfo.find_mount(config.mountpoint)
    if at_mountpoint is not None and mountinfo.is_commitlogfs(at_mountpoint):
        return True
    return any(entry.source == config.name and is_of_this_directory(entry) for entry in mountinfo.read_mounts())
