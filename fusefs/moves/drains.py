"""Drains: disks that are to become empty, and the moves that this takes.

A drain is recorded in the list of members on all disks, so the next daemon continues it.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import trio

from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.moves.mover import Cause, FormerFileError, Hindrance, Mover, MoveStoppedError
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode
from commitlogfs.store.errors import (
    DiskError,
    DiskFailedError,
    DiskReadOnlyError,
    RottenSegmentError,
    SegmentUnreadableError,
    StoreError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.targets import Target, choose_target, segments_below_force
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.segment import BaseOffset

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed attempt to move a segment, the latest one."""

    retry_at_s: float
    hindrance: Hindrance


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Numbers of segments."""

    to_move: int
    kept: int
    """Among the newest of the log: they are moved when newer ones have been made."""
    needed: int
    """To move from this disk and all disks that drain by copying, sooner or later."""
    room: int
    """The most that the other disks can take."""


class Drains:
    """Moves the segments of draining disks, one after the other."""

    def __init__(self, commitlog: CommitLog, mover: Mover, usage: UsageMonitor) -> None:
        self._commitlog = commitlog
        self._timing = commitlog.timing.moves
        self._mover = mover
        self._usage = usage
        self._changed = trio.Event()
        self._failures: dict[tuple[DiskNumber, int], _Failure] = {}
        """By disk and inode of the segment."""
        self._unreadable: set[tuple[DiskNumber, int]] = set()
        """Segments, by disk and inode, of which nothing could be read."""
        self._moved: deque[tuple[float, float, int]] = deque()
        """The latest moves: (begin, end, bytes), in steady time."""
        self.no_room: set[DiskNumber] = set()
        """Draining disks whose next segment fits on no other disk."""
        self.last_error = ""

    def announce(self) -> None:
        """A drain or rebalance has begun or changed."""
        self._failures.clear()
        self._unreadable.clear()
        self._changed.set()
        self._changed = trio.Event()

    async def announce_end(self) -> None:
        """A drain or rebalance has ended. Afterwards nothing is moved for it any more, unless a disk takes longer
        than MemberTiming.record_s for a change of names."""
        self.announce()
        with trio.move_on_after(self._commitlog.timing.members.record_s):
            await self._mover.end_of_publishing()

    async def run(self, otherwise: Callable[[], Awaitable[bool]]) -> None:
        """Until cancelled. `otherwise` is called when no drain has a segment to move now; it returns whether it has
        moved one."""
        while True:
            changed = self._changed
            await self._mover.remove_stray_copies()
            if not await self._move_next() and not await otherwise():
                with trio.move_on_after(self._timing.look_s):
                    await changed.wait()

    def draining(self) -> list[Disk]:
        return [disk for disk in self._commitlog.disks.values() if disk.drain is not None]

    def plan(self, disk: Disk) -> "DrainPlan":
        """The extent of a drain by copying, as of now."""
        size = self._commitlog.segment_size
        others = [other for other in self.draining() if other is not disk]
        count_on_disk = self._commitlog.catalog.count_on_disk
        waiting, count = len(self.waiting(disk)), count_on_disk(disk.number)
        needed = count + sum(
            count_on_disk(other.number) for other in others if other.drain and other.drain.mode.copies
        )
        room = sum(segments_below_force(t, size) for t in self.targets() if t.number != disk.number)
        return DrainPlan(waiting, count - waiting, needed, room)

    def waiting(self, disk: Disk) -> list[Segment]:
        """The segments of a disk that can be moved now, or when their time for another attempt has come: newest
        first, since the oldest may expire before their turn."""
        kept = {segment.base_offset for segment in self._commitlog.catalog.newest(NEWEST_KEPT)}
        size = self._commitlog.segment_size
        found = [
            segment
            for segment in self._commitlog.catalog.on_disk(disk.number)
            if segment.size == size and segment.base_offset not in kept
        ]
        return sorted(found, key=lambda segment: -segment.base_offset)

    def unreadable_count(self, disk: Disk) -> int:
        """Number of segments on a disk of which nothing could be read."""
        on_disk = self._commitlog.catalog.on_disk(disk.number) if self._unreadable else []
        return sum((segment.disk, segment.ino) in self._unreadable for segment in on_disk)

    def bytes_per_second(self) -> float:
        """Rate at which segments were moved lately, pauses and checks included; 0.0 if none was."""
        if not self._moved:
            return 0.0
        return sum(count for _, _, count in self._moved) / max(0.001, self._moved[-1][1] - self._moved[0][0])

    async def _move_next(self) -> bool:
        """Move one segment; False if there is none to move now."""
        for disk in self.draining():
            self.no_room.discard(disk.number)
            drain = disk.drain  # it may end while the targets are measured
            if drain is None or not drain.mode.copies or not _may_leave(disk, drain.mode is DrainMode.FAILING):
                continue
            waiting, salvages = self.waiting(disk), drain.mode is DrainMode.FAILING
            segment = self.first_movable(one for one in waiting if salvages or not self._expires_first(one))
            if segment is None:
                continue
            await self.measure_targets()
            target = self.choose_target(segment.base_offset)
            if target is None:
                self.no_room.add(disk.number)
                continue
            await self._move(disk, drain, segment, target)
            return True
        return False

    def _expires_first(self, segment: Segment) -> bool:
        """Whether a segment is not worth a move, since it will leave the log. A failing disk may lose it before."""
        return self._commitlog.is_about_to_expire(segment, self._timing.life_left_s)

    def first_movable(self, segments: Iterable[Segment]) -> Segment | None:
        """The first one that may be moved now, and has not failed a moment ago."""
        now_s = self._commitlog.clock.monotonic()
        for segment in segments:
            if not self._mover.may_move(segment):
                continue
            failure = self._failures.get((segment.disk, segment.ino))
            if failure is None or failure.retry_at_s <= now_s:
                return segment
        return None

    def hindrance(self, disk: Disk, *, salvages: bool) -> Hindrance | None:
        """The reason why no segment of a disk is moved; None while one can be moved, or there is none to move.
        `salvages`: as for Mover.move."""
        progress = self._mover.progress
        found: Hindrance | None = None
        if progress is not None and progress.source == disk.number:
            return None
        for segment in self.waiting(disk):
            if not _may_leave(disk, salvages):
                return Hindrance(Cause.DISK_KEEPS_ALL, disk.path)
            failure = self._failures.get((segment.disk, segment.ino))
            of_segment = self._mover.hindrance(segment) or (None if failure is None else failure.hindrance)
            if of_segment is None and not salvages and self._expires_first(segment):
                of_segment = Hindrance(Cause.EXPIRES_FIRST, disk.path, segment.name)
            if of_segment is None:
                return None
            found = found or of_segment
        return found

    async def measure_targets(self) -> None:
        """Before a target is chosen: how full the disks are."""
        await self._usage.refresh(self._timing.usage_age_s)

    def targets(self) -> list[Target]:
        """The disks that take segments now, whatever else is planned."""
        eligible = self._commitlog.evaluate(self._commitlog.clock.monotonic()).eligible
        found = []
        for number in eligible:
            usage = self._commitlog.space.measured(number)
            if usage is not None:
                found.append(Target(number, usage, self._commitlog.disks[number].thresholds))
        return found

    def choose_target(self, base_offset: BaseOffset, *, but: DiskNumber | None = None) -> DiskNumber | None:
        """The disk for a segment that leaves its disk, or comes back; None if it fits on none but `but`."""
        size, catalog = self._commitlog.segment_size, self._commitlog.catalog
        around = (catalog.get(base_offset - size), catalog.get(base_offset + size))
        targets = [target for target in self.targets() if target.number != but]
        return choose_target(targets, size, {other.disk for other in around if other is not None})

    async def _move(self, disk: Disk, drain: Drain, segment: Segment, target: DiskNumber) -> None:
        def is_wanted() -> bool:
            present = disk.drain
            return present is not None and (present.since_s, present.mode) == (drain.since_s, drain.mode)

        def rate() -> int:
            return 0 if disk.drain is None else disk.drain.rate

        salvages = drain.mode is DrainMode.FAILING
        if await self.attempt(segment, target, rate, is_wanted, salvages=salvages) and not self.waiting(disk):
            log_event(log, logging.INFO, "drained", disk=disk.path)

    async def attempt(
        self,
        segment: Segment,
        target: DiskNumber,
        rate: Callable[[], int],
        is_wanted: Callable[[], bool],
        *,
        salvages: bool = False,
    ) -> bool:
        """Move one segment; `rate`, `is_wanted` and `salvages` as for Mover.move. Returns whether it was moved: a
        failure is logged, and the segment is tried again after a while."""
        disk, began_s = self._commitlog.disk_of(segment), self._commitlog.clock.monotonic()

        def may_leave() -> bool:
            return is_wanted() and _may_leave(disk, salvages)

        try:
            await self._mover.move(segment, target, rate, may_leave, salvages=salvages)
        except MoveStoppedError as stopped:
            log_event(log, logging.INFO, "move_stopped", segment=segment.name, reason=str(stopped))
            return False
        except (StoreError, OSError) as error:
            is_unreadable = isinstance(error, SegmentUnreadableError)
            is_rotten = isinstance(error, RottenSegmentError)
            is_damaged = is_unreadable or is_rotten
            pause_s = self._timing.unreadable_retry_s if is_damaged else self._timing.retry_s
            about = error.disk if isinstance(error, DiskError | FormerFileError) else disk.path
            hindrance = Hindrance(Cause.FAILED, about, segment.name, str(error))
            retry_at_s = self._commitlog.clock.monotonic() + pause_s
            self._failures[segment.disk, segment.ino] = _Failure(retry_at_s, hindrance)
            if is_unreadable:
                self._unreadable.add((segment.disk, segment.ino))
            self.last_error = str(error)
            if not (salvages and isinstance(error, DiskFailedError) and error.disk == disk.path):
                self._record_trouble(error)
            where = self._commitlog.disks[target].path
            log_event(
                log,
                logging.WARNING,
                "move_failed",
                segment=segment.name,
                disk=disk.path,
                target=where,
                reason=str(error),
            )
            return False
        self._failures.pop((segment.disk, segment.ino), None)
        now_s = self._commitlog.clock.monotonic()
        self._moved.append((began_s, now_s, segment.size))
        while self._moved[0][1] < now_s - self._timing.rate_window_s:
            self._moved.popleft()
        return True

    def _record_trouble(self, error: Exception) -> None:
        """A disk that fails under a move is suspected as after a failed create: it is probed."""
        if isinstance(error, DiskFailedError | DiskReadOnlyError):
            for disk in self._commitlog.disks.values():
                if disk.path == error.disk:
                    self._commitlog.admission.record_trouble(disk.number, error, self._commitlog.clock.monotonic())


def _may_leave(disk: Disk, salvages: bool) -> bool:
    """Whether segments may be moved from a disk now. If nothing can be removed there, each would have two files:
    only one who saves what a failing disk has accepts that."""
    return salvages or (disk.state is DiskState.RW and not disk.is_troubled)
