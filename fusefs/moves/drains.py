"""Drains: disks that are to become empty, and the moves that this takes.

A drain is recorded in the list of members on all disks, so the next daemon continues it.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import trio

from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.moves.mover import NEWEST_KEPT, Mover, MoveStoppedError
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode
from commitlogfs.store.errors import DiskFailedError, DiskReadOnlyError, StoreError
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.targets import Target, choose_target, segments_below_force
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
RETRY_S: Final = 30.0
"""Time until a segment is tried again after its move has failed."""
USAGE_AGE_S: Final = 1.0
RATE_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Numbers of segments."""

    to_move: int
    kept: int
    """Among the newest of the log: they are moved when newer ones have been made."""
    needed: int
    """To move from all draining disks."""
    room: int
    """The most that the other disks can take."""


class Drains:
    """Moves the segments of draining disks, one after the other."""

    def __init__(self, commitlog: CommitLog, mover: Mover, usage: UsageMonitor) -> None:
        self._commitlog = commitlog
        self._mover = mover
        self._usage = usage
        self._changed = trio.Event()
        self._retry_at_s: dict[tuple[DiskNumber, int], float] = {}
        self._moved: deque[tuple[float, float, int]] = deque()
        """The latest moves: (begin, end, bytes), in steady time."""
        self.no_room: set[DiskNumber] = set()
        """Draining disks whose next segment fits on no other disk."""
        self.last_error = ""

    def announce(self) -> None:
        """A drain has begun, ended or changed."""
        self._retry_at_s.clear()
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            changed = self._changed
            await self._mover.remove_stray_copies()
            if not await self._move_next():
                with trio.move_on_after(CHECK_INTERVAL_S):
                    await changed.wait()

    def draining(self) -> list[Disk]:
        return [disk for disk in self._commitlog.disks.values() if disk.drain is not None]

    def plan(self, disk: Disk) -> "DrainPlan":
        """The extent of a drain by copying, as of now."""
        size = self._commitlog.segment_size
        waiting = len(self.waiting(disk))
        needed = waiting + sum(len(self.waiting(other)) for other in self.draining() if other is not disk)
        room = sum(segments_below_force(t, size) for t in self.targets() if t.number != disk.number)
        kept = self._commitlog.catalog.count_on_disk(disk.number) - waiting
        return DrainPlan(waiting, kept, needed, room)

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

    def bytes_per_second(self) -> float:
        """Rate at which segments were moved lately, pauses and checks included; 0.0 if none was."""
        if not self._moved:
            return 0.0
        return sum(count for _, _, count in self._moved) / max(0.001, self._moved[-1][1] - self._moved[0][0])

    async def _move_next(self) -> bool:
        """Move one segment; False if there is none to move now."""
        for disk in self.draining():
            self.no_room.discard(disk.number)
            if disk.drain is None or disk.drain.mode is not DrainMode.COPY:
                continue
            if disk.state is not DiskState.RW or disk.is_troubled:
                continue  # nothing could be removed there, and each segment would have two files
            segment = self._next_of(disk)
            if segment is None:
                continue
            await self._usage.refresh(USAGE_AGE_S)
            target = self._choose_target(segment)
            if target is None:
                self.no_room.add(disk.number)
                continue
            await self._move(disk, disk.drain, segment, target)
            return True
        return False

    def _next_of(self, disk: Disk) -> Segment | None:
        now_s = time.monotonic()
        for segment in self.waiting(disk):
            if not self._mover.may_move(segment):
                continue
            if self._retry_at_s.get((segment.disk, segment.ino), 0.0) <= now_s:
                return segment
        return None

    def targets(self) -> list[Target]:
        """The disks that take segments now, whatever else is planned."""
        eligible = self._commitlog.evaluate(time.monotonic()).eligible
        found = []
        for number in eligible:
            usage = self._commitlog.space.measured(number)
            if usage is not None:
                found.append(Target(number, usage, self._commitlog.disks[number].thresholds))
        return found

    def _choose_target(self, segment: Segment) -> DiskNumber | None:
        size, catalog = self._commitlog.segment_size, self._commitlog.catalog
        around = (catalog.get(segment.base_offset - size), catalog.get(segment.base_offset + size))
        return choose_target(self.targets(), size, {other.disk for other in around if other is not None})

    async def _move(self, disk: Disk, drain: Drain, segment: Segment, target: DiskNumber) -> None:
        since_s, began_s = drain.since_s, time.monotonic()

        def is_wanted() -> bool:
            return disk.drain is not None and disk.drain.since_s == since_s

        def rate() -> int:
            return 0 if disk.drain is None else disk.drain.rate

        try:
            await self._mover.move(segment, target, rate, is_wanted)
        except MoveStoppedError as stopped:
            log_event(log, logging.INFO, "move_stopped", segment=segment.name, reason=str(stopped))
            return
        except (StoreError, OSError) as error:
            self._retry_at_s[segment.disk, segment.ino] = time.monotonic() + RETRY_S
            self.last_error = str(error)
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
            return
        now_s = time.monotonic()
        self._moved.append((began_s, now_s, segment.size))
        while self._moved[0][1] < now_s - RATE_WINDOW_S:
            self._moved.popleft()
        if not self.waiting(disk):
            log_event(log, logging.INFO, "drained", disk=disk.path)

    def _record_trouble(self, error: Exception) -> None:
        """A disk that fails under a move is suspected as after a failed create: it is probed."""
        if isinstance(error, DiskFailedError | DiskReadOnlyError):
            for disk in self._commitlog.disks.values():
                if disk.path == error.disk:
                    self._commitlog.admission.record_trouble(disk.number, error, time.monotonic())
