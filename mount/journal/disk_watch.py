"""Notices when the state of a disk changes, or whether it gets new segments."""

import logging

import trio

from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.mount.journal.recorder import Journal
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


async def watch_disks(commitlog: CommitLog, usage: UsageMonitor, journal: Journal) -> None:
    """Until cancelled."""
    timing = commitlog.timing.daemon
    while True:
        await usage.refresh(timing.journal_usage_age_s)
        try:
            record_disks(commitlog, journal)
        except Exception as error:
            # A defect in a report must not end the service.
            log_event(log, logging.ERROR, "journal_failed", exc_info=error)
        await trio.sleep(timing.journal_s)


def record_disks(commitlog: CommitLog, journal: Journal) -> None:
    """Record each disk whose state differs from the one recorded before."""
    now_s = commitlog.clock.monotonic()
    for disk, standing in zip(commitlog.disks.values(), commitlog.admission.standings(now_s), strict=True):
        journal.disk_seen(disk.reported_state.value, standing)
