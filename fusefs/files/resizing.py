"""The one growth of a segment, to its size. If its disk refuses that, the segment is given up: the next create of
its name makes it on another disk, and the empty file that stays behind is a leftover."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles, require_in_place
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.decisions import SILENT, Decisions
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import (
    BeyondSegmentError,
    DiskError,
    DiskFailedError,
    DiskReadOnlyError,
    DiskSilentError,
    InvalidSizeError,
    StoreError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import ino_of, size_of
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Role, Segment, SizeChange
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


class _UnderWay(NamedTuple):
    """A change of size that a disk has not answered."""

    wanted: Changes
    work: AbandonableWork[None]


class Resizing:
    """Gives segments their size, and gives up those whose disk refuses."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        changes: NameChanges,
        handles: Handles,
        attributes: BackingAttributes,
        backing: Backing,
        usage: UsageMonitor,
        background: BackgroundSync,
        invalidate_entry: Callable[[bytes, int], None],
        decisions: Decisions = SILENT,
    ) -> None:
        """`invalidate_entry`: as for `Removals`."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.requests
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._attributes = attributes
        self._backing = backing
        self._usage = usage
        self._background = background
        self._growths: dict[Segment, _UnderWay] = {}
        """The changes of new segments."""
        self._invalidate_entry = invalidate_entry
        self._decisions = decisions

    async def resize(self, file: Segment, wanted: Changes) -> None:
        """Change a file's size, and what else is `wanted`; the size is committed in the background.

        A new segment whose disk refuses, or hangs, is given up: the caller gets the error. What cannot be given up
        has RequestTiming.change_s in all. Raises DiskError, OSError, InvalidSizeError, BeyondSegmentError,
        StaleInodeError.
        """
        require_in_place(file)
        disk = self._disks[file.disk]
        with disk.limited("ftruncate", self._timing.change_s):
            await self._wait_for_other(file, wanted)
            if self._is_new(file):
                await self._grow(file, disk, wanted)
            else:
                await self._attributes.change(file, wanted)
                self._sync_soon(file, disk)

    async def _wait_for_other(self, file: Segment, wanted: Changes) -> None:
        """A change to another size has its own answer. Raises StaleInodeError."""
        while (other := self._growths.get(file)) is not None and other.wanted != wanted:
            with contextlib.suppress(StoreError, OSError):  # which its own caller gets
                await other.work.wait()
            require_in_place(file)

    async def _grow(self, file: Segment, disk: DiskFiles, wanted: Changes) -> None:
        """For a new segment, which nothing moves before it has its size. A disk that does not answer soon has more
        time if the segment cannot be given up. It is not asked again: it may show the size already."""
        if file not in self._growths:
            work = AbandonableWork(partial(self._change_size, file, disk, wanted))
            self._growths[file] = _UnderWay(wanted, work)
        growth = self._growths[file].work
        if self._may_give_up(file):
            with trio.move_on_after(self._timing.resize_s):
                return await growth.wait()
            silence = DiskSilentError(disk.path, f"ftruncate: no answer within {self._timing.resize_s:g} s")
            if await self._give_up(file, disk, silence):
                disk.record_error("ftruncate", "ETIMEDOUT")
                raise silence
        await growth.wait()

    async def _change_size(self, file: Segment, disk: DiskFiles, wanted: Changes) -> None:
        """The disk may answer when the segment has been given up, or its caller has an error. What is recorded
        meanwhile, as by a write, counts: then the size has been confirmed otherwise."""
        if file.size_change is SizeChange.NONE:
            file.size_change = SizeChange.UNDER_WAY
        try:
            attributes = await disk.change(file.path, file.ino, wanted, self._commitlog.check_resize)
        except (DiskReadOnlyError, DiskFailedError) as error:
            try:
                await self._give_up(file, disk, error)
            finally:
                if file.size_change is SizeChange.UNDER_WAY:
                    file.size_change = SizeChange.FAILED
            raise
        except Exception as error:
            if file.size_change is SizeChange.UNDER_WAY:
                file.size_change = SizeChange.NONE
            if isinstance(error, InvalidSizeError | BeyondSegmentError):
                self._record_refused(file, wanted)
            raise
        else:
            self._commitlog.refused_size = None
            if file.role is not Role.GIVEN_UP:
                self._commitlog.record_attributes(file, attributes)
                self._sync_soon(file, disk)
        finally:
            del self._growths[file]

    def _record_refused(self, file: Segment, wanted: Changes) -> None:
        """A broker repeats its attempt at once, so it is logged once."""
        size, segment_size = wanted.size, self._commitlog.segment_size
        if size != self._commitlog.refused_size:
            self._commitlog.refused_size = size
            log_event(log, logging.ERROR, "size_refused", segment=file.name, size=size, segment_size=segment_size)

    async def require_writable(self, file: Segment) -> None:
        """For an open for writing of a segment without size: if its disk refuses that, the segment is given up, and
        made elsewhere within the same open, because StaleInodeError makes the kernel look the name up again."""
        if not self._may_give_up(file):
            return
        disk = self._disks[file.disk]
        try:
            await disk.require_writable(file.path, file.ino, self._timing.resize_s)
        except (DiskReadOnlyError, DiskFailedError) as refusal:
            if await self._give_up(file, disk, refusal):
                raise inodes.StaleInodeError(f"{file.name.decode()}: given up on its disk") from refusal
        except (DiskError, OSError):
            return  # the open itself meets the same error

    async def _give_up(self, file: Segment, disk: DiskFiles, error: DiskError) -> bool:
        """Take a segment that its disk refused out of the log, if it is certainly empty and another disk can take
        it. Returns whether it has left. A process that has it open cannot give it a size."""
        name, inode = file.name, int(inodes.encode(file))
        if not isinstance(error, DiskSilentError):
            self._commitlog.admission.record_trouble(disk.number, error, self._commitlog.clock.monotonic())
        await self._usage.refresh(self._timing.usage_age_s)
        async with self._changes.lock:
            if file.role is Role.GIVEN_UP:
                return True
            if not self._may_give_up(file):
                return False
            is_empty = False
            with trio.move_on_after(self._timing.resize_s):  # a sick disk may not answer, and all names wait
                is_empty = await self._is_certainly_empty(file)
            if not is_empty:
                return False
            self._backing.record_gone(file)
            self._commitlog.record_given_up(file)
            self._changes.record(None)
        log_event(log, logging.WARNING, "given_up", segment=name, disk=disk.path, reason=str(error))
        self._decisions.given_up(name, disk.path, str(error))
        self._invalidate_entry(name, inode)
        return True

    def _is_new(self, file: Segment) -> bool:
        """Whether a file is a segment without a size, which nothing moves yet."""
        if file.size or self._changes.is_in_flight(file.name) or self._commitlog.find_name(file.name) is not file:
            return False
        return file.role is Role.SEGMENT

    def _may_give_up(self, file: Segment) -> bool:
        """Whether a file is an empty segment that another disk could take."""
        return self._is_new(file) and self._commitlog.admission.can_move(file, self._commitlog.clock.monotonic())

    async def _is_certainly_empty(self, file: Segment) -> bool:
        """Also if the kernel may have written to it without a request to the daemon."""
        known = self._handles.is_certainly_empty(file)
        if known:
            return True
        if file.size_change is SizeChange.FAILED:
            return await self._disks[file.disk].holds_nothing(file.path, file.ino)
        if known is not None:
            return False
        if not self._backing.is_passed_through(file) and file.size_change is SizeChange.NONE:
            return file.size == 0
        seen = await self._attributes.read(file)
        return seen is not None and (ino_of(seen), size_of(seen)) == (file.ino, 0)

    def _sync_soon(self, file: Segment, disk: DiskFiles) -> None:
        """Commit a segment's new size in the background."""

        async def work() -> None:
            try:
                async with self._handles.use(inodes.encode(file)) as handle:
                    await disk.sync(handle.fd)
            except Exception as error:  # nothing waits for this task, and no error in it may end the daemon
                if isinstance(error, DiskReadOnlyError | DiskFailedError):
                    self._commitlog.admission.record_trouble(disk.number, error, self._commitlog.clock.monotonic())
                log_event(log, logging.WARNING, "sync_failed", segment=file.name, reason=str(error))

        self._background.sync_size(disk.number, work)
