"""Ranges of the log that could not be read when their segments were moved away from a failing disk, and are zeros
now."""

import logging

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.unreadable import UnreadableRanges
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


class Salvaged:
    """The segments record it themselves (store/moves/unreadable.py); here it is known. Those of former daemons are
    found by fusefs/integrity/recorded.py."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._commitlog = commitlog
        self._found: dict[tuple[DiskNumber, int], tuple[Segment, UnreadableRanges]] = {}

    def record(self, segment: Segment, unreadable: UnreadableRanges) -> None:
        """A move could not read these positions of a segment."""
        self._found[segment.disk, segment.ino] = segment, unreadable
        disk = self._commitlog.disk_of(segment).path
        for begin, end in self._offsets(segment, unreadable):
            log_event(log, logging.ERROR, "unreadable", segment=segment.name, disk=disk, begin=begin, end=end)

    def record_found(self, segment: Segment, unreadable: UnreadableRanges) -> None:
        """The file of a segment records these positions of a former daemon."""
        self._found[segment.disk, segment.ino] = segment, unreadable

    def present(self) -> list[tuple[int, int]]:
        """The ranges [begin, end) of log offsets, in ascending order, as far as their segments are still there.
        Those of other files are kept as long as these may become segments again."""
        offsets = list[tuple[int, int]]()
        for key, found in tuple(self._found.items()):
            file = found[0]
            if self._commitlog.catalog.holds(file):
                offsets += self._offsets(*found)
            elif self._commitlog.others.get(*key) is not file:
                del self._found[key]
        return sorted(offsets)

    @staticmethod
    def _offsets(segment: Segment, unreadable: UnreadableRanges) -> list[tuple[int, int]]:
        return [(segment.base_offset + begin, segment.base_offset + end) for begin, end in unreadable.ranges]
