"""Checksums of settled segments, computed in the background (store/files/hashing.py).

The disks hold all state: a daemon that has just started finds out, a few segments at a time, which of them have a
checksum. A segment that has just left the newest ones comes first, while its pages are in memory; then the others,
the newest first, because the oldest will leave the log soon.

A segment whose content is known not to be what was sealed gets none: the one from before shows which copy is right.
That one is bound to the file anew if its state changes, so that it counts even if the verdict is lost.
"""

import errno
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final, TypeVar

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.integrity.paced_work import Pace, PacedJob, run_watched
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.disk import Disk, DiskState, translate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, SegmentChangedError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import mtime_of, size_of, stat_changes
from commitlogfs.store.files.hashing import SegmentHash, drop_checksum, find_checksums
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.verdict import Kind, kinds_of
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.slowness.load import THIS_MACHINE, Machine

log = logging.getLogger(__name__)

T = TypeVar("T")

_NAMES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class ChecksumCounts:
    """Numbers of settled segments."""

    present: int
    absent: int
    unread: int
    """Those of which the daemon does not know yet, because it has started a moment ago or their disk fails."""
    computing: int


@dataclass(slots=True)
class _Job(PacedJob):
    """One computation."""

    segment: Segment = field(kw_only=True)
    kind: Kind | None = field(kw_only=True)
    """How the segment is damaged, as far as the daemon knows: its file may not record it."""


class _Outcome(Enum):
    COMPUTED = auto()
    PRESENT = auto()
    """It has a checksum already."""
    INCOMPLETE = auto()
    """It gets none while it has a record of parts that could not be read when it was moved."""
    DAMAGED = auto()
    """It gets none while it has its verdict, which may not be known yet, and it had none before."""
    WRONG_SIZE = auto()
    """Its file has become too short or too long, which the daemon does not know yet."""
    TOO_RECENT = auto()
    """It was changed a moment ago."""
    STOPPED = auto()


class _Worker:
    """State of one disk. A thread of the disk runs `compute`; all else belongs to the event loop."""

    def __init__(self, disk: Disk, commitlog: CommitLog, machine: Machine) -> None:
        self.disk = disk
        self._clock = commitlog.clock
        self._segment_size = commitlog.segment_size
        self._at_rest_s = commitlog.timing.checksums.at_rest_s
        self._pace = Pace(disk, commitlog, machine)
        self.to_read: list[BaseOffset] = []
        """Segments of which it is not known whether they have a checksum, in ascending order."""
        self.absent: set[BaseOffset] = set()
        """Segments that were read, and have no checksum of their content."""
        self.dropped: set[tuple[BaseOffset, int]] = set()
        """Those of the newest segments, with their inodes, that certainly have no checksum."""
        self.retry_at_s: dict[tuple[BaseOffset, int, Kind | None], float] = {}
        """By base offset, inode, and how the segment was damaged: once its verdict is cleared, it is due."""
        self.swept_s = self._clock.monotonic()
        self.job: _Job | None = None

    def compute(self, job: _Job) -> _Outcome:
        """Give a segment its checksum. Blocks. Raises OSError, SegmentChangedError."""
        segment = job.segment
        dirfd, at_rest_s = self.disk.dirfd, self._at_rest_s
        hashing = SegmentHash(dirfd, segment.name, segment.ino, self._clock, at_rest_s)
        try:
            if hashing.has_checksum:
                return _Outcome.PRESENT
            if hashing.size != self._segment_size:
                return _Outcome.WRONG_SIZE
            if hashing.is_incomplete:
                return _Outcome.INCOMPLETE
            kinds = kinds_of(job.kind, hashing.verdict)
            if any(kind.keeps_checksum for kind in kinds):
                is_bound = any(kind.is_mismatch for kind in kinds) and hashing.rebind()
                return _Outcome.PRESENT if is_bound else _Outcome.DAMAGED
            if not hashing.is_at_rest:
                return _Outcome.TOO_RECENT
            hashing.sync()
            if not self._pace.read_all(job, hashing.read_chunk):
                return _Outcome.STOPPED
            hashing.record()
            return _Outcome.COMPUTED
        finally:
            hashing.close()


class Checksums:
    """Computes missing checksums, and drops those of segments that are among the newest again."""

    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        observer: Observer,
        verdicts: Verdicts,
        gives_way: Callable[[DiskNumber], bool],
        is_unproven: Callable[[Segment], bool],
        may_lack_writes: Callable[[Segment], bool],
        refresh: Callable[[Segment], Awaitable[None]],
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """`gives_way` returns whether more urgent work is done on a disk, such as a move. `is_unproven`: as of
        fusefs.moves.sources. `may_lack_writes` returns whether memory, which is hashed, may have more of a segment
        than its disk. `refresh` reads the attributes of a segment, and cuts off what was written past its end."""
        self._commitlog = commitlog
        self._clock = commitlog.clock
        self._timing = commitlog.timing.checksums
        self._threads = threads
        self._observer = observer
        self._verdicts = verdicts
        self._gives_way = gives_way
        self._is_unproven = is_unproven
        self._may_lack_writes = may_lack_writes
        self._refresh = refresh
        self._workers = {number: _Worker(disk, commitlog, machine) for number, disk in commitlog.disks.items()}

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        await trio.sleep(self._timing.start_s)
        async with trio.open_nursery() as nursery:
            for worker in self._workers.values():
                nursery.start_soon(self._run_for, worker)

    def counts(self) -> ChecksumCounts:
        """As of now. The cost does not depend on the number of segments that have a checksum."""
        catalog = self._commitlog.catalog
        newest = catalog.newest(NEWEST_KEPT)
        kept = {segment.base_offset for segment in newest}
        whole = sum(segment.size == catalog.segment_size for segment in newest)
        settled = len(catalog) - catalog.partial_count - whole
        lacking = {number: catalog.without_checksum(number) for number in self._workers}
        known = sum(segment.base_offset not in lacking[segment.disk] for segment in newest)
        present = catalog.checksum_count - known
        absent = sum(len((worker.absent & lacking[number]) - kept) for number, worker in self._workers.items())
        return ChecksumCounts(present, absent, max(0, settled - present - absent), self._computing())

    def _computing(self) -> int:
        return sum(worker.job is not None for worker in self._workers.values())

    async def close_moved(self, disk: DiskNumber) -> None:
        """Return once no file of a disk is read here whose segment has left that disk."""
        job = self._workers[disk].job
        if job is not None and not self._may_compute(job.segment):
            await job.end()

    # --- one disk ------------------------------------------------------------------------------------

    async def _run_for(self, worker: _Worker) -> None:
        while True:
            pause_s = self._timing.look_s
            disk = worker.disk
            if not disk.is_failing and not disk.is_unresponsive and disk.unreadable_since_s is None:
                try:
                    await self._drop(worker)
                    pause_s = await self._step(worker)
                except OSError as error:
                    log_event(log, logging.WARNING, "checksum_failed", disk=worker.disk.path, reason=str(error))
            await trio.sleep(pause_s)

    async def _step(self, worker: _Worker) -> float:
        """Do what is due on a disk. Returns the seconds until the next step."""
        worker.absent.intersection_update(self._commitlog.catalog.without_checksum(worker.disk.number))
        segment = self._first_due(worker, self._fresh(worker))
        if segment is None:
            if await self._read_next(worker):
                return self._timing.batch_pause_s
            if self._clock.monotonic() - worker.swept_s >= self._timing.sweep_s:
                await self._sweep(worker)
            segment = self._first_due(worker, self._older(worker))
        if segment is None:
            return self._timing.look_s
        return 0.0 if await self._compute(worker, segment) else self._timing.look_s

    def _fresh(self, worker: _Worker) -> Iterator[Segment]:
        """Segments without a checksum that have left the newest ones a moment ago, newest first."""
        catalog, number = self._commitlog.catalog, worker.disk.number
        lacking = catalog.without_checksum(number)
        for segment in reversed(catalog.newest(2 * NEWEST_KEPT)):
            if segment.disk == number and segment.base_offset in lacking:
                yield segment

    def _older(self, worker: _Worker) -> Iterator[Segment]:
        """The others, newest first."""
        for base in sorted(worker.absent, reverse=True):
            segment = self._commitlog.catalog.get(base)
            if segment is not None:
                yield segment

    def _first_due(self, worker: _Worker, segments: Iterable[Segment]) -> Segment | None:
        if not self._is_well(worker.disk) or self._gives_way(worker.disk.number):
            return None
        return next((segment for segment in segments if self._is_due(worker, segment)), None)

    def _is_due(self, worker: _Worker, segment: Segment) -> bool:
        kind = self._verdicts.kind_of(segment)
        key = segment.base_offset, segment.ino, kind
        if worker.retry_at_s.get(key, 0.0) > self._clock.monotonic():
            return False
        if kind is not None and kind.keeps_checksum and not kind.is_mismatch:
            return False  # nothing is to be computed, and nothing to be bound, before the verdict is cleared
        return self._may_compute(segment) and not self._commitlog.expires_within(segment, self._timing.life_left_s)

    def _may_compute(self, segment: Segment) -> bool:
        if not self._is_well(self._commitlog.disk_of(segment)) or not self._commitlog.catalog.is_settled(segment):
            return False
        return not self._is_unproven(segment) and not self._may_lack_writes(segment)

    @staticmethod
    def _is_well(disk: Disk) -> bool:
        """Whether an attribute may be written there."""
        return disk.state is DiskState.RW and not disk.is_troubled

    # --- reading -------------------------------------------------------------------------------------

    async def _read_next(self, worker: _Worker) -> bool:
        """Read some of the segments of which nothing is known; False if there are none."""
        catalog = self._commitlog.catalog
        lacking = catalog.without_checksum(worker.disk.number)
        if not worker.to_read:
            newest = {segment.base_offset for segment in catalog.newest(NEWEST_KEPT)}
            worker.to_read = sorted(lacking - worker.absent - newest)
        bases = worker.to_read[-_NAMES_AT_ONCE:]
        if not bases:
            return False
        del worker.to_read[-_NAMES_AT_ONCE:]
        await self._read(worker, [base for base in bases if base in lacking])
        return True

    async def _read(self, worker: _Worker, bases: list[BaseOffset]) -> None:
        """Find out which of these segments have a checksum."""
        catalog = self._commitlog.catalog
        known = [segment for base in bases if (segment := catalog.get(base)) and segment.disk == worker.disk.number]
        before = {segment.name: (segment, segment.attributes) for segment in known}
        worker.absent.update(segment.base_offset for segment in known)
        for found in await self._call(worker, partial(find_checksums, worker.disk.dirfd, list(before))):
            segment, attributes = before[found.name]
            if not self._commitlog.record_stat(segment, attributes, found.attributes):
                continue
            # Meanwhile a request may have seen a later change.
            is_current = mtime_of(segment.attributes) == mtime_of(found.attributes)
            if found.is_valid and is_current and catalog.is_settled(segment):
                catalog.record_checksum(segment, is_valid=True)

    async def _sweep(self, worker: _Worker) -> None:
        """Find the segments that were changed although they had a checksum."""
        worker.swept_s, dirfd = self._clock.monotonic(), worker.disk.dirfd
        lacking = self._commitlog.catalog.without_checksum(worker.disk.number)
        worker.retry_at_s = {key: at_s for key, at_s in worker.retry_at_s.items() if key[0] in lacking}
        segments = self._commitlog.catalog.on_disk(worker.disk.number)
        known = [segment.attributes for segment in segments]
        names = [format_segment_name(segment.base_offset) for segment in segments]
        for index, outcome in await self._call(worker, partial(stat_changes, dirfd, names, known)):
            if isinstance(outcome, int):
                continue
            if size_of(outcome) > self._commitlog.segment_size:
                await self._refresh(segments[index])
            else:
                self._commitlog.record_stat(segments[index], known[index], outcome)

    def _to_drop(self, worker: _Worker) -> list[Segment]:
        """The newest segments on a disk that may have a checksum, if it can be removed now."""
        if not self._is_well(worker.disk):
            return []
        newest = self._commitlog.catalog.newest(NEWEST_KEPT)
        on_disk = [segment for segment in newest if segment.disk == worker.disk.number]
        worker.dropped &= {(segment.base_offset, segment.ino) for segment in on_disk}
        return [segment for segment in on_disk if (segment.base_offset, segment.ino) not in worker.dropped]

    async def _drop(self, worker: _Worker) -> None:
        """Remove the checksums of segments that are among the newest again."""
        for segment in self._to_drop(worker):
            self._commitlog.catalog.record_checksum(segment, is_valid=False)
            worker.dropped.add((segment.base_offset, segment.ino))
            try:
                drop = partial(drop_checksum, worker.disk.dirfd, segment.name, segment.ino)
                had_one = await self._call(worker, drop)
            except OSError as error:
                worker.dropped.discard((segment.base_offset, segment.ino))  # tried again
                self._record_failure(worker.disk, segment, error)
                continue
            if had_one:
                log_event(log, logging.INFO, "checksum_dropped", segment=segment.name, disk=worker.disk.path)

    # --- computing -----------------------------------------------------------------------------------

    async def _compute(self, worker: _Worker, segment: Segment) -> bool:
        """Whether the segment has a checksum now."""
        worker.absent.add(segment.base_offset)
        worker.job = job = _Job(segment=segment, kind=self._verdicts.kind_of(segment))
        key = segment.base_offset, segment.ino, job.kind
        try:
            outcome = await self._run_job(worker, job)
        except SegmentChangedError:
            worker.retry_at_s[key] = self._clock.monotonic() + self._timing.changed_retry_s
            return False
        except OSError as error:
            worker.retry_at_s[key] = self._clock.monotonic() + self._timing.failed_retry_s
            self._record_failure(worker.disk, segment, error)
            return False
        finally:
            job.stopped.set()  # for a thread that is left behind
            job.ended.set()
            worker.job = None
        worker.retry_at_s.pop(key, None)
        if outcome is _Outcome.COMPUTED:
            self._commitlog.counters.checksums += 1
            self._commitlog.counters.checksum_bytes += segment.size
            log_event(log, logging.DEBUG, "checksum_computed", segment=segment.name, disk=worker.disk.path)
        match outcome:
            case _Outcome.COMPUTED | _Outcome.PRESENT:
                await self._read(worker, [segment.base_offset])
            case _Outcome.INCOMPLETE:
                worker.retry_at_s[key] = self._clock.monotonic() + self._timing.failed_retry_s
            case _Outcome.WRONG_SIZE:
                worker.retry_at_s[key] = self._clock.monotonic() + self._timing.changed_retry_s
                await self._refresh(segment)
            case _Outcome.DAMAGED:  # a verdict that only the file has is known soon
                retry_s = self._timing.changed_retry_s if job.kind is None else self._timing.failed_retry_s
                worker.retry_at_s[key] = self._clock.monotonic() + retry_s
            case _Outcome.TOO_RECENT:
                worker.retry_at_s[key] = self._clock.monotonic() + self._timing.at_rest_s
        return segment.base_offset not in self._commitlog.catalog.without_checksum(segment.disk)

    async def _run_job(self, worker: _Worker, job: _Job) -> _Outcome:
        """Raises OSError, SegmentChangedError."""

        def watch() -> None:
            job.is_paused = self._gives_way(worker.disk.number)
            job.sharing = self._computing()
            is_judged = self._verdicts.kind_of(job.segment) is not job.kind
            if is_judged or not self._may_compute(job.segment) or self._to_drop(worker):
                job.stopped.set()

        call = partial(self._call, worker, partial(worker.compute, job))
        return await run_watched(call, watch, self._commitlog.timing.pace.look_s)

    async def _call(self, worker: _Worker, work: Callable[[], T]) -> T:
        """The result of a call in a thread of the disk, however long it takes; a cancelled task leaves it."""
        return await self._threads.run_within(worker.disk.number, math.inf, work)

    def _record_failure(self, disk: Disk, segment: Segment, error: OSError) -> None:
        if not self._commitlog.catalog.holds(segment):
            return  # it was removed meanwhile
        if isinstance(translate(disk.path, error), DiskError):
            self._observer.disk_error(disk.path, "checksum", errno.errorcode.get(error.errno or 0, "EIO"))
        log_event(log, logging.WARNING, "checksum_failed", segment=segment.name, disk=disk.path, reason=str(error))
