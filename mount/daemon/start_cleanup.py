"""Clean-up of the disks at a start, logged: at once for a fresh mount, in the background after a takeover."""

import logging

from commitlogfs.store.events import log_event
from commitlogfs.store.pool.open import Pool, finish_renames, reserve_newest, sweep

log = logging.getLogger(__name__)


def clean_up(pool: Pool) -> None:
    """Called before anything is served. Raises PoolError, OSError as store.pool.open does."""
    _report(sweep(pool), reserve_newest(pool))


def clean_up_after_takeover(pool: Pool) -> None:
    """Does later what a fresh mount does first: here requests wait, and a disk may hang."""
    _report(finish_renames(pool), reserve_newest(pool))


def _report(swept: list[str], reserved: list[str]) -> None:
    for line in swept:
        log_event(log, logging.INFO, "swept", text=line)
    for line in reserved:
        log_event(log, logging.INFO, "reserved", text=line)
