"""Removals, by rule or for a caller of the mount: durable before the answer.

A file that is in use is retired instead of unlinked, so that its users can read it until their last close.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

import trio

from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import nlink_of
from commitlogfs.store.files.remove import Reason
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import LEFT_OVER, CommitLog, Removal

log = logging.getLogger(__name__)


class MovedSegments(Protocol):
    """Moves between disks, as far as they concern the removal of a segment (fusefs.moves.sources)."""

    async def prepare_removal(self, removal: Removal) -> None:
        """Called before, under the lock of all names. Raises DiskError, OSError; then nothing is removed."""
        ...

    async def complete_removal(self, removal: Removal) -> None:
        """Called when the segment has left the log. Raises nothing."""
        ...


class Removals:
    """Carries out removals."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        changes: NameChanges,
        handles: Handles,
        to_free: Reminders,
        invalidate_entry: Callable[[bytes, int], None],
        moved: MovedSegments,
        record_removals: Callable[[], Awaitable[None]],
        record_refused: Callable[[Removal, Exception], None],
        shown_percent: Callable[[], int],
        observer: Observer,
    ) -> None:
        """`record_refused` is called with each removal that has failed, also when nobody waits for it any more.
        `to_free` is reminded of files that left the log while open. `invalidate_entry` makes the kernel drop a
        name and its inode; it does not block. `record_removals`: as of MemberRecords. `shown_percent` is the fill
        level that statfs shows, by which a broker decides what it removes."""
        self._commitlog = commitlog
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._to_free = to_free
        self._invalidate_entry = invalidate_entry
        self._moved = moved
        self._record_removals = record_removals
        self._record_refused = record_refused
        self._shown_percent = shown_percent
        self._observer = observer

    async def unlink(self, name: bytes) -> None:
        """Remove a segment or temporary for a caller of the mount. Raises SegmentNotFoundError, and as
        `carry_out`."""
        async with self._changes.lock:
            removal = self._commitlog.plan_remove(name)
            for left_over in await self._find_left_over(removal):
                await self.carry_out(left_over)
            await self.carry_out(replace(removal, why=f"statfs shows {self._shown_percent()} % used"))

    async def record_found_removed(self, name: bytes) -> None:
        """The caller of the mount has asked a former daemon for this removal, and no disk has the file.

        Raises DiskFailedError if the file may come back: the former daemon may have died before it removed it.
        """
        self._commitlog.record_found_removed(name)
        await self._record_removals()
        if self._commitlog.may_come_back(name):
            disks, shown = ", ".join(self._commitlog.missing), name.decode(errors="backslashreplace")
            raise DiskFailedError(disks, f"missing, and may hold {shown}; remove it again when the disk is back")

    async def _find_left_over(self, removal: Removal) -> list[Removal]:
        """Removals of the segments before this one, if all of them were restored and never opened for writing: the
        broker that removes this segment as its oldest does not know them, and they would begin the log before a
        gap. They are removed first, so that a crash leaves none of them behind."""
        found: list[Removal] = []
        if removal.file.role is not Role.SEGMENT:
            return found
        why = f"restored, unknown to the broker, and before {removal.file.name.decode()}, which it removes"
        for index in itertools.count():
            file = self._commitlog.catalog.at(index)
            if file.base_offset >= removal.file.base_offset:
                break
            try:
                if not await self._disks[file.disk].is_restored(file.name, file.ino):
                    return []
            except (DiskError, OSError):  # a removal does not depend on another disk
                return []
            found.append(Removal(file, LEFT_OVER, why))
        return found

    async def carry_out(self, removal: Removal) -> None:
        """Remove a file; durable when it returns. The caller holds the lock of all names, and has decided under it.

        Raises DiskError, OSError; DiskFailedError after RequestTiming.remove_s, when the removal continues by
        itself.
        """
        self._changes.assert_locked()
        file = removal.file
        disk, name, inode = self._disks[file.disk], file.name, int(inodes.encode(file))
        self._changes.require_at_rest(disk, name)
        await self._moved.prepare_removal(removal)
        await trio.lowlevel.checkpoint_if_cancelled()  # what begins now cannot be taken back
        is_late = False

        def leave_the_log() -> None:
            nonlocal is_late
            is_late = True
            self._commitlog.record_leaving(removal)

        async def work() -> None:
            await self._remove(removal, disk)
            if is_late or removal.is_forced:
                # The kernel knows nothing of a removal by rule, and that a late one has failed. It would keep the
                # name, and with it the file.
                self._invalidate_entry(name, inode)

        deadline_s = self._commitlog.timing.requests.remove_s
        await self._changes.finish(disk, "unlink", (name,), work, deadline_s, leave_the_log)
        await self._record_removals()

    async def _remove(self, removal: Removal, disk: DiskFiles) -> None:
        """Remove a file from its disk, however long it takes."""
        file, name = removal.file, removal.file.name
        is_segment = file.role is Role.SEGMENT  # not any more, once it is retired
        started = self._commitlog.clock.monotonic()
        try:
            async with self._handles.first_opens_held(file):
                if await self._handles.is_in_use(file):
                    await self._retire(removal, disk)
                else:
                    self._commitlog.record_removed(removal, await disk.unlink(name, file.ino))
        except Exception as error:
            self._commitlog.record_stayed(removal)
            self._record_refused(removal, error)
            log_event(log, logging.WARNING, "remove_failed", segment=name, disk=disk.path, reason=str(error))
            if file.role is Role.SEGMENT:
                self._observer.decisions.removal_failed(name, disk.path, str(error))
            raise
        if is_segment:
            self._observer.segment_removed(disk.path, self._commitlog.clock.monotonic() - started)
            self._observer.decisions.removed(name, disk.path, removal.reason, removal.why)
        self._changes.record(disk.number)
        await self._moved.complete_removal(removal)
        level = logging.WARNING if removal.is_forced else logging.INFO
        log_event(log, level, "removed", segment=name, disk=disk.path, reason=removal.reason, why=removal.why)

    async def _retire(self, removal: Removal, disk: DiskFiles) -> None:
        """Take a file that is in use out of the log; it lives until its last close."""
        file, name = removal.file, removal.file.name
        reason = Reason.FORCED if removal.is_forced else Reason.REMOVED
        retired = await disk.retire(name, file.ino, reason)
        self._commitlog.record_retired(removal, retired.name)
        if retired.vanished:
            await self._record_vanished(file, disk, name)
        self._to_free.remind(disk.number)  # its last close may have come meanwhile

    async def _record_vanished(self, file: Segment, disk: DiskFiles, name: bytes) -> None:
        """Another process has removed or moved an open file on the disk itself: if the file has another name, its
        last close frees nothing."""
        links = 1
        if self._handles.is_open(file):
            async with self._handles.use(inodes.encode(file)) as handle:
                links = nlink_of(await disk.stat_open(handle.fd))
        if links:
            self._commitlog.others.record_kept(file)
        log_event(log, logging.WARNING, "vanished", segment=name, disk=disk.path, links=links)
