"""What a start tidies on the disks, and tells: at once for a fresh mount, in the background after a takeover."""

import logging

from commitlogfs.store.events import log_event
from commitlogfs.store.pool.open import Pool, finish_renames, reserve_newest, sweep

log = logging.getLogger(__name__)


def clean_up(pool: Pool) -> None:
    """Before anything is served. Raises PoolError, OSError as store.pool.open does."""
    _tell(sweep(pool), reserve_newest(pool))


def clean_up_after_takeover(pool: Pool) -> None:
    """What a fresh mount does before it serves: here somebody is waiting, and a disk may hang."""
    _tell(finish_renames(pool), reserve_newest(pool))


def _tell(swept: list[str], reserved: list[str]) -> None:
    for line in swept:
        log_event(log, logging.INFO, "swept", text=line)
    for line in reserved:
        log_event(log, logging.INFO, "reserved", text=line)
