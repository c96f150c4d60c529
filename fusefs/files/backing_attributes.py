"""Attributes of backing files. With passthrough they change without a request to the daemon, so they are read from
their disks. A disk that does not answer soon is not waited for: the last known ones count, and its late answer is
recorded. The size is right nevertheless. A file grows only while a process has it open; while this daemon has it
open, too, the kernel knows its size without the disk, and the last release records it. Only a file that a former
daemon has opened may grow unseen: the disk of one that is not whole is waited for.

A segment that moves to another disk is two files for a moment. A change of the former file in that moment would be
answered, and be lost. So a change of attributes waits for a change of the name that is under way, and a move waits
for the changes of attributes that have begun.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, size_of, with_size
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

MAX_READS = 5
"""Reads of one file's attributes, while other requests record what they have read."""


class BackingAttributes:
    """Keeps the attributes in the catalog up to date, and segments at their size."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        handles: Handles,
        backing: Backing,
        changes: NameChanges,
    ) -> None:
        self._commitlog = commitlog
        self._disks = disks
        self._handles = handles
        self._backing = backing
        self._changes = changes
        self._being_cut: set[Segment] = set()

    async def read(self, file: Segment) -> PackedAttributes | None:
        """The attributes as the disk says; None where it fails or does not answer in time."""
        return await self._disks[file.disk].stat(file.path)

    async def refresh(self, file: Segment) -> None:
        """Read a file's attributes. Where its disk is slow or failing, the last known ones stay, but for the size
        of an open file."""
        # A release and an fstat may read at the same time: what one records may be older than what the other has
        # read.
        for _ in range(MAX_READS):
            known = file.attributes
            seen = await self._read_soon(file, known)
            if seen is None:
                self._record_size(file)
                return
            if size_of(seen) > self._commitlog.segment_size and ino_of(seen) == file.ino:
                await self._cut(file)
                return
            disturbed = file.attributes is not known
            if not self.record(file, known, seen) or not disturbed:
                return

    async def _read_soon(self, file: Segment, known: PackedAttributes) -> PackedAttributes | None:
        """As `read`, but a disk gets little time, if the size is known without it."""
        is_whole = file.size == self._commitlog.segment_size
        if not is_whole and self._backing.is_inherited(file) and not self._handles.is_open(file):
            return await self.read(file)
        return await self._disks[file.disk].stat_soon(file.path, partial(self.record, file, known))

    def _record_size(self, file: Segment) -> None:
        """Record the size of a file that is open."""
        size = self._handles.size_in_memory(file)
        if size is not None and min(size, self._commitlog.segment_size) != file.size:
            self._commitlog.record_attributes(file, with_size(file.attributes, size))

    async def change(self, file: Segment, wanted: Changes) -> None:
        """Change attributes of a file, which nothing moves, renames or removes meanwhile.

        Raises DiskError, OSError, InvalidSizeError, BeyondSegmentError; StaleInodeError for a file that is not the
        segment any more: the kernel then looks the name up again, unless its caller has only a descriptor. After
        RequestTiming.change_s it is unknown whether the disk has made, or will make, the change.
        """
        disk = self._disks[file.disk]
        with disk.limited("setattr", self._commitlog.timing.requests.change_s):
            async with self._at_rest(file, disk):
                attributes = await disk.change(file.path, file.ino, wanted, self._commitlog.check_resize)
                self._commitlog.record_attributes(file, attributes)

    @asynccontextmanager
    async def _at_rest(self, file: Segment, disk: DiskFiles) -> AsyncIterator[None]:
        """Raises StaleInodeError, and DiskFailedError while a change of the name has not ended in time."""
        while True:
            if self._changes.is_in_flight(file.name):
                async with self._changes.lock:  # what is in flight afterwards has exceeded its deadline
                    self._changes.require_at_rest(disk, file.name)
            async with self._handles.first_opens_held(file):
                if self._changes.is_in_flight(file.name):
                    continue
                self._handles.require_current(file)
                yield
                return

    def record(self, file: Segment, known: PackedAttributes, seen: PackedAttributes) -> bool:
        """Record what a stat has seen, as `CommitLog.record_stat`. False, and logged, for another file in its
        place."""
        if self._commitlog.record_stat(file, known, seen):
            return True
        disk = self._disks[file.disk]
        disk.record_error("stat", "ESTALE")
        log_event(log, logging.ERROR, "file_replaced", disk=disk.path, segment=file.path)
        return False

    async def _cut(self, file: Segment) -> None:
        """Cut off what was written past a segment's end through passthrough, where the kernel does not ask the
        daemon: it is not a part of the log, and a broker does not start on a segment of another size. A disk that
        hangs is waited for by the first request only; until it has answered, the size stays as it was known."""
        if file not in self._being_cut:
            self._being_cut.add(file)
            with trio.move_on_after(self._commitlog.timing.requests.stat_s):
                await AbandonableWork(partial(self._cut_now, file)).wait()

    async def _cut_now(self, file: Segment) -> None:
        disk, size, before = self._disks[file.disk], self._commitlog.segment_size, file.size
        try:
            async with self._handles.use(inodes.encode(file)) as handle:
                attributes = await disk.truncate(handle.fd, size)
        except (DiskError, OSError) as error:
            log_event(log, logging.ERROR, "overgrown", segment=file.name, size=before, reason=str(error))
            return
        finally:
            self._being_cut.discard(file)
        self._commitlog.record_attributes(file, attributes)
        log_event(log, logging.ERROR, "cut_to_size", segment=file.name, disk=disk.path, bytes=before - size)
