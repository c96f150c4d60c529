"""The list of members on the disks: each disk records the newest generation as soon as it can.

A disk that cannot be written is tried again, and learns the list when it is well. A disk that joins is the last to
record it: were it the first, and lost before the others knew of it, nothing would tell that it had ever held
segments.
"""

import logging
from functools import partial
from typing import Final

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import Membership
from commitlogfs.store.events import log_event
from commitlogfs.store.pool import joining
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

RETRY_S: Final = 30.0


class MemberRecords:
    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self._commitlog = commitlog
        self._threads = threads
        self._changed = trio.Event()
        """Set, and replaced, when the list or a disk's record of it has changed."""

    async def change(self, membership: Membership, patience_s: float) -> list[Disk]:
        """Let a new list of the same disks take effect, and every disk record it. Returns the disks that have not
        recorded it after `patience_s`; they do so later."""
        self._commitlog.record_membership(membership)
        self._announce()
        with trio.move_on_after(patience_s):
            while self._writable_lagging():
                await self._changed.wait()
        return self._commitlog.lagging()

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        async with trio.open_nursery() as nursery:
            for disk in self._commitlog.disks.values():
                nursery.start_soon(self._serve, disk)

    async def _serve(self, disk: Disk) -> None:
        while True:
            changed = self._changed
            if not self._is_due(disk):
                await changed.wait()
            elif not await self._record(disk):
                with trio.move_on_after(RETRY_S):
                    await changed.wait()

    def _is_due(self, disk: Disk) -> bool:
        generation = self._commitlog.membership.generation
        if disk.state is not DiskState.RW or self._commitlog.is_given_up(disk):
            return False
        if self._commitlog.recorded[disk.number] == generation:
            return False
        others = (number for number, known in self._commitlog.recorded.items() if known == generation)
        return not disk.is_joining or any(number != disk.number for number in others)

    def _writable_lagging(self) -> list[Disk]:
        return [disk for disk in self._commitlog.lagging() if disk.state is DiskState.RW]

    async def _record(self, disk: Disk) -> bool:
        """Write the present list to one disk; False if that has failed."""
        own, generation = self._commitlog.identity_of(disk), self._commitlog.membership.generation
        if disk.is_joining:
            newest = self._commitlog.names.newest
            work = partial(joining.complete, disk.dirfd, own, self._commitlog.root, newest)
        else:
            work = partial(identity.write_identity, disk.dirfd, own)
        try:
            await self._threads.run(disk.number, work)
        except OSError as error:
            reason = error.strerror
            log_event(log, logging.WARNING, "members_not_recorded", disk=disk.path, reason=reason)
            return False
        log_event(log, logging.DEBUG, "members_recorded", disk=disk.path, generation=generation)
        if disk.is_joining:
            log_event(log, logging.INFO, "disk_joined", disk=disk.path, number=disk.number)
        self._commitlog.record_members_recorded(disk.number, generation)
        self._announce()
        return True

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
