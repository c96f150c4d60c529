"""Directory listings: complete, or they fail as a whole.

Opening the directory refreshes the attributes of every segment, one system call batch per disk; the listing
itself is answered from the catalog, so a slow disk can neither cut it short nor stall it. The cookie is the
base offset just listed plus one: no state is kept between requests.
"""

import errno
from collections import defaultdict
from collections.abc import Iterator

import trio

from commitlogfs.fusefs.disk_threads import DiskThreads
from commitlogfs.fusefs.observer import Observer
from commitlogfs.store.attributes import stat_names
from commitlogfs.store.catalog import Segment
from commitlogfs.store.commitlog import CommitLog
from commitlogfs.store.identity import DiskNumber
from commitlogfs.store.segment import BaseOffset

DEADLINE_S = 1.0


class Listing:
    def __init__(self, commitlog: CommitLog, threads: DiskThreads, observer: Observer) -> None:
        self._commitlog = commitlog
        self._threads = threads
        self._observer = observer

    async def refresh(self) -> None:
        """Look at every segment on every disk at once. What a disk does not answer stays as last known."""
        by_disk: dict[DiskNumber, list[Segment]] = defaultdict(list)
        for segment in self._commitlog.catalog:
            by_disk[segment.disk].append(segment)
        async with trio.open_nursery() as nursery:
            for number, segments in by_disk.items():
                nursery.start_soon(self._refresh_disk, number, segments)

    def after(self, cookie: int) -> Iterator[Segment]:
        """The listed segments that follow a cookie; 0 begins. Not to be held across changes."""
        return self._commitlog.listed_after(cookie - 1)

    @staticmethod
    def cookie_of(base_offset: BaseOffset) -> int:
        return base_offset + 1

    async def _refresh_disk(self, number: DiskNumber, segments: list[Segment]) -> None:
        disk = self._commitlog.disks[number]
        dirfd, names = disk.dirfd, [segment.name for segment in segments]
        try:
            outcomes = await self._threads.run_within(number, DEADLINE_S, lambda: stat_names(dirfd, names))
        except TimeoutError:
            self._observer.disk_error(disk.path, "stat", "ETIMEDOUT")
            return
        for segment, outcome in zip(segments, outcomes, strict=True):
            if isinstance(outcome, int):
                self._observer.disk_error(disk.path, "stat", errno.errorcode.get(outcome, "EIO"))
            else:
                self._commitlog.note_attributes(segment, outcome)
