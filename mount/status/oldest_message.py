"""When the oldest message of the log was stored: how far back consumers can read."""

import os
from functools import partial

from commitlogfs.fusefs.disks.disk_threads import DiskThreads, SingleCalls
from commitlogfs.store import record
from commitlogfs.store.files import direct, safe_open
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog


class OldestMessage:
    """Reads the first record of the oldest segment, once for each segment that becomes the oldest."""

    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self.stored_s: float | None = None
        """Its store time in epoch seconds; None if it is not known."""
        self._commitlog = commitlog
        self._calls = SingleCalls(threads)
        self._read: Segment | None = None

    async def measure(self) -> None:
        """Update `stored_s`, if the disk answers in time."""
        segment = self._commitlog.catalog.first_whole
        if segment is None:
            self._read, self.stored_s = None, None
        if segment is None or segment is self._read:
            return
        within_s = self._commitlog.timing.daemon.oldest_message_s
        read = partial(_first_store_time_ms, self._commitlog.disk_of(segment).dirfd, segment)
        try:
            stored_ms = await self._calls.run_within(segment.disk, within_s, read)
        except (OSError, TimeoutError):
            self.stored_s = None
            return
        self.stored_s = None if stored_ms is None else stored_ms / 1000
        self._read = segment if stored_ms is not None else None


def _first_store_time_ms(dirfd: int, segment: Segment) -> int | None:
    """None where no message begins the segment. Leaves nothing in the page cache. Blocks; raises OSError."""
    fd = safe_open.open_file(dirfd, segment.path, os.O_RDONLY)
    try:
        direct.set_direct(fd)
        return record.peek_store_time_ms(direct.read_block(fd, 0), segment.base_offset)
    finally:
        os.close(fd)
