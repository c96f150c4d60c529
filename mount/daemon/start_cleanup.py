"""Clean-up of the disks, logged: at once for a fresh mount, in the background after a takeover, and at the end."""

import logging

from commitlogfs.store.events import log_event
from commitlogfs.store.pool.open import Pool, finish_renames, free_retired, reserve_newest, sweep

log = logging.getLogger(__name__)


def clean_up(pool: Pool) -> None:
    """Called before anything is served. Raises PoolError, OSError as store.pool.open does."""
    _report(sweep(pool), reserve_newest(pool))


def clean_up_after_takeover(pool: Pool) -> None:
    """Does later what a fresh mount does first: here requests wait, and a disk may hang."""
    _report(finish_renames(pool), reserve_newest(pool))


def clean_up_after_unmount(pool: Pool) -> None:
    """Called when nobody has a file open any more: a native broker may be the next to use the disks."""
    _report(free_retired(pool), [])


def _report(swept: list[str], reserved: list[str]) -> None:
    for line in swept:
        log_event(log, logging.INFO, "swept", text=line)
    for line in reserved:
        log_event(log, logging.INFO, "reserved", text=line)
