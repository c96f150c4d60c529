"""The scrub: reads the sealed segments of each disk from the device, and finds the damaged ones (store/scrub).

One run goes over all disks side by side, on each from the oldest segment to the newest that was sealed when the run
began. Each disk records the run and its position after every segment, so a daemon that starts continues it, and
reads at most one segment of each disk again, unless a verdict could not be recorded: no recorded position is past
its segment, and no recorded run has ended there, so the next daemon finds the damage again.

A segment that is moved before it is read is read on its new disk; if the run has ended there, it counts as not
read. That is recorded before the move: the record of its new disk alone would say that it is done. Unless the run
follows the chains, it is left out if the move has compared it with its checksum: a move reads all of the content,
and verifies the copy. A segment to which a process may append, because its move was undone, is read as any other: a
change during the read is seen, and if there is one in each read, it counts as not read.

A disk that cannot be read is given up for the run after some time (store/scrub/patience.py), so the run ends, and
the next one tries it again. Each disk counts the segments that were not read; a run without any is a complete one.
"""

import errno
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Final

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads, SingleCalls
from commitlogfs.fusefs.integrity.paced_work import Pace, PacedJob, run_watched
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.disk import MEDIUM_ERRORS, Disk, translate
from commitlogfs.store.disks.identity import has_room_beside
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, PoolError, SegmentChangedError, SegmentUnreadableError, StoreError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import mtime_of
from commitlogfs.store.moves.throttle import chunk_bytes
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.estimate import RateEstimate
from commitlogfs.store.scrub.patience import Patience
from commitlogfs.store.scrub.progress import (
    ATTRIBUTE_BYTES,
    LATEST_S,
    MOST_ORDERS,
    NOTHING,
    Command,
    Progress,
    Run,
    read_progress,
    write_progress,
)
from commitlogfs.store.scrub.reading import (
    CHUNK_BYTES,
    FAST_CHUNK_BYTES,
    SegmentReader,
    is_any_readable,
)
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.scrub.verdict import Evidence, Kind, Verdict, decide, whole_verdict
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.slowness.load import THIS_MACHINE, Machine

log = logging.getLogger(__name__)

_FREE_RUNNING_RATE: Final = 1 << 30
"""From this rate (bytes per second) on, chunks are large, so that the device is busy all the time."""
_ATTEMPTS: Final = 3
"""Reads of a segment that is changed meanwhile, such as by the record of its checksum."""
_COMPARED: Final = 8
"""Segments that are tried to find out whether a disk can read anything."""


class _StoppedError(StoreError):
    """The read of a segment was to end."""


@dataclass(slots=True)
class _Job(PacedJob):
    """The check of one segment."""

    segment: Segment = field(kw_only=True)
    done_bytes: int = 0
    """In the first read of the segment."""
    read_bytes: int = 0
    """In all reads of it."""
    is_unstable: bool = False
    """Whether two reads have returned different contents, of which the later one is right."""


class _Outcome(Enum):
    DONE = auto()
    STOPPED = auto()
    """It is read again from the beginning, if it is still in the log."""
    NOT_READ = auto()
    """Others on the disk can be read, and this one cannot, but for no fault of the medium."""
    UNREADABLE_DISK = auto()


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """How far the present or latest run is on one disk."""

    progress: Progress
    left_bytes: int
    bytes_per_second: float
    """0 if it is not known yet."""
    segment: Segment | None
    """The one that is read now."""
    eta_s: float | None
    """Time left, hours outside of the window included; None if it is not known yet."""
    waits_for: str
    """Why it does not continue at this moment; empty if it does, or has ended."""


class _Worker:
    """State of one disk. A thread of the disk runs `check`; all else belongs to the event loop."""

    def __init__(self, disk: Disk, commitlog: CommitLog, machine: Machine) -> None:
        self.disk = disk
        self._clock = commitlog.clock
        self._segment_size = commitlog.segment_size
        self.pace = Pace(disk, commitlog, machine)
        self.progress = NOTHING
        """As recorded, or to be recorded."""
        self.recorded: Progress | None = None
        """The progress that the disk has recorded."""
        self.loaded = trio.Event()
        self.to_read: list[BaseOffset] = []
        """The segments that are left, the one at hand included, in descending order."""
        self.job: _Job | None = None
        self.waits_for = ""
        self.estimate = RateEstimate()
        self.patience = Patience(commitlog.timing.scrub)
        self.attempt: trio.CancelScope | None = None
        """Scope of the step under way."""
        self.changed = trio.Event()
        self.saving = trio.Lock()
        self.working_since_s: float | None = None
        self.active_s = 0.0
        """Time at work in this run, without the segment at hand."""
        self.awaits_records = False
        """Whether the run has ended here, and is complete as soon as all verdicts are recorded."""
        self.reported = ""
        """The last reason for which the progress could not be recorded."""

    def check(self, job: _Job) -> Evidence | None:
        """Read a segment; the evidence if it is damaged. Blocks. Raises OSError, SegmentChangedError,
        SegmentUnreadableError, _StoppedError."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._check(job)
            except SegmentChangedError:
                job.done_bytes = 0
        return self._check(job)

    def _check(self, job: _Job) -> Evidence | None:
        segment, pace = job.segment, self.pace
        largest = FAST_CHUNK_BYTES if pace.rate >= _FREE_RUNNING_RATE else CHUNK_BYTES
        dirfd = self.disk.dirfd
        reader = SegmentReader(
            dirfd, segment.name, segment.ino, segment.base_offset, self._segment_size, self._clock, largest
        )
        try:
            processor_s = self._clock.processor()
            is_first = True

            def next_chunk(done: int, seconds: float) -> int:
                nonlocal processor_s
                if done:
                    job.read_bytes += done
                    job.done_bytes += done if is_first else 0
                    pace.record(job, done, self._clock.monotonic() - seconds, self._clock.processor() - processor_s)
                if not pace.may_continue(job):
                    raise _StoppedError
                processor_s = self._clock.processor()
                return chunk_bytes(pace.rate, largest)

            is_sealed_unread = segment.is_compared is False  # a move has given it a checksum
            follows_chain = self.progress.run.follows_chains or not reader.has_checksum or is_sealed_unread
            try:
                if not follows_chain and reader.matches_checksum(next_chunk):
                    return None
            except OSError as error:
                if error.errno not in MEDIUM_ERRORS:
                    raise
            is_first = follows_chain
            evidence = reader.examine(next_chunk)
            is_damaged = decide(evidence, 0) is not None
            if follows_chain and is_damaged:  # a second read excludes that one went wrong
                is_first = False
                evidence = reader.examine(next_chunk)
                job.is_unstable = decide(evidence, 0) is None
            else:
                job.is_unstable = not follows_chain and not is_damaged
            return evidence if decide(evidence, 0) is not None else None
        finally:
            reader.close()

    def restart(self, progress: Progress) -> None:
        """Continue from this progress. After a change of the rate, the rate until now says nothing."""
        self.progress, self.active_s, self.awaits_records = progress, float(progress.active_s), False
        self.estimate = RateEstimate()
        if progress.run.sequence:
            self.restart_estimate()

    def restart_estimate(self) -> None:
        """From now on, another rate counts."""
        self.estimate = RateEstimate(self._active_now_s(), self.read_bytes())

    def advance(self, progress: Progress, elapsed_s: float) -> None:
        """A segment is done."""
        self.active_s += elapsed_s
        self.progress = replace(progress, active_s=round(self.active_s))
        self.estimate.record(self.active_s, progress.read_bytes)

    def add_to_read(self, base: BaseOffset) -> None:
        """A segment is left, if it was not already."""
        if not self.is_left(base):
            self.to_read.insert(self._place(base), base)

    def is_left(self, base: BaseOffset) -> bool:
        """Whether a segment is to be read, or is read now."""
        return self.to_read[self._place(base) :][:1] == [base]

    def let_go(self, base: BaseOffset) -> None:
        """A segment is done, or left on another disk, or nowhere."""
        if self.is_left(base):
            del self.to_read[self._place(base)]

    def _place(self, base: BaseOffset) -> int:
        return bisect_left(self.to_read, -base, key=lambda one: -one)

    def count_before(self, position: BaseOffset) -> int:
        """Number of segments before a position that are left. Those before the worker's own have come from other
        disks."""
        return len(self.to_read) - bisect_right(self.to_read, -position, key=lambda one: -one)

    def read_bytes(self) -> int:
        """Bytes of the run that are done, those of the segment at hand included."""
        return self.progress.read_bytes + (0 if self.job is None else self.job.done_bytes)

    def bytes_per_second(self) -> float:
        measured = self.estimate.bytes_per_second(self._active_now_s(), self.read_bytes())
        rate = self.progress.run.rate
        return min(measured, float(rate)) if rate else measured

    def _active_now_s(self) -> float:
        working_s = 0.0 if self.working_since_s is None else self._clock.monotonic() - self.working_since_s
        return self.active_s + working_s


class Scrub:
    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        observer: Observer,
        verdicts: Verdicts,
        gives_way: Callable[[DiskNumber], bool],
        rules: ScrubRules,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """`gives_way`: as for Checksums."""
        self._commitlog = commitlog
        self._clock = commitlog.clock
        self._timing = commitlog.timing.scrub
        self._threads = threads
        self._observer = observer
        self._verdicts = verdicts
        self._gives_way = gives_way
        self.rules = rules
        self._machine = machine
        self._workers = {number: _Worker(disk, commitlog, machine) for number, disk in commitlog.disks.items()}
        self._reads = SingleCalls(threads)
        self.latest = NOTHING.run
        """The present run, or the latest one."""

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        async with trio.open_nursery() as nursery:
            for worker in self._workers.values():
                nursery.start_soon(self._run_for, worker)
            nursery.start_soon(self._follow_schedule)
            nursery.start_soon(self._watch_patience)

    # --- state ---------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether a run is under way, be it paused or not."""
        if not self.latest.begun_s or self.latest.command is Command.CANCEL:
            return False
        return any(worker.loaded.is_set() and not worker.progress.ended_s for worker in self._workers.values())

    @property
    def is_loaded(self) -> bool:
        """Whether all disks have answered what they record. Before, a run may be under way that is not known."""
        return not self.not_loaded()

    async def await_loaded(self) -> None:
        """Wait until it is known, but not for long, whether a run is under way."""
        with trio.move_on_after(self._timing.record_s):
            for worker in self._workers.values():
                await worker.loaded.wait()

    def not_loaded(self) -> list[DiskNumber]:
        """The disks that have not answered yet."""
        return [number for number, worker in self._workers.items() if not worker.loaded.is_set()]

    @property
    def read_bytes(self) -> int:
        """Bytes that this daemon has read."""
        jobs = (worker.job for worker in self._workers.values())
        return self._commitlog.counters.scrub_bytes + sum(job.read_bytes for job in jobs if job is not None)

    def completed_s(self) -> int:
        """Since when every disk has been read by a complete run: seconds since 1970; 0 if there was none, or
        while a disk is missing, of which that is not known."""
        if self._commitlog.missing:
            return 0
        return min((worker.progress.completed_s for worker in self._workers.values()), default=0)

    def next_s(self) -> float | None:
        """When the next run is due by the schedule, apart from the window; None if none is."""
        now_s, every_s, ends_s = self._now_s(), self.rules.every_s, self._ends_s()
        credible = [ended_s for ended_s in ends_s if ended_s <= now_s + every_s]
        if credible or self._is_clock_behind(now_s + every_s):
            return self.rules.next_s(max(credible or ends_s))
        return self.rules.next_s(now_s - every_s)  # the records are wrong; the run that is due now rights them

    def _ends_s(self) -> list[int]:
        """When the latest run has ended on the disks that can record it. The others count only if there is no such
        disk: each daemon reads them again, and their ends would begin the interval anew."""
        workers = self._workers.values()
        recording = [
            worker
            for worker in workers
            if not worker.disk.forbids_writes and self._recordable(worker).ended_s == worker.progress.ended_s
        ]
        return [worker.progress.ended_s for worker in recording or workers]

    def _is_clock_behind(self, latest_s: float) -> bool:
        """Whether the log shows that the clock is wrong now: both the oldest segment and the newest one that a run
        would read were changed after `latest_s`.

        A broker that writes before the clock is right changes neither of them. After a time with a clock that was
        ahead, the newer one has a right time as soon as the broker has made some more segments. False for an empty
        log: it has nothing to read.
        """
        catalog = self._commitlog.catalog
        witnesses = catalog.oldest(1) + catalog.newest(NEWEST_KEPT + 1)[:1]
        return bool(witnesses) and all(mtime_of(one.attributes) / 1e9 > latest_s for one in witnesses)

    def figures(self) -> dict[DiskNumber, DiskFigures]:
        return {number: self._figures(worker) for number, worker in self._workers.items()}

    def _figures(self, worker: _Worker) -> DiskFigures:
        job, rate = worker.job, worker.bytes_per_second()
        is_ended = not self.is_active or worker.progress.ended_s > 0
        left = 0 if is_ended else self._left_bytes(worker)
        eta_s = None if left and not rate else left / rate if left else 0.0
        if eta_s and self.latest.is_scheduled:
            eta_s = self.rules.elapsed_s(self._clock.wall(), eta_s)
        return DiskFigures(
            replace(worker.progress, read_bytes=worker.read_bytes()),
            left,
            rate,
            None if job is None else job.segment,
            eta_s,
            "" if is_ended else worker.waits_for,
        )

    def _left_bytes(self, worker: _Worker) -> int:
        """Without segments that have expired before they were read."""
        first, job = self._commitlog.catalog.first, worker.job
        begin = 0 if first is None else first.base_offset
        count = bisect_right(worker.to_read, -begin, key=lambda base: -base)
        done = job.done_bytes if job is not None and worker.is_left(job.segment.base_offset) else 0
        return max(0, count * self._commitlog.segment_size - done)

    def unread(self) -> dict[DiskNumber, int]:
        """Number of segments that the present or latest run has not read, of each disk that has such."""
        found = {number: worker.progress.unread for number, worker in self._workers.items()}
        return {number: count for number, count in found.items() if count}

    def settled_bytes(self) -> int:
        """Bytes that a run that begins now would read."""
        catalog = self._commitlog.catalog
        newest = sum(segment.size == catalog.segment_size for segment in catalog.newest(NEWEST_KEPT))
        return (len(catalog) - catalog.partial_count - newest) * catalog.segment_size

    # --- orders --------------------------------------------------------------------------------------

    async def begin(self, rate: int, *, follows_chains: bool, is_scheduled: bool = False) -> list[str]:
        """Begin a run. Returns the paths of the disks that have not recorded it yet. Raises PoolError while another
        one is under way."""
        if self.is_active:
            raise PoolError("a scrub is under way already")
        era, begun_s = self.latest.next_number(self._now_s())
        run = Run(begun_s, self._end(), 0, Command.RUN, rate, is_scheduled, follows_chains, era)
        log_event(log, logging.INFO, "scrub_began", rate=rate or None, scheduled=is_scheduled)
        return await self._order(run)

    async def change(self, command: Command, rate: int, *, by_hand: bool = False) -> list[str]:
        """Give an order to the run that is under way, with its rate from now on; as `begin`. One `by_hand` ends the
        schedule's window for it. Raises PoolError if there is none."""
        if not self.is_active:
            raise PoolError("no scrub is under way")
        sequence = self.latest.sequence + 1
        if sequence >= MOST_ORDERS and command is not Command.CANCEL:
            raise PoolError("this scrub has had too many orders; `scrub cancel` it, and start another one")
        run = replace(
            self.latest,
            sequence=sequence,
            command=command,
            rate=rate,
            is_scheduled=self.latest.is_scheduled and not by_hand,
        )
        events = {Command.RUN: "resumed", Command.PAUSE: "paused", Command.CANCEL: "cancelled"}
        log_event(
            log,
            logging.INFO,
            "scrub_ordered",
            command=events[command],
            rate=rate or None,
            scheduled=run.is_scheduled,
        )
        return await self._order(run)

    async def _order(self, run: Run) -> list[str]:
        self._take_over(run)
        lagging = {worker.disk.path for worker in self._workers.values() if not worker.disk.forbids_writes}

        async def save(worker: _Worker) -> None:
            if worker.loaded.is_set() and await self._save(worker):
                lagging.discard(worker.disk.path)

        with trio.move_on_after(self._timing.record_s):
            async with trio.open_nursery() as nursery:
                for worker in self._workers.values():
                    nursery.start_soon(save, worker)
        return sorted(lagging)

    def _take_over(self, run: Run) -> None:
        """Let the later of two orders count, on all disks that have answered."""
        if run.order > self.latest.order:
            self.latest = run
        for worker in self._workers.values():
            if worker.loaded.is_set():
                self._adopt(worker)

    def _adopt(self, worker: _Worker) -> None:
        """Let the present run be that of a disk."""
        run, former = self.latest, worker.progress
        worker.pace.rate = run.rate
        if run == former.run:
            return
        if run.number != former.run.number:
            ended_s = self._ended_s(run)
            worker.restart(Progress(run, completed_s=former.completed_s))
            self._list_segments(worker)
            if not former.run.begun_s and not worker.to_read:  # a disk that has joined since
                completed_s = former.completed_s or ended_s
                worker.progress = replace(worker.progress, ended_s=ended_s, completed_s=completed_s)
        else:
            worker.progress = replace(former, run=run)
            if run.rate != former.run.rate:
                worker.restart_estimate()
        if run.command is Command.CANCEL and not worker.progress.ended_s:
            worker.progress = replace(worker.progress, ended_s=self._now_s())
        worker.changed.set()

    def _now_s(self) -> int:
        """The clock's time, within the limits of a record."""
        return min(max(1, round(self._clock.wall())), LATEST_S)

    def _ended_s(self, run: Run) -> int:
        """When a run has ended, on all disks that have taken part in it; 0 while it has not, and for a new one."""
        known = [worker.progress for worker in self._workers.values() if worker.loaded.is_set()]
        ended = [progress.ended_s for progress in known if progress.run.number == run.number]
        return max(ended) if ended and all(ended) else 0

    def _end(self) -> BaseOffset:
        """The first log offset that does not belong to a run that begins now."""
        newest = self._commitlog.catalog.newest(NEWEST_KEPT)
        return newest[0].base_offset if newest else BaseOffset(0)

    def _list_segments(self, worker: _Worker) -> None:
        progress = worker.progress
        on_disk = self._commitlog.catalog.on_disk(worker.disk.number)
        bases = (segment.base_offset for segment in on_disk)
        run = progress.run
        worker.to_read = sorted((base for base in bases if progress.position <= base < run.end), reverse=True)

    # --- the schedule --------------------------------------------------------------------------------

    async def _follow_schedule(self) -> None:
        while True:
            await trio.sleep(self._timing.schedule_s)
            if self.is_loaded and self.is_due():
                await self.begin(self.rules.rate, follows_chains=False, is_scheduled=True)

    def is_due(self) -> bool:
        """Whether the schedule begins a run now."""
        next_s, now_s = self.next_s(), self._now_s()
        if self.is_active or next_s is None or now_s < next_s or not self.rules.is_open(now_s):
            return False
        return self._end() > 0

    # --- one disk ------------------------------------------------------------------------------------

    async def _run_for(self, worker: _Worker) -> None:
        await self._load(worker)
        await trio.sleep(self._timing.start_s)
        while True:
            worker.waits_for = self._obstacle(worker)
            pause_s = self._timing.look_s
            if not worker.waits_for and self.is_active and not worker.progress.ended_s:
                with trio.CancelScope() as worker.attempt:
                    pause_s = await self._step(worker)
                worker.attempt = None
            self._complete(worker)
            if worker.recorded != self._recordable(worker):
                await self._save(worker)
            with trio.move_on_after(pause_s):
                await worker.changed.wait()
            worker.changed = trio.Event()

    async def _load(self, worker: _Worker) -> None:
        """Find out what the disk records."""
        try:
            found = await self._threads.run_within(
                worker.disk.number, math.inf, partial(read_progress, worker.disk.dirfd)
            )
        except OSError as error:
            log_event(log, logging.WARNING, "scrub_failed", disk=worker.disk.path, reason=str(error))
            found = NOTHING
        run = worker.progress.run
        if run.begun_s and run.order >= found.run.order:  # it was given up, and takes part in a run already
            worker.recorded = found
            completed_s = worker.progress.completed_s or found.completed_s
            worker.progress = replace(worker.progress, completed_s=completed_s)
            return
        if found == NOTHING and self.rules.every_s:
            found = replace(NOTHING, ended_s=self._now_s())
        else:
            worker.recorded = found
        self._settle(worker, found)

    def _settle(self, worker: _Worker, found: Progress) -> None:
        """From now on, the disk takes part."""
        worker.restart(found)
        worker.loaded.set()
        self._list_segments(worker)
        self._take_over(found.run)

    def _obstacle(self, worker: _Worker) -> str:
        """Why a disk is not read now; empty if it is."""
        disk = worker.disk
        if rest := self._rest():
            return rest
        if trouble := self._trouble(worker):
            return trouble
        return "a move" if self._gives_way(disk.number) else ""

    def _rest(self) -> str:
        """Why no disk is to be read now."""
        if self.latest.command is Command.PAUSE:
            return "paused"
        is_closed = self.latest.is_scheduled and not self.rules.is_open(self._clock.wall())
        return "outside of its window" if is_closed else ""

    def _trouble(self, worker: _Worker) -> str:
        """Why a disk cannot be read now."""
        disk = worker.disk
        is_unread = disk.is_unreadable or disk.unreadable_since_s is not None
        if disk.is_unresponsive or is_unread or (disk.is_failing and not disk.is_read_only):
            return disk.last_error or "does not answer, or cannot be read"
        hangs = worker.job is None and self._reads.is_under_way(disk.number)
        return "has not answered an earlier read" if hangs else ""

    async def _step(self, worker: _Worker) -> float:
        """Check one segment, or end the run on a disk. Returns the seconds until the next step."""
        segment = self._next_segment(worker)
        if segment is None:
            self._end_on(worker)
            return self._timing.look_s
        worker.working_since_s = self._clock.monotonic()
        number = self.latest.number
        try:
            outcome = await self._check(worker, segment)
        finally:
            elapsed_s = self._clock.monotonic() - worker.working_since_s
            worker.working_since_s = None
            worker.job = None
        if number != self.latest.number:
            return 0.0  # it was cancelled, and another run has begun
        if outcome in (_Outcome.STOPPED, _Outcome.UNREADABLE_DISK):
            return self._timing.retry_s if outcome is _Outcome.UNREADABLE_DISK else 0.0
        worker.let_go(segment.base_offset)
        is_read = outcome is _Outcome.DONE
        progress = replace(
            worker.progress,
            position=max(worker.progress.position, BaseOffset(segment.base_offset + self._commitlog.segment_size)),
            read_bytes=worker.progress.read_bytes + (segment.size if is_read else 0),
            unread=worker.progress.unread + (not is_read),
        )
        worker.advance(progress, elapsed_s)
        return 0.0

    def _next_segment(self, worker: _Worker) -> Segment | None:
        """The next one on the disk that may be read; the others before it have left the log or the disk."""
        catalog = self._commitlog.catalog
        while worker.to_read:
            segment = catalog.get(worker.to_read[-1])
            if segment is not None and self._may_read(segment):
                if segment.disk == worker.disk.number:
                    return segment
                if not self._suffices(worker, is_compared=segment.is_compared):
                    self._hand_over(worker, segment.base_offset, segment.disk)
            worker.to_read.pop()
        return None

    async def prepare_move(self, file: Segment, target: DiskNumber, *, is_compared: bool) -> None:
        """A segment is about to be moved. If it is still left, that is recorded, if possible, before its copy gets
        its name. `is_compared`: as for CommitLog.record_moved. If nothing comes of the move, the segment is still
        read, or counts as not read."""
        base = file.base_offset
        under_way = [worker for worker in self._workers.values() if self.is_active and not worker.progress.ended_s]
        for worker in under_way:  # on another disk if a former move has failed at its end
            is_there = worker.disk.number == target or not worker.is_left(base)
            if is_there or self._suffices(worker, is_compared=is_compared):
                continue
            counting = self._hand_over(worker, base, target)
            worker.let_go(base)
            with trio.move_on_after(self._timing.record_s):
                await self._save(counting)

    def record_moved(self, copy: Segment) -> None:
        """The copy is the segment from now on."""
        for worker in self._workers.values():
            if self._suffices(worker, is_compared=copy.is_compared):
                worker.let_go(copy.base_offset)

    @staticmethod
    def _suffices(worker: _Worker, *, is_compared: bool | None) -> bool:
        """Whether a move took the place of the read of a segment."""
        return bool(is_compared) and not worker.progress.run.follows_chains

    def _hand_over(self, worker: _Worker, base: BaseOffset, target: DiskNumber) -> _Worker:
        """A segment that was not read on a disk has been moved from there, or is about to be. Returns the worker
        that counts it now."""
        run, other = worker.progress.run, self._workers[target]
        is_under_way = other.loaded.is_set() and other.progress.run.number == run.number
        if is_under_way and not other.progress.ended_s:
            other.add_to_read(base)
            return other
        worker.progress = replace(worker.progress, unread=worker.progress.unread + 1)
        return worker

    def _may_read(self, segment: Segment) -> bool:
        return self._commitlog.catalog.is_sealed(segment)

    def _end_on(self, worker: _Worker) -> None:
        progress = worker.progress
        now_s = self._now_s()
        # A wrong clock may have recorded a complete run in the future, which would hide that later ones are not.
        worker.awaits_records = not progress.unread
        worker.progress = replace(progress, ended_s=now_s, completed_s=min(progress.completed_s, now_s))
        self._complete(worker)
        if not self.is_active:
            damaged = len(self._verdicts.present())
            read = sum(one.progress.read_bytes for one in self._workers.values())
            unread = sum(self.unread().values())
            log_event(log, logging.INFO, "scrubbed", bytes=read, damaged=damaged, unread=unread or None)

    def _complete(self, worker: _Worker) -> None:
        """A run that has read all of a disk is complete there once others will know what it has found."""
        if worker.awaits_records and not self._unrecorded(worker):
            worker.awaits_records = False
            worker.progress = replace(worker.progress, completed_s=min(worker.progress.ended_s, self._now_s()))

    # --- disks that cannot be read -------------------------------------------------------------------

    async def _watch_patience(self) -> None:
        while True:
            await trio.sleep(self._timing.look_s)
            for worker in self._workers.values():
                read, is_idle = worker.read_bytes(), self._is_idle(worker)
                if worker.patience.is_over(self._clock.monotonic(), worker.progress, read, is_idle=is_idle):
                    self._give_up(worker)

    def _is_idle(self, worker: _Worker) -> bool:
        """Whether a disk has nothing to read, or is not to be read now."""
        if not worker.loaded.is_set():
            return False
        if not self.is_active or worker.progress.ended_s or self._rest():
            return True
        if self._trouble(worker):
            return False
        return self._gives_way(worker.disk.number) or (worker.job is not None and worker.job.is_resting)

    def _give_up(self, worker: _Worker) -> None:
        """The run ends on a disk that cannot be read; or, at the start of the daemon, nobody waits any longer for
        what it records."""
        worker.patience = Patience(self._timing)
        if not worker.loaded.is_set():
            reason = "it has not answered how far the scrub is"
            log_event(log, logging.WARNING, "scrub_given_up", disk=worker.disk.path, reason=reason)
            self._settle(worker, NOTHING)
            return
        catalog, number = self._commitlog.catalog, worker.disk.number
        left = [segment for base in worker.to_read if (segment := catalog.get(base)) is not None]
        segments = [segment for segment in left if segment.disk == number]
        for segment in left:
            if segment.disk != number and not self._suffices(worker, is_compared=segment.is_compared):
                self._hand_over(worker, segment.base_offset, segment.disk)
        reason = self._trouble(worker) or "does not answer, or cannot be read"
        log_event(
            log, logging.WARNING, "scrub_given_up", disk=worker.disk.path, segments=len(segments), reason=reason
        )
        worker.progress = replace(worker.progress, unread=worker.progress.unread + len(segments))
        worker.to_read.clear()
        if worker.attempt is not None:
            worker.attempt.cancel()
        worker.pace = Pace(
            worker.disk, self._commitlog, self._machine
        )  # a thread that is left behind keeps the former one
        self._end_on(worker)
        worker.changed.set()

    async def close_moved(self, disk: DiskNumber) -> None:
        """Return once no file of a disk is read here whose segment has left that disk."""
        job = self._workers[disk].job
        if job is not None and not self._may_read(job.segment):
            await job.end()

    async def _check(self, worker: _Worker, segment: Segment) -> _Outcome:
        worker.job = job = _Job(segment=segment)
        number = self.latest.number

        def watch() -> None:
            job.is_paused = self._gives_way(worker.disk.number)
            job.sharing = sum(other.job is not None for other in self._workers.values())
            is_wanted = self.is_active and self.latest.number == number
            if not is_wanted or not self._may_read(segment) or (not job.is_paused and self._obstacle(worker)):
                job.stopped.set()

        try:
            check = partial(worker.check, job)
            call = partial(self._reads.run_within, worker.disk.number, math.inf, check)
            evidence = await run_watched(call, watch, self._commitlog.timing.pace.look_s)
        except _StoppedError:
            return _Outcome.STOPPED
        except SegmentChangedError as error:
            log_event(log, logging.DEBUG, "scrub_skipped", segment=segment.name, reason=str(error))
            return _Outcome.NOT_READ if self._may_read(segment) else _Outcome.STOPPED
        except (SegmentUnreadableError, OSError) as error:
            return await self._record_failure(worker, segment, error)
        finally:
            job.stopped.set()  # for a thread that is left behind
            job.ended.set()
            self._commitlog.counters.scrub_bytes += job.read_bytes
        if job.is_unstable:
            log_event(log, logging.WARNING, "unstable_read", segment=segment.name, disk=worker.disk.path)
        if evidence is None and segment.is_compared is False:
            segment.is_compared = None  # its chain was followed: a move has not given a checksum to unread content
        verdict = None if evidence is None else decide(evidence, round(self._clock.wall()))
        return _Outcome.DONE if verdict is None else await self._record(segment, verdict)

    async def _record(self, segment: Segment, verdict: Verdict) -> _Outcome:
        if not self._may_read(segment):
            return _Outcome.STOPPED
        self._verdicts.record(segment, verdict)
        await self._verdicts.record_on_disk(segment)
        return _Outcome.DONE

    async def _record_failure(
        self, worker: _Worker, segment: Segment, error: SegmentUnreadableError | OSError
    ) -> _Outcome:
        """A segment cannot be read. That is a verdict if others on the disk can, and the medium is to blame."""
        disk = worker.disk
        if not self._may_read(segment):
            return _Outcome.STOPPED  # it was removed or moved meanwhile
        log_event(log, logging.WARNING, "scrub_failed", segment=segment.name, disk=disk.path, reason=str(error))
        if isinstance(error, OSError) and isinstance(translate(disk.path, error), DiskError):
            self._observer.disk_error(disk.path, "scrub", errno.errorcode.get(error.errno or 0, "EIO"))
        others = [other.name for other in self._commitlog.catalog.on_disk(disk.number) if other is not segment]
        compared = others[:: max(1, len(others) // _COMPARED)]
        readable = partial(is_any_readable, disk.dirfd, compared)
        if not await self._reads.run_within(disk.number, math.inf, readable):
            return _Outcome.UNREADABLE_DISK
        if isinstance(error, OSError) and error.errno not in MEDIUM_ERRORS:
            return _Outcome.NOT_READ if self._may_read(segment) else _Outcome.STOPPED
        verdict = whole_verdict(Kind.UNREADABLE, segment.size, round(self._clock.wall()))
        return await self._record(segment, verdict)

    def _recordable(self, worker: _Worker) -> Progress:
        """The progress that another daemon may continue: from the first segment whose verdict only this one knows.
        What that daemon does not read is not read: segments that are still left before the position, and, of a run
        that was cancelled, those with such verdicts."""
        progress, unrecorded = worker.progress, self._unrecorded(worker)
        unknown = 0
        if progress.run.command is Command.CANCEL:
            unknown = len(unrecorded)
        elif unrecorded:
            position = min(progress.position, unrecorded[0].base_offset)
            progress = replace(progress, position=position, ended_s=0)
        return replace(progress, unread=progress.unread + worker.count_before(progress.position) + unknown)

    def _unrecorded(self, worker: _Worker) -> list[Segment]:
        """The segments of the run on a disk whose verdicts only this daemon knows."""
        unrecorded = self._verdicts.unrecorded_on(worker.disk.number)
        return [segment for segment in unrecorded if segment.base_offset < worker.progress.run.end]

    async def _save(self, worker: _Worker) -> bool:
        """Let the disk record its progress. Returns whether it has."""
        async with worker.saving:
            progress, disk = self._recordable(worker), worker.disk
            if disk.forbids_writes or disk.is_unresponsive:  # a thread would hold this daemon while it hangs
                return False
            identity, room = self._commitlog.identity_of(disk), disk.filesystem.attribute_bytes
            if not has_room_beside(identity, room, ATTRIBUTE_BYTES):
                self._report_unrecorded(worker, "its directory has no room for another attribute")
                return False
            write = partial(write_progress, disk.dirfd, progress)
            try:
                await self._threads.run_within(disk.number, math.inf, write)
            except OSError as error:
                self._report_unrecorded(worker, str(error))
                return False
            worker.recorded = progress
            return True

    @staticmethod
    def _report_unrecorded(worker: _Worker, reason: str) -> None:
        if reason != worker.reported:
            worker.reported = reason
            log_event(log, logging.WARNING, "scrub_not_recorded", disk=worker.disk.path, reason=reason)
