"""Work that follows a reply: committing new names and sizes and the record of the newest segment, per disk."""

import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store import layout
from commitlogfs.store.disks import health, identity
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.events import log_event
from commitlogfs.store.files import durable
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


class BackgroundSync:
    """Syncs the folders whose names have changed, and keeps every disk's record of the newest segment.

    Waiting for this in the create itself would cost tens of milliseconds beside a syncing appender; a power
    cut before it may undo the create, which the broker takes for never made. Only one after the other may be
    undone, though: two disks commit in any order, and a successor without its predecessor is a gap. So the
    next create waits until its predecessor is `committed`, which it nearly always is, a whole segment later. The
    records on the other disks are not synced: their journals commit them within seconds, and a record that lags
    behind is harmless, because the newest segment is made a whole segment before it carries data.
    """

    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self._commitlog = commitlog
        self._threads = threads
        self._wanted = {number: trio.Event() for number in commitlog.disks}
        self._to_sync: set[DiskNumber] = set()
        self._syncing = {number: trio.Lock() for number in commitlog.disks}
        self._sizes: dict[DiskNumber, set[trio.Event]] = {number: set() for number in commitlog.disks}
        self._recorded: dict[DiskNumber, bytes] = {}

    def request(self, changed: DiskNumber | None) -> None:
        """Names have changed on a disk: sync it, and bring every disk's record up to date. Requests coalesce.
        None where only the record has to follow."""
        if changed is not None:
            self._to_sync.add(changed)
        for event in self._wanted.values():
            event.set()

    def sync_size(self, number: DiskNumber, work: Callable[[], Awaitable[None]]) -> None:
        """Commit a file's new size, which `work` does; it raises nothing. A broker would do it with its first
        message only."""
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
        """Wait until the names and sizes of a disk's files are durable, as far as it can make them so. May be
        cancelled, on a disk that hangs: the work goes on in a task of its own."""
        if number in self._to_sync or self._syncing[number].locked():
            await AbandonableWork(partial(self._sync, number)).wait(math.inf)
        for ended in tuple(self._sizes[number]):
            await ended.wait()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in self._commitlog.disks:
                nursery.start_soon(self._serve, number)

    async def drain(self) -> None:
        """Do now what was requested: at the end of the daemon."""
        for number, event in self._wanted.items():
            if event.is_set():
                await self._sync(number)

    async def _serve(self, number: DiskNumber) -> None:
        while True:
            await self._wanted[number].wait()
            self._wanted[number] = trio.Event()
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
            return  # an older segment was removed from another disk

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
            health.record_error(disk, DiskFailedError(disk.path, f"sync: {error.strerror}"), time.monotonic())
            log_event(log, logging.WARNING, "sync_failed", disk=disk.path, errno=error.errno)
        else:
            self._recorded[number] = record
