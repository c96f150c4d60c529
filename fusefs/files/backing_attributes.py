"""Attributes of backing files, read from their disks: with passthrough they change without a request to the
daemon."""

import logging
from collections.abc import Mapping

from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, size_of
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

MAX_READS = 5
"""Reads of one file's attributes, while other requests record what they have read."""


class BackingAttributes:
    """Keeps the attributes in the catalog up to date, and segments at their size."""

    def __init__(self, commitlog: CommitLog, disks: Mapping[DiskNumber, DiskFiles], handles: Handles) -> None:
        self._commitlog = commitlog
        self._disks = disks
        self._handles = handles

    async def read(self, file: Segment) -> PackedAttributes | None:
        """The attributes as the disk says; None where it fails or does not answer in time."""
        return await self._disks[file.disk].stat(file.path)

    async def refresh(self, file: Segment) -> None:
        """Read a file's attributes; where its disk is slow or failing, the last known ones stay."""
        # A release and an fstat may read at the same time: what one records may be older than what the other has
        # read.
        for _ in range(MAX_READS):
            known = file.attributes
            seen = await self.read(file)
            if seen is None:
                return
            if size_of(seen) > self._commitlog.segment_size and ino_of(seen) == file.ino:
                await self._cut(file)
                return
            disturbed = file.attributes is not known
            if not self.record(file, known, seen) or not disturbed:
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
        daemon: it is not a part of the log, and a broker does not start on a segment of another size."""
        disk, size, before = self._disks[file.disk], self._commitlog.segment_size, file.size
        try:
            async with self._handles.use(inodes.encode(file)) as handle:
                attributes = await disk.truncate(handle.fd, size)
        except (DiskError, OSError) as error:
            log_event(log, logging.ERROR, "overgrown", segment=file.name, size=before, reason=str(error))
            return
        self._commitlog.record_attributes(file, attributes)
        log_event(log, logging.ERROR, "cut_to_size", segment=file.name, disk=disk.path, bytes=before - size)
