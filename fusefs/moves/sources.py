"""Sources of moves: the files that segments were copied from, until nobody has them open.

A broker keeps every segment open and mapped, and never opens one again. So the source of a move is set aside like a
removed segment, and freed when the broker has closed it. Until then it may be needed once more
(store/moves/putting_back.py).
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import trio

from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.moves.readings import Readings
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskFullError, DiskReadOnlyError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import FileAttributes, mtime_of, unpack
from commitlogfs.store.files.remove import Reason, name_with
from commitlogfs.store.moves.former import Comparison, ContentRecord, compare, lacks_content, may_lack_content
from commitlogfs.store.moves.mark import Source, source_of
from commitlogfs.store.moves.putting_back import Copy
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog, Removal
from commitlogfs.store.pool.other_files import is_set_aside
from commitlogfs.store.segment import format_segment_name

log = logging.getLogger(__name__)


class Known(NamedTuple):
    """When a source and its copy were last changed, as far as that needs no reaction."""

    source_ns: int
    copy_ns: int


class _Compared(NamedTuple):
    """State of knowledge: while it stays the same, so does the outcome of a comparison."""

    copy: Segment
    lacks_checksum: bool
    copy_readings: int
    source_readings: int


class Sources:
    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        changes: NameChanges,
        handles: Handles,
        verdicts: Verdicts,
        readings: Readings,
        to_free: Reminders,
        invalidate_entry: Callable[[bytes, int], None],
    ) -> None:
        """`to_free`, `invalidate_entry`: as for fusefs.files.removal."""
        self._commitlog = commitlog
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._verdicts = verdicts
        self._readings = readings
        self._to_free = to_free
        self._invalidate_entry = invalidate_entry
        self._moved = Reminders(commitlog.disks)
        self._known: dict[tuple[DiskNumber, int], Known] = {}
        """Sources that are open."""
        self._kept: dict[tuple[DiskNumber, int], str] = {}
        """Why sources that still have their names are worth keeping; empty for those that are not."""
        self._to_compare = {(file.disk, file.ino) for file in commitlog.others if file.role is Role.MOVED}
        """Sources whose copies may have become worse since they were verified (store/moves/former.py): those of
        former daemons, and those that could not be removed at once."""
        self._compared: dict[tuple[DiskNumber, int], _Compared] = {}
        """The state of knowledge when sources were last compared."""
        self._retry_at_s: dict[tuple[DiskNumber, int], float] = {}
        """When those that could not be removed are tried again."""
        self._both_changed: set[tuple[DiskNumber, int]] = set()
        self._written_to: dict[tuple[DiskNumber, int], Segment] = {}
        """Segments that were put back, by disk and inode: a process may append to them, so they stay until nobody
        has them open."""

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        async with trio.open_nursery() as nursery:
            for number in self._disks:
                nursery.start_soon(self._run_for, number)

    async def finish(self) -> None:
        """Let go of what is left, at the end of the daemon."""
        for number in self._disks:
            await self._let_go_of_all(number)

    def is_written_to(self, file: Segment) -> bool:
        """Whether a process appends to a segment, as far as a move has found out."""
        return self._written_to.get((file.disk, file.ino)) is file

    def is_unproven(self, file: Segment) -> bool:
        """Whether a checksum of the present content of a segment would not be one of what was sealed, because a
        process appends to it, or because it is to be compared with a former file."""
        return self.is_written_to(file) or any(
            (source.disk, source.ino) in self._to_compare
            and mtime_of(source.attributes) == mtime_of(file.attributes)
            for source in self._commitlog.others.sources(file.base_offset)
        )

    def why_named(self, source: Segment) -> str:
        """Why a source still has its segment's name, which `run` takes away as soon as possible."""
        disk = self._commitlog.disks[source.disk]
        if disk.forbids_writes:
            return "the disk is read-only; make it writable, or give it up"
        if disk.is_troubled:
            return "the disk cannot be written; repair it, or give it up"
        why_kept = self._kept.get((source.disk, source.ino))
        if why_kept:
            return why_kept
        return "is removed in a moment"

    def remind(self, disk: DiskNumber) -> None:
        """A segment was moved from a disk."""
        self._moved.remind(disk)

    async def let_go_now(self, disk: DiskNumber) -> None:
        """Return once each source on a disk has been removed or set aside, if possible. `run` is running."""
        await self._moved.run_round(disk)

    # --- removals of segments that were moved --------------------------------------------------------

    async def prepare_removal(self, removal: Removal) -> None:
        """A source that still has its segment's name would be the segment after the next start, so it goes first.

        If a caller of the mount removes a segment after a moved one, it may be cutting the log: then the moved one
        is put back.
        """
        if removal.file.role is not Role.SEGMENT:
            return
        is_first = removal.file is self._commitlog.catalog.first
        for source in self._commitlog.others.sources(removal.file.base_offset):
            if source.role is Role.MOVED:
                work = partial(self._let_go, source, is_leaving=True)
                await self._finish_if_writable(source, work, may_stay=is_first)
        if removal.is_forced:
            return
        # Whether contiguous or not: a cut removes the oldest of the segments behind it first.
        before = self._commitlog.catalog.predecessor(removal.file.base_offset)
        if before is not None:
            for source in self._commitlog.others.sources(before.base_offset):
                work = partial(self._put_back_if_only_writer, source)
                await self._finish_if_writable(source, work, may_stay=True)

    async def _finish_if_writable(
        self, source: Segment, work: Callable[[], Awaitable[None]], *, may_stay: bool
    ) -> None:
        """On a read-only disk a source may stay: no process can write to it. If its segment was the first of the
        log, it is set aside at the next start (`CommitLog.follow_log`)."""
        disk = self._commitlog.disk_of(source)
        if may_stay and disk.forbids_writes:
            return
        try:
            await self._finish(source, format_segment_name(source.base_offset), work)
        except DiskReadOnlyError:
            disk.is_read_only = True  # the next probe finds out whether it still is
            if not may_stay:
                raise

    async def _finish(self, source: Segment, name: bytes, work: Callable[[], Awaitable[None]]) -> None:
        """For a removal, which holds the lock of all names: it waits for the source's disk for a bounded time."""
        disk = self._disks[source.disk]
        self._changes.require_at_rest(disk, name)
        await self._changes.finish(disk, "unlink", (name,), work, self._commitlog.timing.requests.prepare_s)

    async def complete_removal(self, removal: Removal) -> None:
        """A source of the removed segment that is still open is an ordinary removed file from now on. Nobody waits
        for its disk."""
        if removal.file.role is Role.TEMPORARY:
            return
        reason = Reason.FORCED if removal.is_forced else Reason.REMOVED
        for source in self._commitlog.others.sources(removal.file.base_offset):
            if source.role is Role.MOVED:
                continue  # it still has its name
            trio.lowlevel.spawn_system_task(self._change_reason, source, reason)

    async def clear(self, damaged: Segment) -> None:
        """A file that was set aside is needed no more: it is freed when nobody has it open. Raises DiskError,
        OSError."""
        disk = self._disks[damaged.disk]
        async with self._handles.first_opens_held(damaged):
            if not is_set_aside(damaged):
                return
            try:
                damaged.placed_as = await disk.change_reason(damaged.placed_as, Reason.MOVED)
            except FileNotFoundError:  # deleted on the disk itself
                damaged.placed_as = name_with(damaged.placed_as, Reason.MOVED)
        log_event(log, logging.WARNING, "set_aside_cleared", segment=damaged.name, disk=disk.path)
        self._to_free.remind(damaged.disk)

    async def _change_reason(self, source: Segment, reason: Reason) -> None:
        try:
            async with self._handles.first_opens_held(source):  # it is not freed meanwhile
                if self._commitlog.others.get(source.disk, source.ino) is source:
                    source.placed_as = await self._disks[source.disk].change_reason(source.placed_as, reason)
        except (DiskError, OSError) as error:
            log_event(log, logging.WARNING, "source_not_renamed", segment=source.name, reason=str(error))

    # --- letting go ----------------------------------------------------------------------------------

    async def _run_for(self, number: DiskNumber) -> None:
        while True:
            await self._let_go_of_all(number)
            await self._put_back_changed(number)
            await self._release_closed(number)
            await self._moved.wait(number, self._commitlog.timing.moves.source_s)

    async def _let_go_of_all(self, number: DiskNumber) -> None:
        disk = self._commitlog.disks[number]
        for source in self._commitlog.others.moved(number):
            if source.role is not Role.MOVED:
                continue
            if disk.state is not DiskState.RW or disk.is_troubled:
                self._doubt(source)
                continue
            if self._commitlog.clock.monotonic() < self._retry_at_s.get((source.disk, source.ino), 0.0):
                continue
            is_let_go = False
            try:
                if not await self._is_worth_keeping(source):
                    is_let_go = True
                    await self._let_go(source)
            except (DiskError, OSError) as error:
                if is_let_go:
                    self._compare_again(source)
                log_event(log, logging.WARNING, "source_not_removed", segment=source.name, reason=str(error))

    def _compare_again(self, source: Segment) -> None:
        """A source could not be removed. A pause, because the next attempt reads the copy again."""
        pause_s = self._commitlog.timing.moves.retry_s
        self._retry_at_s[source.disk, source.ino] = self._commitlog.clock.monotonic() + pause_s
        self._doubt(source)

    def _doubt(self, source: Segment) -> None:
        """Until a source can be removed, its copy may become worse than it was found."""
        key, copy = (source.disk, source.ino), self._commitlog.catalog.get(source.base_offset)
        self._to_compare.add(key)
        was_compared = self._compared.pop(key, None) is not None
        if was_compared and copy is not None:  # else another source of this copy may need what was read
            self._readings.forget(copy)

    async def _is_worth_keeping(self, source: Segment) -> bool:
        """Whether the copy may lack what this file has (store/moves/former.py)."""
        copy = self._commitlog.catalog.get(source.base_offset)
        key = source.disk, source.ino
        if copy is not None:
            known = self._what_is_known(source, copy)
            if self._compared.get(key) != known:
                self._kept[key] = await self._why_kept(source, copy)
                self._compared[key] = known
        return bool(self._kept.get(key))

    def _what_is_known(self, source: Segment, copy: Segment) -> _Compared:
        lacks_checksum = copy.base_offset in self._commitlog.catalog.without_checksum(copy.disk)
        return _Compared(copy, lacks_checksum, self._readings.count(copy), self._readings.count(source))

    async def _why_kept(self, source: Segment, copy: Segment) -> str:
        itself = source_of(source.disk, unpack(source.attributes))
        of_copy = await self._disks[copy.disk].content_record(copy.name)
        is_compared = (source.disk, source.ino) in self._to_compare and not await self._is_damaged(source)
        if not is_compared and not may_lack_content(of_copy, itself):
            return ""
        of_source = await self._disks[source.disk].content_record(source.name)
        if lacks_content(of_copy, of_source, itself):
            if of_copy.unreadable:
                return "the copy lacks what could not be read there; give that disk up"
            return self._may_differ(copy)
        return self._compare(source, copy, of_source, of_copy) if is_compared else ""

    def _may_differ(self, copy: Segment) -> str:
        where = self._disks[copy.disk].path
        return (
            f"it may differ from the copy on {where}. Compare the two: if the copy is right, move this file away "
            "and run `commitlogfs restart`, else unmount and move the copy away"
        )

    def _compare(self, source: Segment, copy: Segment, of_source: ContentRecord, of_copy: ContentRecord) -> str:
        """Why a source stays for now; empty if it is needed no more. The tasks of the disks read what is still to
        be read, and then this is asked again."""
        readings, where, path = self._readings, self._disks[copy.disk].path, self._disks[source.disk].path
        match compare(of_copy, of_source, readings.found(copy), readings.found(source)):
            case Comparison.NOT_NEEDED:
                return ""
            case Comparison.READ_COPY:
                return self._wait_for(copy, source)
            case Comparison.READ_FORMER:
                return self._wait_for(source, source)
            case Comparison.NO_CHECKSUM:
                return f"it stays until the copy on {where}, which was written to, has a checksum"
            case Comparison.COPY_IS_WRONG:
                log_event(log, logging.ERROR, "checksum_mismatch", segment=copy.name, disk=where)
                self._verdicts.record_rotten(copy)
                reason = f"it is right, and the copy on {where} is damaged: unmount, and move the copy away"
            case Comparison.UNCERTAIN:
                reason = self._may_differ(copy)
        log_event(log, logging.WARNING, "source_not_removed", segment=source.name, disk=path, reason=reason)
        return reason

    def _wait_for(self, file: Segment, source: Segment) -> str:
        failure = self._readings.request(file, lambda: self._moved.remind(source.disk))
        if failure:
            return f"it stays until it is compared with the copy, and {self._disks[file.disk].path}: {failure}"
        return "is compared with the copy before it is removed"

    async def _let_go(self, source: Segment, *, is_leaving: bool = False, is_needed: bool = False) -> None:
        """Remove a source, or set it aside while it is open, or if it is damaged or was written to; durable.
        `is_leaving`: its segment is about to leave the log, so a damaged source is removed, too, if its full disk
        has no place for it. `is_needed`: it keeps its name unless it is open. Raises DiskError, OSError."""
        disk, name = self._disks[source.disk], source.name
        async with self._handles.first_opens_held(source):
            if source.role is not Role.MOVED:
                return
            is_damaged, is_in_use = await self._is_damaged(source), await self._handles.is_in_use(source)
            if is_needed and not is_in_use:
                return
            if is_in_use or is_damaged or await self._has_changed(source):
                reason = Reason.DAMAGED if is_damaged else Reason.MOVED
                try:
                    retired = await disk.retire(name, source.ino, reason)
                except DiskFullError:
                    if not is_leaving:
                        raise
                    is_damaged = False
                    retired = await disk.retire(name, source.ino, Reason.MOVED)
                self._commitlog.record_source_retired(source, retired.name)
                self._forget(source)
                self._to_free.remind(source.disk)
                if is_damaged:
                    log_event(log, logging.WARNING, "set_aside", segment=name, disk=disk.path, path=source.path)
            else:
                self._commitlog.record_freed(source, await disk.unlink(name, source.ino))
                self._forget(source)
        copy = self._commitlog.catalog.get(source.base_offset)
        if copy is not None and not self._is_mark_needed(copy):
            self._readings.forget(copy)
            await self._remove_mark(copy)

    def _is_mark_needed(self, copy: Segment) -> bool:
        """Whether another file of a segment has its name, or may have it on a missing disk: only the mark shows
        that it is the same segment."""
        return bool(self._commitlog.unserved()) or self._has_named_source(copy)

    def _has_named_source(self, copy: Segment) -> bool:
        return any(source.role is Role.MOVED for source in self._commitlog.others.sources(copy.base_offset))

    async def _has_changed(self, source: Segment) -> bool:
        """Whether a process has written to a source between its last comparison and the new name of the copy, and
        closed it: nobody has it open any more, and freeing it puts it back."""
        copy = self._commitlog.catalog.get(source.base_offset)
        seen = None if copy is None else await self._disks[source.disk].stat(source.path)
        return copy is not None and seen is not None and _was_written_to(unpack(seen), unpack(copy.attributes))

    async def _is_damaged(self, source: Segment) -> bool:
        """Whether its segment was repaired, not moved."""
        copy = self._commitlog.catalog.get(source.base_offset)
        if copy is None:
            return False
        damaged = source_of(source.disk, unpack(source.attributes))
        return await self._disks[copy.disk].is_repair_of(copy.name, copy.ino, damaged)

    def _forget(self, source: Segment) -> None:
        """A file that is gone may have had this inode number."""
        self._known.pop((source.disk, source.ino), None)
        self._kept.pop((source.disk, source.ino), None)
        self._to_compare.discard((source.disk, source.ino))
        self._compared.pop((source.disk, source.ino), None)
        self._retry_at_s.pop((source.disk, source.ino), None)
        self._readings.forget(source)
        self._both_changed.discard((source.disk, source.ino))

    async def _remove_mark(self, copy: Segment) -> None:
        try:
            async with self._handles.first_opens_held(copy):  # it is opened, which `is_in_use` would see
                await self._disks[copy.disk].remove_mark(copy.name, copy.ino)
        except (DiskError, OSError) as error:
            log_event(log, logging.DEBUG, "mark_not_removed", segment=copy.name, reason=str(error))

    # --- putting back --------------------------------------------------------------------------------

    async def put_back_if_changed(self, source: Segment) -> bool:
        """Undo a move if a process has written to the source since, and nobody to the copy, or if the copy is lost.
        Returns whether the source is still needed. A store to a mapping changes the mtime, too."""
        copy = self._commitlog.catalog.get(source.base_offset)
        if source.role is not Role.RETIRED:
            return False
        if copy is None:
            return await self._return_if_lost(source)
        key = (source.disk, source.ino)
        seen = await self._disks[source.disk].stat(source.path)
        if seen is None:
            return False
        source_ns = unpack(seen).mtime_ns
        if key not in self._known:
            of_move = unpack(copy.attributes)
            has_changed = _was_written_to(unpack(seen), of_move)
            self._known[key] = Known(of_move.mtime_ns if has_changed else source_ns, of_move.mtime_ns)
        known = self._known[key]
        if source_ns == known.source_ns:
            return False
        of_copy = await self._disks[copy.disk].stat(copy.path)
        if of_copy is None or unpack(of_copy).mtime_ns != known.copy_ns or self.is_written_to(copy):
            if key not in self._both_changed:
                self._both_changed.add(key)
                log_event(log, logging.ERROR, "both_changed", segment=copy.name, disk=self._disks[copy.disk].path)
            return False
        async with self._changes.lock:
            if self._commitlog.catalog.get(source.base_offset) is not copy or source.role is not Role.RETIRED:
                return False
            work = partial(self._put_back, source, copy, "a process that has it open has written to it")
            await self._finish(source, copy.name, work)
        return True

    async def _return_if_lost(self, source: Segment) -> bool:
        """If the disk of the copy was given up, the source is the segment again; while that disk is missing, it may
        become that. Returns whether the source is still needed."""
        async with self._changes.lock:
            if source.role is not Role.RETIRED or not self._commitlog.is_lost(source.base_offset):
                return False
            disk, name = self._disks[source.disk], format_segment_name(source.base_offset)
            if not self._commitlog.missing and not self._changes.is_in_flight(name):
                await self._finish(source, name, partial(self._return, source, disk))
        return True

    async def _return(self, source: Segment, disk: DiskFiles) -> None:
        async with self._handles.first_opens_held(source):
            self._commitlog.record_returned(source, await disk.put_back(source))
        self._forget(source)
        self._invalidate_entry(source.name, 0)
        reason = "the disk of its copy was given up"
        log_event(log, logging.WARNING, "put_back", segment=source.name, disk=disk.path, reason=reason)

    async def _put_back_changed(self, number: DiskNumber) -> None:
        damaged = [file for file in self._commitlog.others.set_aside() if file.disk == number]
        for source in [*self._commitlog.others.moved(number), *damaged]:
            with contextlib.suppress(DiskError, OSError):  # logged; the next round tries again
                await self.put_back_if_changed(source)

    async def _release_closed(self, number: DiskNumber) -> None:
        """Let segments that were put back move again once nobody has them open. As long as a copy of one is left, a
        write to that copy must not replace what was written to the segment."""
        disk = self._commitlog.disks[number]
        for key, file in list(self._written_to.items()):
            if file.disk != number:
                continue
            is_gone = self._commitlog.catalog.by_ino(*key) is not file
            if not is_gone and (disk.is_troubled or self._commitlog.others.sources(file.base_offset)):
                continue
            with contextlib.suppress(DiskError, OSError):  # the next round tries again
                if is_gone or await self._is_closed(file):
                    self._written_to.pop(key, None)

    async def _is_closed(self, file: Segment) -> bool:
        async with self._handles.first_opens_held(file):
            if self._handles.may_be_open(file) and not self._handles.is_open(file):
                # Opened under a former daemon. The kernel keeps the inode of a closed file by its name.
                self._invalidate_entry(file.name, 0)
                if await self._handles.is_known_to_kernel(file):
                    return False
                await self._handles.let_go(file)
            return not await self._handles.is_in_use(file)

    async def _put_back_if_only_writer(self, source: Segment) -> None:
        """Undo a move if a process has the source open and nobody the copy, so that a cut log continues in the
        source. If both are open, the first write decides (`put_back_if_changed`)."""
        copy = self._commitlog.catalog.get(source.base_offset)
        if source.role is Role.MOVED and await self._is_worth_keeping(source):
            if copy is None or await self._is_open(copy):
                return  # beside an open copy, a source that was set aside would be freed at its close
            await self._let_go(source, is_needed=True)
            if source not in self._commitlog.others.retired():
                return
            if await self._is_open(copy):
                await self._change_reason(source, Reason.DAMAGED)  # opened meanwhile: an operator decides
                return
        elif source.role is Role.MOVED:
            await self._let_go(source)
        if copy is None or self._commitlog.others.get(source.disk, source.ino) is not source:
            return  # nobody has it open
        if is_set_aside(source):
            async with self._handles.first_opens_held(source):
                if not await self._handles.is_in_use(source) or not await self._handles.is_known_to_kernel(source):
                    return
        async with self._handles.first_opens_held(copy):
            if await self._handles.is_in_use(copy):
                return
        await self._put_back(source, copy, "a process that has it open removes a segment after it")

    async def _is_open(self, file: Segment) -> bool:
        async with self._handles.first_opens_held(file):
            return await self._handles.is_in_use(file)

    async def _put_back(self, source: Segment, copy: Segment, reason: str) -> None:
        """Raises DiskFailedError if that is not possible."""
        disk, where = self._disks[source.disk], self._disks[copy.disk]
        async with self._handles.first_opens_held(source), self._handles.first_opens_held(copy):
            seen = await where.stat(copy.path)
            if seen is None:
                raise DiskFailedError(where.path, f"{copy.name.decode()}: was moved here, and cannot be read")
            try:
                mark = await self._mark_to_put_back(source, copy, unpack(seen))
                attributes = await disk.put_back(source, Copy(unpack(seen), mark))
            except (DiskError, OSError) as error:
                log_event(log, logging.ERROR, "not_put_back", segment=copy.name, reason=str(error))
                raise DiskFailedError(
                    disk.path, f"{copy.name.decode()}: was moved, and cannot be put back ({error})"
                ) from error
            self._commitlog.record_put_back(copy, source, attributes)
        self._forget(source)
        self._written_to[source.disk, source.ino] = source
        self._invalidate_entry(source.name, 0)
        self._moved.remind(copy.disk)
        log_event(log, logging.WARNING, "put_back", segment=source.name, disk=disk.path, reason=reason)

    async def _mark_to_put_back(self, source: Segment, copy: Segment, seen: FileAttributes) -> Source:
        """The mark that lets a source take the place of its copy, and of all other files of the segment. Removes
        that of the copy where it is not needed. Raises DiskError, OSError."""
        where = self._disks[copy.disk]
        if self._is_mark_needed(copy):
            of_copy = await where.content_record(copy.name)
            if of_copy.mark is not None and of_copy.is_as_marked:
                return of_copy.mark
            itself = source_of(source.disk, unpack(source.attributes))
            if of_copy.mark is None or of_copy.mark[:3] != itself[:3] or self._has_named_source(copy):
                return source_of(copy.disk, seen)
        await where.remove_mark(copy.name, copy.ino)  # else each would take the place of the other
        return source_of(copy.disk, seen)


def _was_written_to(source: FileAttributes, copy: FileAttributes) -> bool:
    """Whether a process has written to a source since it was copied.

    A move keeps the mtime. A source with an older one has not changed: its copy was written to, or was put back. If
    it has a newer one, a caller may have set that of the copy back. A write sets mtime and ctime of the source, and
    setting it aside the ctime only.
    """
    if source.mtime_ns <= copy.mtime_ns:
        return False
    return source.mtime_ns == source.ctime_ns or source.mtime_ns > copy.btime_ns
