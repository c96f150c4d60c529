"""`commitlogfs check --repair`: finish or undo what a crash has left half done on the disks of a pool that is not
mounted."""

import contextlib

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.daemon.start_cleanup import clean_up_unmounted
from commitlogfs.mount.preflight.configured_pool import configured_segment_size, disk_specs, on_missing, refusal
from commitlogfs.mount.preflight.unmounted import kept_unmounted
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool.open import PoolRefusedError, open_pool, require_mountable


def repair(config: Config, *, dry_run: bool) -> list[str]:
    """One line for each file. Raises RefusedError if the pool is mounted, with or without a daemon, or if a mount
    would be refused; then nothing has changed."""
    name = config.name
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_unmounted(config, "and its daemon repairs the pool"))
        try:
            pool = open_pool(disk_specs(config), configured_segment_size(config))
            stack.callback(pool.close)
            require_mountable(pool, on_missing(config))
            return clean_up_unmounted(pool, dry_run=dry_run)
        except PoolRefusedError as error:
            raise refusal(error, name) from error
        except PoolError as error:
            raise RefusedError(f"{name}: cannot be repaired: {error}") from error
