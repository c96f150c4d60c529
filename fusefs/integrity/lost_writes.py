"""Finds the writes of a broker that a disk has lost (store/disks/lost_writes.py), and keeps new segments away from
that disk.

Only the newest segments are written, so only they are watched, as long as a process has them open, and for a
minute after they were the newest. Each has a descriptor of its own, because the kernel reports a failure once for
each, and a broker's msync may come first.

A failed sync of any file that passes through the daemon tells the same. After it, the next one would succeed,
although the disk still lacks the writes: it fails, too, until the verdict is cleared.
"""

import contextlib
import errno
import logging
import math
import os
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
from commitlogfs.store.files.attributes import PackedAttributes, unpack
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.verdict import MOST_RANGES, Kind, Range, Verdict, limit_ranges, whole_verdict
from commitlogfs.store.segment import BaseOffset

log = logging.getLogger(__name__)

T = TypeVar("T")

_REASON: Final = "lost writes of "
"""Begin of a cordon's reason; the name of the segment follows."""


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


@dataclass(frozen=True, slots=True)
class _FailedSync:
    segment: Segment
    has_lost: bool
    """Whether the failure alone tells that the disk lacks writes."""


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
        self._clock = commitlog.clock
        self._timing = commitlog.timing.lost_writes
        self._threads = threads
        self._observer = observer
        self._member_records = member_records
        self._verdicts = verdicts
        self._watches: dict[tuple[int, int], _Watch] = {}
        """By disk number and inode."""
        self._failed_syncs: list[Segment] = []
        """Segments, and copies, which can have no verdict."""
        self._to_examine: list[_FailedSync] = []
        self._failed = {number: trio.Event() for number in commitlog.disks}
        """By disk; set when a sync has failed."""
        self._asking = {number: trio.Lock() for number in commitlog.disks}
        """Held until an answer of the kernel, which it gives once, has its effect."""

    def record_failed_sync(self, file: Segment, error: OSError, seen: PackedAttributes | None) -> None:
        """A process has asked for a sync of a file, and it has failed. `seen` are its attributes by now; None if
        they could not be read."""
        if self._has_failed_sync(file) or self._was_clean(file, seen):
            return
        known = [known for known in self._failed_syncs if self._is_there(known)]
        self._failed_syncs = [*known, file]
        if self._is_segment(file):
            # A filesystem that has turned read-only refuses also a sync that has nothing to write.
            has_lost = error.errno != errno.EROFS
            if has_lost:  # recorded at once: the daemon may be killed before the file is examined
                self._verdicts.record(file, whole_verdict(Kind.WRITE_LOST, file.size, round(self._clock.wall())))
            self._to_examine.append(_FailedSync(file, has_lost=has_lost))
            self._failed[file.disk].set()

    def require_none(self, file: Segment) -> None:
        """Raises OSError (EIO) if the disk lacks writes to a file, as far as is known, until its verdict is
        cleared."""
        if self.may_lack_writes(file):
            raise OSError(errno.EIO, "the disk lacks former writes to the file")

    def may_lack_writes(self, file: Segment) -> bool:
        """Whether a write to a file has failed: memory may have more than its disk."""
        watch = self._watches.get((file.disk, file.ino))
        if watch is not None and watch.has_failed:  # not examined yet
            return True
        return self._has_failed_sync(file) or self._verdicts.kind_of(file) is Kind.WRITE_LOST

    def _was_clean(self, file: Segment, seen: PackedAttributes | None) -> bool:
        """Whether nothing was written to a segment since it got its checksum, before which it was synced. A
        filesystem that has shut down refuses every sync."""
        if seen is None or not self._is_segment(file) or not self._commitlog.catalog.is_settled(file):
            return False
        if file.base_offset in self._commitlog.catalog.without_checksum(file.disk):
            return False
        return unpack(seen).mtime_ns == unpack(file.attributes).mtime_ns

    def _has_failed_sync(self, file: Segment) -> bool:
        return any(known is file for known in self._failed_syncs)

    def _is_segment(self, file: Segment) -> bool:
        return self._commitlog.catalog.holds(file)

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

    async def finish(self) -> None:
        """At the end of the daemon: ask the kernel once more, and let the verdicts say which segments have failed
        writes that nothing has examined yet. The kernel may report these to no later daemon."""
        for failed in tuple(self._to_examine):
            if failed.has_lost:  # it has its verdict already
                await self._cordon(self._commitlog.disk_of(failed.segment), failed.segment)
        async with trio.open_nursery() as nursery:
            for watch in tuple(self._watches.values()):
                nursery.start_soon(self._finish, watch)

    async def _finish(self, watch: _Watch) -> None:
        disk = self._commitlog.disk_of(watch.segment)
        if not disk.is_unresponsive:
            await self._ask(disk, watch)
        if watch.has_failed and self._is_segment(watch.segment):
            await self._record_lost(disk, watch.segment, ())

    async def release(self, file: Segment) -> None:
        """Watch a file no longer: its space is not free while its descriptor is open. The kernel reports a failure
        that a process has got with its last sync to nobody who opens the file later: a segment with one is watched
        until it is examined."""
        key = file.disk, file.ino
        watch = self._watches.get(key)
        if watch is None:
            return
        disk = self._commitlog.disk_of(file)
        if not disk.is_unresponsive:
            await self._ask(disk, watch)
        if watch.has_failed and self._is_segment(file):
            self._failed[disk.number].set()
            return
        if watch.is_released:  # by another call meanwhile
            return
        watch.is_released = True
        del self._watches[key]
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
        """The verdict on a segment was cleared: its disk's cordon does not recall it any more, its syncs can
        succeed again, and checksums and copies are those of the disk's content."""
        self._forget_failed_sync(segment)
        disk, reason = self._commitlog.disk_of(segment), _reason_for(segment)
        forget = partial(lost_writes.forget_memory, disk.dirfd, segment.name, segment.ino)
        with contextlib.suppress(TimeoutError, OSError):
            await self._threads.run_within(disk.number, self._commitlog.timing.requests.stat_s, forget)
        await self._member_records.change_reason(disk, reason, f"had {reason}")

    def _forget_failed_sync(self, file: Segment) -> None:
        self._failed_syncs = [known for known in self._failed_syncs if known is not file]

    async def _run_for(self, disk: Disk, is_open: Callable[[Segment], bool]) -> None:
        while True:
            with trio.move_on_after(self._timing.look_s):
                await self._failed[disk.number].wait()
            if self._failed[disk.number].is_set():
                self._failed[disk.number] = trio.Event()
                for failed in tuple(self._to_examine):
                    if failed.segment.disk == disk.number and failed.has_lost:
                        await self._cordon(disk, failed.segment)
            if disk.is_unresponsive:  # a thread would hold the daemon as long as the disk
                continue
            for step in (partial(self._step, disk, is_open), partial(self._examine_failed_syncs, disk)):
                try:
                    await step()
                except OSError as error:
                    log_event(log, logging.WARNING, "writes_not_watched", disk=disk.path, reason=str(error))

    async def _step(self, disk: Disk, is_open: Callable[[Segment], bool]) -> None:
        newest = [segment for segment in self._commitlog.catalog.newest(NEWEST_KEPT) if segment.disk == disk.number]
        for watch in [watch for watch in self._watches.values() if watch.segment.disk == disk.number]:
            if not watch.is_released:  # meanwhile the file may have been closed or removed
                await self._check(disk, watch)
            watch.left_s += 0.0 if watch.segment in newest else self._timing.look_s
            await self._release_if_done(disk, watch, is_open)
        for segment in newest:
            key = (segment.disk, segment.ino)
            if key not in self._watches and is_open(segment):
                fd = await self._call(disk, partial(lost_writes.open_watch, disk.dirfd, segment.name, segment.ino))
                self._watches[key] = _Watch(segment, fd)

    async def _release_if_done(self, disk: Disk, watch: _Watch, is_open: Callable[[Segment], bool]) -> None:
        is_segment = self._is_segment(watch.segment)
        if is_segment and is_open(watch.segment) and watch.left_s <= self._timing.written_after_s:
            return
        if is_segment and watch.has_failed and not watch.is_released:
            await self._examine(disk, watch)
        await self.release(watch.segment)

    async def _examine_failed_syncs(self, disk: Disk) -> None:
        for failed in tuple(self._to_examine):
            if failed.segment.disk == disk.number and failed in self._to_examine:
                await self._examine_failed_sync(disk, failed)
                self._settle_examined(failed.segment)

    async def _check(self, disk: Disk, watch: _Watch) -> None:
        await self._ask(disk, watch)
        if watch.has_failed and self._clock.monotonic() >= watch.examine_at_s and not watch.is_released:
            await self._examine(disk, watch)

    async def _ask(self, disk: Disk, watch: _Watch) -> None:
        """Ask the kernel whether a write has failed. Of a segment that is examined now, it is known."""
        async with self._asking[disk.number]:
            if watch.is_released or watch.is_used:
                return
            try:
                await self._use(disk, watch, partial(lost_writes.require_written, watch.fd))
            except OSError as error:
                now_s = self._clock.monotonic()
                reason = errno.errorcode.get(error.errno or 0, "EIO")
                name = watch.segment.name
                log_event(log, logging.ERROR, "write_failed", segment=name, disk=disk.path, errno=reason)
                self._observer.disk_error(disk.path, "writeback", reason)
                failure = DiskFailedError(disk.path, f"a write has failed ({reason})")
                health.record_error(disk, failure, now_s, self._commitlog.timing.health)
                watch.has_failed = True

    async def _examine(self, disk: Disk, watch: _Watch) -> None:
        """Find out what the disk lacks after a write has failed."""
        watch.examine_at_s = self._clock.monotonic() + self._timing.examined_again_s
        try:
            found = await self._use(disk, watch, partial(lost_writes.find_lost, watch.fd))
        except OSError:
            await self._record_lost(disk, watch.segment, ())
        else:
            if found:  # otherwise the page was removed with its file, or written again meanwhile
                await self._record_lost(disk, watch.segment, found)
        watch.has_failed = False

    async def _examine_failed_sync(self, disk: Disk, failed: _FailedSync) -> None:
        segment, found = failed.segment, tuple[tuple[int, int], ...]()
        if not self._is_segment(segment) or not self._has_failed_sync(segment):
            return
        has_lost = failed.has_lost
        try:
            found = await self._call(disk, partial(lost_writes.find_lost_in, disk.dirfd, segment.name, segment.ino))
        except FileNotFoundError:
            return
        except OSError:
            has_lost = True
        if found or has_lost:
            await self._record_lost(disk, segment, found)
        else:
            self._forget_failed_sync(segment)

    async def _record_lost(self, disk: Disk, segment: Segment, found: tuple[tuple[int, int], ...]) -> None:
        """`found`: where, as ranges [begin, end); empty if that is not known."""
        base, now_s = segment.base_offset, round(self._clock.wall())
        ranges = limit_ranges([Range(*one) for one in found], MOST_RANGES)
        if ranges:
            verdict = Verdict(Kind.WRITE_LOST, now_s, ranges)
        else:
            verdict = whole_verdict(Kind.WRITE_LOST, segment.size, now_s)
        says_more = self._verdicts.record(segment, verdict)
        is_announced = not self._settle_examined(segment)
        if is_announced and not says_more:
            return
        self._commitlog.counters.lost_writes += 1
        shown = ",".join(f"{base + begin}-{base + end}" for begin, end in ranges) or "unknown"
        log_event(log, logging.ERROR, "write_lost", segment=segment.name, disk=disk.path, offsets=shown)
        await self._cordon(disk, segment)

    def _settle_examined(self, segment: Segment) -> bool:
        """Whether a failed sync of the segment was still to be examined."""
        remaining = [failed for failed in self._to_examine if failed.segment is not segment]
        was_waiting = len(remaining) < len(self._to_examine)
        self._to_examine = remaining
        return was_waiting

    async def _cordon(self, disk: Disk, segment: Segment) -> None:
        cordon = Cordon(round(self._clock.wall()), _reason_for(segment))
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
