"""Finds what former daemons have recorded with the segments' files: verdicts, and ranges that could not be read
when the segments were moved.

Segments, damaged files that were set aside, and the sources of moves, which may become segments again, are read
once after the start of a daemon, each disk by itself, in case one hangs. Files that cannot be read then are tried
again until they can, because nothing else shows that their segments are damaged.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.unreadable import UnreadableRanges
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.recorded import find_recorded

log = logging.getLogger(__name__)

_NAMES_AT_ONCE: Final = 256


class Recorded:
    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        verdicts: Verdicts,
        record_unreadable: Callable[[Segment, UnreadableRanges], None],
    ) -> None:
        """`record_unreadable` is called for each segment with ranges that could not be read."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.verdicts
        self._threads = threads
        self._verdicts = verdicts
        self._record_unreadable = record_unreadable

    async def find(self) -> None:
        """Returns when all files have been read."""
        await trio.sleep(self._timing.start_s)
        async with trio.open_nursery() as nursery:
            for disk in self._commitlog.disks.values():
                nursery.start_soon(self._find_on, disk)

    async def _find_on(self, disk: Disk) -> None:
        others = self._commitlog.others
        aside = [file for file in others.set_aside() if file.disk == disk.number]
        await self._read_all(disk, (*self._commitlog.catalog.on_disk(disk.number), *aside))
        self._verdicts.record_loaded(disk.number)
        await self._read_all(disk, others.moved(disk.number))  # nothing waits for these

    async def _read_all(self, disk: Disk, files: Iterable[Segment]) -> None:
        """Returns when all of these could be read."""
        unread = await self._read(disk, files)
        timing, retry_s = self._timing, self._timing.retry_s
        if unread:
            log_event(log, logging.WARNING, "records_not_read", disk=disk.path, segments=len(unread))
        while unread:
            await trio.sleep(retry_s)
            count = len(unread)
            unread = await self._read(disk, unread)
            retry_s = timing.retry_s if len(unread) < count else min(2 * retry_s, timing.longest_retry_s)
            if not unread:
                log_event(log, logging.INFO, "records_read", disk=disk.path)

    async def _read(self, disk: Disk, files: Iterable[Segment]) -> list[Segment]:
        """Returns those that could not be read."""
        present = {file.path: file for file in files if self._is_segment(file) or self._is_replaced(file)}
        names, unread = list(present), list[Segment]()
        for first in range(0, len(names), _NAMES_AT_ONCE):
            while disk.is_unresponsive:  # noqa: ASYNC110  # a thread would hold this daemon while it hangs
                await trio.sleep(self._timing.retry_s)
            find = partial(find_recorded, disk.dirfd, names[first : first + _NAMES_AT_ONCE])
            found, failed = await self._threads.run_within(disk.number, math.inf, find)
            unread += [present[name] for name in failed]
            for one in found:
                file = present[one.name]
                if one.illegible:
                    path = f"{disk.path}/{os.fsdecode(one.name)}"
                    log_event(log, logging.ERROR, "record_illegible", path=path, reason=one.illegible)
                if one.verdict is not None and self._is_replaced(file):
                    self._verdicts.record_replaced(file, one.verdict)
                elif one.verdict is not None:
                    self._verdicts.record_found(file, one.verdict, is_recorded=one.is_recorded)
                if one.unreadable.ranges:
                    self._record_unreadable(file, one.unreadable)
        return unread

    def _is_segment(self, file: Segment) -> bool:
        return self._commitlog.catalog.holds(file)

    def _is_replaced(self, file: Segment) -> bool:
        return self._commitlog.others.get(file.disk, file.ino) is file
