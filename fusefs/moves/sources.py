"""Sources of moves: the files that segments were copied from, until nobody has them open.

A broker keeps every segment open and mapped, and never opens one again. So the source of a move is set aside like a
removed segment, and freed when the broker has closed it. Until then it may be needed once more
(store/moves/putting_back.py).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.files.remove import Reason
from commitlogfs.store.moves.mark import source_of
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog, Removal

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 5.0
"""Time between two attempts to remove a source whose disk has refused."""


class Sources:
    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        changes: NameChanges,
        handles: Handles,
        backing: Backing,
        to_free: Reminders,
        invalidate_entry: Callable[[bytes, int], None],
    ) -> None:
        """`to_free`, `invalidate_entry`: as for fusefs.files.removal."""
        self._commitlog = commitlog
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._backing = backing
        self._to_free = to_free
        self._invalidate_entry = invalidate_entry
        self._moved = Reminders(commitlog.disks)
        self._changed_ns: dict[tuple[DiskNumber, int], int] = {}
        """When sources that are open were last changed, as of their moves."""
        self.written_to: set[tuple[DiskNumber, int]] = set()
        """Segments that were put back, by disk and inode: a process appends to them, so they stay."""

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        async with trio.open_nursery() as nursery:
            for number in self._disks:
                nursery.start_soon(self._run_for, number)

    async def finish(self) -> None:
        """Let go of what is left, at the end of the daemon."""
        for number in self._disks:
            await self._let_go_of_all(number)

    def remind(self, disk: DiskNumber) -> None:
        """A segment was moved from a disk."""
        self._moved.remind(disk)

    # --- removals of segments that were moved --------------------------------------------------------

    async def prepare_removal(self, removal: Removal) -> None:
        """A source that still has its segment's name would be the segment after the next start, so it goes first.

        If a caller of the mount removes the segment after a moved one, it may be cutting the log: the moved one is
        put back.
        """
        if removal.file.role is not Role.SEGMENT:
            return
        for source in self._commitlog.others.sources(removal.file.base_offset):
            if source.role is Role.MOVED:
                await self._let_go(source)
        if removal.is_forced:
            return
        before = self._commitlog.catalog.get(removal.file.base_offset - self._commitlog.segment_size)
        if before is not None:
            for source in self._commitlog.others.sources(before.base_offset):
                await self._put_back_if_open(source, "a process that has it open removes the segment after it")

    async def complete_removal(self, removal: Removal) -> None:
        """A source of the removed segment that is still open is an ordinary removed file from now on."""
        if removal.file.role is Role.TEMPORARY:
            return
        reason = Reason.FORCED if removal.is_forced else Reason.REMOVED
        for source in self._commitlog.others.sources(removal.file.base_offset):
            try:
                source.placed_as = await self._disks[source.disk].change_reason(source.placed_as, reason)
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "source_not_renamed", segment=source.name, reason=str(error))

    # --- letting go ----------------------------------------------------------------------------------

    async def _run_for(self, number: DiskNumber) -> None:
        while True:
            await self._let_go_of_all(number)
            await self._put_back_changed(number)
            await self._moved.wait(number, CHECK_INTERVAL_S)

    async def _let_go_of_all(self, number: DiskNumber) -> None:
        disk = self._commitlog.disks[number]
        for source in self._commitlog.others.moved(number):
            if source.role is not Role.MOVED or disk.state is not DiskState.RW or disk.is_troubled:
                continue
            try:
                await self._let_go(source)
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "source_not_removed", segment=source.name, reason=str(error))

    async def _let_go(self, source: Segment) -> None:
        """Remove a source, or set it aside while it is open; durable. Raises DiskError, OSError."""
        disk, name = self._disks[source.disk], source.name
        async with self._handles.first_opens_held(source):
            if source.role is not Role.MOVED:
                return
            if await self._handles.is_in_use(source):
                retired = await disk.retire(name, source.ino, Reason.MOVED)
                self._commitlog.record_source_retired(source, retired.name)
                self._to_free.remind(source.disk)
            else:
                self._backing.record_gone(source)  # before the unlink: a backing id keeps the space of its file
                self._commitlog.record_freed(source, await disk.unlink(name, source.ino))
        copy = self._commitlog.catalog.get(source.base_offset)
        if copy is not None:
            await self._remove_mark(copy)

    async def _remove_mark(self, copy: Segment) -> None:
        try:
            await self._disks[copy.disk].remove_mark(copy.name, copy.ino)
        except (DiskError, OSError) as error:
            log_event(log, logging.DEBUG, "mark_not_removed", segment=copy.name, reason=str(error))

    # --- putting back --------------------------------------------------------------------------------

    async def _put_back_changed(self, number: DiskNumber) -> None:
        """For a process that has written to a source since its segment was moved. Found by the time of the last
        change, which a store to a mapping sets, too."""
        for source in self._commitlog.others.moved(number):
            copy = self._commitlog.catalog.get(source.base_offset)
            if source.role is not Role.RETIRED or copy is None:
                continue
            known_ns = self._changed_ns.setdefault((number, source.ino), unpack(copy.attributes).mtime_ns)
            seen = await self._disks[number].stat(source.path)
            if seen is None or unpack(seen).mtime_ns == known_ns:
                continue
            try:
                async with self._changes.lock:
                    await self._put_back_if_open(source, "a process that has it open has written to it")
            except (DiskError, OSError):
                continue  # logged; the next round tries again

    async def _put_back_if_open(self, source: Segment, reason: str) -> None:
        """Undo a move if a process has its source open. The caller holds the lock of all names. Raises DiskError,
        OSError; DiskFailedError if it cannot be undone."""
        copy = self._commitlog.catalog.get(source.base_offset)
        if source.role is Role.MOVED:
            await self._let_go(source)
        if copy is None or self._commitlog.others.get(source.disk, source.ino) is not source:
            return  # nobody has it open
        disk, where = self._disks[source.disk], self._disks[copy.disk]
        self._changes.require_at_rest(disk, copy.name)
        mark = source_of(copy.disk, unpack(copy.attributes))
        async with self._handles.first_opens_held(source), self._handles.first_opens_held(copy):
            try:
                await where.remove_mark(copy.name, copy.ino)
                attributes = await disk.put_back(source, mark)
            except (DiskError, OSError) as error:
                log_event(log, logging.ERROR, "not_put_back", segment=copy.name, reason=str(error))
                raise DiskFailedError(
                    disk.path, f"{copy.name.decode()}: was moved, and cannot be put back ({error})"
                ) from error
            self._commitlog.record_put_back(copy, source, attributes)
        self._changed_ns.pop((source.disk, source.ino), None)
        self.written_to.add((source.disk, source.ino))
        self._invalidate_entry(source.name, 0)
        self._moved.remind(copy.disk)
        log_event(log, logging.WARNING, "put_back", segment=source.name, disk=disk.path, reason=reason)
