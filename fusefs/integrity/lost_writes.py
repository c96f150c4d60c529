"""Finds the writes of a broker that a disk has lost (store/disks/lost_writes.py), and keeps new segments away from
that disk.

Only the newest segments are written, so only they are watched, as long as a process has them open, and for a
minute after they were the newest. Each has a descriptor of its own, because the kernel reports a failure once for
each, and a broker's msync may come first. For the same reason a sync that follows a failed one would succeed,
although the disk still lacks the writes: it fails, too.
"""

import contextlib
import errno
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.member_records import MemberRecords
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks import health, lost_writes
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import Cordon
from commitlogfs.store.errors import DiskFailedError, SegmentNotFoundError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.verdict import MOST_RANGES, Kind, Range, Verdict, limit_ranges, whole_verdict
from commitlogfs.store.segment import BaseOffset

log = logging.getLogger(__name__)

T = TypeVar("T")

_REASON: Final = "lost writes of "
"""Begin of a cordon's reason; the name of the segment follows."""

INTERVAL_S: Final = 2.0
WRITTEN_AFTER_S: Final = 60.0
"""Time after which the kernel has written what was stored to a segment before it left the newest ones: twice the
default of vm.dirty_expire_centisecs."""
EXAMINED_AGAIN_S: Final = 60.0
"""Time until a segment is compared with its disk once more, if writes still fail."""


@dataclass(slots=True)
class _Watch:
    segment: Segment
    fd: int
    is_used: bool = False
    """Whether a thread uses the descriptor, so that nobody else may close it."""
    is_released: bool = False
    left_s: float = 0.0
    """Time since which the segment is not one of the newest any more."""
    has_failed: bool = False
    """Whether a write has failed since the segment was examined."""
    examine_at_s: float = 0.0


class LostWrites:
    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        observer: Observer,
        member_records: MemberRecords,
        verdicts: Verdicts,
    ) -> None:
        self._commitlog = commitlog
        self._threads = threads
        self._observer = observer
        self._member_records = member_records
        self._verdicts = verdicts
        self._watches: dict[tuple[int, int], _Watch] = {}
        """By disk number and inode."""
        self._failed_syncs: list[Segment] = []

    def record_failed_sync(self, file: Segment) -> None:
        """A process has asked for a sync of a file, and it has failed."""
        if not self._has_failed_sync(file):
            known = [known for known in self._failed_syncs if self._is_there(known)]
            self._failed_syncs = [*known, file]

    def require_none(self, file: Segment) -> None:
        """Raises OSError (EIO) if the disk lacks writes to a file, as far as is known, until its verdict is
        cleared."""
        if self._has_failed_sync(file) or self._verdicts.kind_of(file) is Kind.WRITE_LOST:
            raise OSError(errno.EIO, "the disk lacks former writes to the file")

    def _has_failed_sync(self, file: Segment) -> bool:
        return any(known is file for known in self._failed_syncs)

    def _is_there(self, file: Segment) -> bool:
        with contextlib.suppress(SegmentNotFoundError):
            return self._commitlog.find_ino(file.disk, file.ino) is file
        return False

    async def run(self, is_open: Callable[[Segment], bool]) -> None:
        """Until cancelled. `is_open` returns whether a process may have a segment open. Each disk has its own task,
        so one that hangs delays only itself."""
        for disk in self._commitlog.disks.values():
            self._recall(disk)
        async with trio.open_nursery() as nursery:
            for disk in self._commitlog.disks.values():
                nursery.start_soon(self._run_for, disk, is_open)

    async def release(self, file: Segment) -> None:
        """Watch a file no longer: its space is not free while its descriptor is open."""
        watch = self._watches.pop((file.disk, file.ino), None)
        if watch is None:
            return
        watch.is_released = True
        if not watch.is_used:
            await self._close(watch)

    def _recall(self, disk: Disk) -> None:
        """Know again the segment for which a former daemon gave the disk a cordon: a disk that refuses writes
        cannot record the verdict, but the others record the cordon."""
        if disk.cordon is None or not disk.cordon.reason.startswith(_REASON):
            return
        segment = self._commitlog.catalog.get(_base_offset(disk.cordon.reason))
        if segment is not None and segment.disk == disk.number:
            verdict = whole_verdict(Kind.WRITE_LOST, segment.size, disk.cordon.since_s)
            self._verdicts.record_found(segment, verdict, is_recorded=False)

    async def settle(self, segment: Segment) -> None:
        """The verdict on a segment was cleared: its disk's cordon does not recall it any more, and its syncs can
        succeed again."""
        self._failed_syncs = [known for known in self._failed_syncs if known is not segment]
        disk, reason = self._commitlog.disk_of(segment), _reason_for(segment)
        await self._member_records.change_reason(disk, reason, f"had {reason}")

    async def _run_for(self, disk: Disk, is_open: Callable[[Segment], bool]) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            if disk.is_unresponsive:  # a thread would hold the daemon as long as the disk
                continue
            try:
                await self._step(disk, is_open)
            except OSError as error:
                log_event(log, logging.WARNING, "writes_not_watched", disk=disk.path, reason=str(error))

    async def _step(self, disk: Disk, is_open: Callable[[Segment], bool]) -> None:
        catalog = self._commitlog.catalog
        newest = [segment for segment in catalog.newest(NEWEST_KEPT) if segment.disk == disk.number]
        for watch in [watch for watch in self._watches.values() if watch.segment.disk == disk.number]:
            segment = watch.segment
            if not watch.is_released:  # meanwhile the file may have been closed or removed
                await self._check(disk, watch)
            watch.left_s += 0.0 if segment in newest else INTERVAL_S
            is_there = catalog.by_ino(segment.disk, segment.ino) is segment
            if not is_there or not is_open(segment) or watch.left_s > WRITTEN_AFTER_S:
                await self.release(segment)
        for segment in newest:
            key = (segment.disk, segment.ino)
            if key not in self._watches and is_open(segment):
                fd = await self._call(disk, partial(lost_writes.open_watch, disk.dirfd, segment.name, segment.ino))
                self._watches[key] = _Watch(segment, fd)

    async def _check(self, disk: Disk, watch: _Watch) -> None:
        try:
            await self._use(disk, watch, partial(lost_writes.require_written, watch.fd))
        except OSError as error:
            now_s = time.monotonic()
            reason = errno.errorcode.get(error.errno or 0, "EIO")
            log_event(log, logging.ERROR, "write_failed", segment=watch.segment.name, disk=disk.path, errno=reason)
            self._observer.disk_error(disk.path, "writeback", reason)
            health.record_error(disk, DiskFailedError(disk.path, f"a write has failed ({reason})"), now_s)
            watch.has_failed = True
        if watch.has_failed and time.monotonic() >= watch.examine_at_s and not watch.is_released:
            watch.has_failed, watch.examine_at_s = False, time.monotonic() + EXAMINED_AGAIN_S
            await self._examine(disk, watch)

    async def _examine(self, disk: Disk, watch: _Watch) -> None:
        """Find out what the disk lacks after a write has failed."""
        segment, base = watch.segment, watch.segment.base_offset
        try:
            found = await self._use(disk, watch, partial(lost_writes.find_lost, watch.fd))
        except OSError:
            found = ()
        else:
            if not found:  # the page was removed with its file, or written again meanwhile
                return
        ranges = limit_ranges([Range(*one) for one in found], MOST_RANGES)
        now_s = round(time.time())
        if ranges:
            verdict = Verdict(Kind.WRITE_LOST, now_s, ranges)
        else:
            verdict = whole_verdict(Kind.WRITE_LOST, segment.size, now_s)
        if not self._verdicts.record(segment, verdict):
            return
        self._commitlog.counters.lost_writes += 1
        shown = ",".join(f"{base + begin}-{base + end}" for begin, end in ranges) or "unknown"
        log_event(log, logging.ERROR, "write_lost", segment=segment.name, disk=disk.path, offsets=shown)
        cordon = Cordon(now_s, _reason_for(segment))
        if await self._member_records.cordon(disk, cordon):
            log_event(log, logging.WARNING, "cordoned", disk=disk.path, reason=cordon.reason)

    async def _use(self, disk: Disk, watch: _Watch, work: Callable[[], T]) -> T:
        """The result of a call with the descriptor of a watch, which stays open meanwhile. Raises OSError. A
        cancelled call leaves the descriptor to the thread, and to the end of the process."""
        watch.is_used = True
        try:
            result = await self._call(disk, work)
        except OSError:
            await self._end_use(watch)
            raise
        await self._end_use(watch)
        return result

    async def _end_use(self, watch: _Watch) -> None:
        watch.is_used = False
        if watch.is_released:
            await self._close(watch)

    async def _close(self, watch: _Watch) -> None:
        await self._threads.run(watch.segment.disk, partial(os.close, watch.fd))

    async def _call(self, disk: Disk, work: Callable[[], T]) -> T:
        """The result of a call in a thread of the disk, however long it takes; a cancelled task leaves it."""
        return await self._threads.run_within(disk.number, math.inf, work)


def _reason_for(segment: Segment) -> str:
    return f"{_REASON}{segment.name.decode()}"


def _base_offset(reason: str) -> BaseOffset:
    """Base offset of the segment that a reason names; -1 if an operator has written something else there."""
    name = reason.removeprefix(_REASON)
    return BaseOffset(int(name) if name.isascii() and name.isdecimal() else -1)
