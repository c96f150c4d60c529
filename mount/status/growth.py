"""How far the log is written, and how fast it grows, measured on the segment that is being written."""

import itertools
from functools import partial
from typing import Final

from commitlogfs.fusefs.disks.disk_threads import DiskThreads, SingleCalls
from commitlogfs.store.disks.forecast import Growth
from commitlogfs.store.files.written import Written, find_written
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

ACTIVE_AMONG: Final = 4
"""Number of newest segments among which the one being written is: a broker makes at most two ahead."""


class GrowthMeter:
    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self.growth = Growth()
        self._commitlog = commitlog
        self._calls = SingleCalls(threads)
        self._known: tuple[Segment, int] | None = None
        """The segment that was found last, and the bytes written to it."""

    async def measure(self) -> None:
        """Update `growth`, as far as the disks answer in time."""
        clock = self._commitlog.clock
        for segment in self._newest():
            known = self._known[1] if self._known is not None and self._known[0] is segment else 0
            try:
                written = await self._find_written(segment, known)
            except (OSError, TimeoutError):
                return
            if written.length:
                self._known = (segment, written.length)
                written_to = segment.base_offset + written.length
                self.growth.record(clock.monotonic(), clock.wall(), written_to, written.mtime_ns / 1e9)
                return

    def _newest(self) -> list[Segment]:
        whole = filter(self._commitlog.is_listed, reversed(self._commitlog.catalog.newest(2 * ACTIVE_AMONG)))
        return list(itertools.islice(whole, ACTIVE_AMONG))

    async def _find_written(self, segment: Segment, known: int) -> Written:
        find = partial(
            find_written,
            self._commitlog.disk_of(segment).dirfd,
            segment.path,
            self._commitlog.segment_size,
            known,
        )
        return await self._calls.run_within(segment.disk, self._commitlog.timing.daemon.growth_s, find)
