"""Work after a reply, for each disk: make new names, new sizes and the record of the newest segment durable."""

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store import layout
from commitlogfs.store.disks import health, identity
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.events import log_event
from commitlogfs.store.files import durable
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


class BackgroundSync:
    """Syncs the directories whose names have changed, and updates every disk's record of the newest segment.

    A create does not wait for this: that would cost tens of milliseconds beside a syncing appender. A power cut may
    therefore undo the create, and for the broker the segment was never made. But two disks commit in any order, and
    a segment without the one before it is a gap. So the next create waits until the segment before it is
    `committed`, which is nearly always the case a whole segment later.

    The records on the other disks are not synced: their journals commit them within seconds. A record that lags is
    harmless, because the newest segment is made a whole segment before it holds data.
    """

    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self._commitlog = commitlog
        self._threads = threads
        self._requested = {number: trio.Event() for number in commitlog.disks}
        self._to_sync: set[DiskNumber] = set()
        self._syncing = {number: trio.Lock() for number in commitlog.disks}
        self._sizes: dict[DiskNumber, set[trio.Event]] = {number: set() for number in commitlog.disks}
        self._recorded: dict[DiskNumber, bytes] = {}

    def request(self, changed: DiskNumber | None) -> None:
        """Sync the disk `changed`, whose names have changed, and update every disk's record. Requests coalesce.

        With None only the records are updated.
        """
        if changed is not None:
            self._to_sync.add(changed)
        for event in self._requested.values():
            event.set()

    def sync_size(self, number: DiskNumber, work: Callable[[], Awaitable[None]]) -> None:
        """Make a file's new size durable by `work`, which raises nothing. A broker syncs with its first message
        only."""
        ended = trio.Event()
        self._sizes[number].add(ended)
        trio.lowlevel.spawn_system_task(self._sync_size, number, work, ended)

    async def _sync_size(self, number: DiskNumber, work: Callable[[], Awaitable[None]], ended: trio.Event) -> None:
        try:
            await work()
        finally:
            self._sizes[number].discard(ended)
            ended.set()

    async def committed(self, number: DiskNumber) -> None:
        """Wait until names and sizes of a disk's files are durable, or the attempt has failed.

        The wait may be cancelled if the disk hangs: the work continues in a task of its own.
        """
        if number in self._to_sync or self._syncing[number].locked():
            await AbandonableWork(partial(self._sync, number)).wait()
        for ended in tuple(self._sizes[number]):
            await ended.wait()

    async def run(self) -> None:
        """Serve requests until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in self._commitlog.disks:
                nursery.start_soon(self._serve, number)

    async def drain(self) -> None:
        """Serve the requests that are left, at the end of the daemon."""
        for number, event in self._requested.items():
            if event.is_set():
                await self._sync(number)

    async def _serve(self, number: DiskNumber) -> None:
        while True:
            await self._requested[number].wait()
            self._requested[number] = trio.Event()
            await self._sync(number)

    async def _sync(self, number: DiskNumber) -> None:
        async with self._syncing[number]:
            await self._sync_now(number)

    async def _sync_now(self, number: DiskNumber) -> None:
        disk = self._commitlog.disks[number]
        if disk.state is not DiskState.RW:
            return
        record = identity.format_newest(self._commitlog.names.newest)
        dirfd, sync = disk.dirfd, number in self._to_sync
        self._to_sync.discard(number)
        if not sync and self._recorded.get(number) == record:
            return  # the change was on another disk and did not change the record
        if not sync and disk.is_unresponsive:
            return  # it lags until the next change after the disk has answered; a thread would hold the daemon

        def work() -> None:
            try:
                os.setxattr(dirfd, layout.XATTR_NEWEST, record)
            finally:
                if sync:
                    durable.sync_dir(dirfd)

        try:
            await self._threads.run(number, work)
        except OSError as error:
            if sync:
                self._to_sync.add(number)  # until it succeeds
            failure = DiskFailedError(disk.path, f"sync: {error.strerror}")
            health.record_error(disk, failure, self._commitlog.clock.monotonic(), self._commitlog.timing.health)
            log_event(log, logging.WARNING, "sync_failed", disk=disk.path, errno=error.errno)
        else:
            self._recorded[number] = record
