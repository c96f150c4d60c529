"""Ranges of the log that could not be read when their segments were moved away from a failing disk, and are zeros
now."""

import logging
from functools import partial
from typing import Final

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.unreadable import UnreadableRanges, find_unreadable
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

START_DELAY_S: Final = 5.0
"""A daemon that has just started has more urgent work."""
_NAMES_AT_ONCE: Final = 256


class Salvaged:
    """The segments record it themselves (store/moves/unreadable.py); here it is known."""

    def __init__(self, commitlog: CommitLog, threads: DiskThreads) -> None:
        self._commitlog = commitlog
        self._threads = threads
        self._found: dict[tuple[DiskNumber, int], tuple[Segment, UnreadableRanges]] = {}

    async def find(self) -> None:
        """Find what former daemons have recorded; each disk by itself, in case one hangs."""
        await trio.sleep(START_DELAY_S)
        async with trio.open_nursery() as nursery:
            for number in self._commitlog.disks:
                nursery.start_soon(self._find_on, number)

    def record(self, segment: Segment, unreadable: UnreadableRanges) -> None:
        """A move could not read these positions of a segment."""
        self._found[segment.disk, segment.ino] = segment, unreadable
        disk = self._commitlog.disk_of(segment).path
        for begin, end in self._offsets(segment, unreadable):
            log_event(log, logging.ERROR, "unreadable", segment=segment.name, disk=disk, begin=begin, end=end)

    def present(self) -> list[tuple[int, int]]:
        """The ranges [begin, end) of log offsets, in ascending order, as far as their segments are still there."""
        for key, (segment, _) in tuple(self._found.items()):
            if self._commitlog.catalog.by_ino(segment.disk, segment.ino) is not segment:
                del self._found[key]
        return sorted(offsets for found in self._found.values() for offsets in self._offsets(*found))

    async def _find_on(self, number: DiskNumber) -> None:
        segments = {segment.name: segment for segment in self._commitlog.catalog.on_disk(number)}
        names, dirfd = list(segments), self._commitlog.disks[number].dirfd
        for first in range(0, len(names), _NAMES_AT_ONCE):
            find = partial(find_unreadable, dirfd, names[first : first + _NAMES_AT_ONCE])
            for name, unreadable in await self._threads.run(number, find):
                segment = segments[name]
                self._found[number, segment.ino] = segment, unreadable

    @staticmethod
    def _offsets(segment: Segment, unreadable: UnreadableRanges) -> list[tuple[int, int]]:
        return [(segment.base_offset + begin, segment.base_offset + end) for begin, end in unreadable.ranges]
