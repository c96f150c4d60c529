"""The list of members on the disks: each disk records the newest generation as soon as it can.

A disk that cannot be written is tried again, and learns the list when it is well. A disk that joins is the last to
record it: were it the first, and lost before the others knew of it, nothing would tell that it had ever held
segments.
"""

import logging
from functools import partial

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import Cordon, Membership
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool import joining
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


class MemberRecords:
    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self._commitlog = commitlog
        self._timing = commitlog.timing.members
        self._threads = threads
        self.changing = trio.Lock()
        """Held from the decision about a change of the list until that has taken effect."""
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

    async def cordon(self, disk: Disk, cordon: Cordon) -> bool:
        """Keep new segments away from a disk until an operator lifts that. False, and nothing has changed, if it is
        kept away from already, or if no other disk takes segments."""
        async with self.changing:
            is_open = disk.intended_state in (DiskState.RW, DiskState.VANISHED)
            if not is_open or not self._commitlog.others_take_segments(disk):
                return False
            membership = self._commitlog.membership.cordoned(disk.number, cordon)
            if not self._is_recordable(membership):
                return False
            await self.change(membership, 0.0)
        return True

    async def change_reason(self, disk: Disk, former: str, reason: str) -> None:
        """Give the cordon of a disk another reason, if it has the former one."""
        async with self.changing:
            if disk.cordon is None or disk.cordon.reason != former:
                return
            membership = self._commitlog.membership.cordoned(disk.number, Cordon(disk.cordon.since_s, reason))
            if self._is_recordable(membership):
                await self.change(membership, 0.0)

    async def record_removals(self) -> None:
        """Called after a removal, before that is answered: if a disk is away that may have segments which are not
        part of the log any more, returns when a disk has recorded so, or after `record_s`."""
        if not self._commitlog.missing:
            return
        with trio.move_on_after(self._timing.record_s):
            async with self.changing:
                await self._record_log()
            await self.finish()

    async def finish(self) -> None:
        """Returns when one disk has recorded the present list, or none can: a later daemon completes the others."""
        generation = self._commitlog.membership.generation
        while generation not in self._commitlog.recorded.values() and self._writable_lagging():
            await self._changed.wait()

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_log)
            for disk in self._commitlog.disks.values():
                nursery.start_soon(self._serve, disk)

    async def _follow_log(self) -> None:
        """Record what the log itself changes: lost segments that are there again, and what was removed while a disk
        is away."""
        while True:
            async with self.changing:
                is_recorded = await self._record_log()
            await trio.sleep(self._timing.compare_s if is_recorded else self._timing.retry_s)

    async def _record_log(self) -> bool:
        """Let the disks record what the log has changed; False if the list of members has no room for that."""
        membership = self._commitlog.follow_log()
        if membership is not self._commitlog.membership:
            if not self._is_recordable(membership):
                return False
            await self.change(membership, 0.0)
        return True

    def _is_recordable(self, membership: Membership) -> bool:
        try:
            self._commitlog.require_recordable(membership)
        except PoolError as error:
            log_event(log, logging.WARNING, "log_not_recorded", reason=str(error))
            return False
        return True

    async def _serve(self, disk: Disk) -> None:
        while True:
            changed = self._changed
            if not self._is_due(disk):
                await changed.wait()
            elif not await self._record(disk):
                with trio.move_on_after(self._timing.retry_s):
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
