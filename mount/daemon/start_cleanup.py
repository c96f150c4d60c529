"""Clean-up of the disks, logged: at once for a fresh mount, in the background after a takeover, and at the end; or
without a mount, for `commitlogfs check --repair`."""

import logging

from commitlogfs.store.events import log_event
from commitlogfs.store.pool.open import (
    Pool,
    finish_moves,
    finish_renames,
    free_retired,
    remove_leftovers,
    reserve_newest,
    sweep,
)

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


def clean_up_unmounted(pool: Pool, *, dry_run: bool) -> list[str]:
    """Do what a mount does at its start and, for moves and leftovers, soon afterwards. The pool is locked, and a
    mount would not be refused. Returns one line for each file. A `dry_run` changes nothing."""
    swept = sweep(pool, dry_run=dry_run)
    return swept + finish_moves(pool, dry_run=dry_run) + remove_leftovers(pool, dry_run=dry_run)


def _report(swept: list[str], reserved: list[str]) -> None:
    for line in swept:
        log_event(log, logging.INFO, "swept", text=line)
    for line in reserved:
        log_event(log, logging.INFO, "reserved", text=line)
