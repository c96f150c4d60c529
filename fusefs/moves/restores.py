"""Restores: segments that are missing in the log come back from a slave or a backup, and damaged ones are repaired
from there, one at a time.

The command that asks for it finds, opens and checks the file (mount/restoring); here it becomes a segment. If the
command ends meanwhile, the segment that it has begun is completed.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import trio

from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.fusefs.moves.mover import Mover, MoveStoppedError
from commitlogfs.store.disks.losses import lost_before
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, PoolError, SegmentNotFoundError, StoreError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.moves.copy import Restored
from commitlogfs.store.moves.targets import segments_below_force
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.other_files import is_set_aside
from commitlogfs.store.scrub.repairable import needs_chain, required_checksum, required_equal, why_not_repairable
from commitlogfs.store.scrub.verdict import Kind, Range, Verdict
from commitlogfs.store.segment import BaseOffset, format_segment_name

log = logging.getLogger(__name__)

_CANCELLED: Final = "was cancelled"


class RestoreState(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Restoring:
    """A restore of one segment, under way or ended."""

    base_offset: BaseOffset
    damaged: Segment | None
    """The segment that is repaired; None for one that is missing."""
    rate: int
    """Bytes per second; 0 if none was given."""
    token: str
    """Chosen by the command that has begun it: only that command cancels it."""
    state: RestoreState = RestoreState.RUNNING
    reason: str = ""
    """Why it failed."""
    is_cancelled: bool = False
    turn: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancelled, it waits for no other move any more."""


@dataclass(frozen=True, slots=True)
class _Job:
    restoring: Restoring
    source: int
    """Descriptor of the file."""
    mtime_ns: int
    """Time for a segment that was missing."""
    digest: bytes


@dataclass(frozen=True, slots=True)
class Repairable:
    """A damaged segment, and what a copy has to be like to repair it."""

    segment: Segment
    kind: Kind
    reason: str
    """Why no copy can repair it; empty if one can."""
    checksum: bytes | None
    """xxh3_128 of the right content; None if it is not known."""
    needs_chain: bool
    """Whether a copy with this checksum has to have a right chain of records, too."""
    equal: tuple[Range, ...]
    """Positions in which a right copy is equal to the damaged segment."""


class Restores:
    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        mover: Mover,
        drains: Drains,
        verdicts: Verdicts,
    ) -> None:
        self._commitlog = commitlog
        self._disks = disks
        self._mover = mover
        self._drains = drains
        self._verdicts = verdicts
        self._send, self._receive = trio.open_memory_channel[_Job](1)
        self.latest: Restoring | None = None
        """The latest restore; it is kept until the next one."""

    async def run(self) -> None:
        """Until cancelled."""
        async for job in self._receive:
            try:
                await self._restore(job)
            finally:
                await self._mover.close_outside(job.source)
        raise AssertionError("the channel is never closed")

    def missing(self) -> list[tuple[BaseOffset, BaseOffset]]:
        """The ranges [start, end) of the log that can be restored: its gaps, and accepted losses directly before
        its beginning. Raises PoolError if a missing disk may hold them."""
        if self._commitlog.missing:
            raise PoolError(
                f"{', '.join(self._commitlog.missing)}: missing, and may hold what is missing in the log; bring "
                "the disk back, or give it up (`disk remove --lost`)"
            )
        gaps, first = self._commitlog.catalog.gaps(), self._commitlog.catalog.first
        size = self._commitlog.segment_size
        if first is None:
            return []
        count = lost_before(first.base_offset // size, self._commitlog.membership.losses)
        before = [(BaseOffset(first.base_offset - count * size), first.base_offset)] if count else []
        return before + gaps

    async def damaged(self) -> list[Repairable]:
        """The segments that are known to be damaged."""
        await self._drains.measure_targets()
        return [await self._examine(*found) for found in self._verdicts.present()]

    async def unknown(self) -> list[str]:
        """Paths of the disks of which it is not known yet whether their segments are damaged. Waits for them, but
        not for long."""
        await self._verdicts.await_loaded()
        return [self._commitlog.disks[number].path for number in self._verdicts.not_loaded()]

    async def require_verdicts(self) -> None:
        """Raises PoolError while it is not known which segments are damaged."""
        waiting = await self.unknown()
        if waiting:
            raise PoolError(
                f"{', '.join(waiting)}: has not answered yet which segments are damaged; repeat the command"
            )

    def is_repaired(self, base_offset: BaseOffset) -> bool:
        """Whether a right copy is the segment now: it is not known to be damaged, and the damaged file is still
        there, or this daemon has just repaired it. A segment whose verdict was cleared is not repaired."""
        segment, latest = self._commitlog.catalog.get(base_offset), self.latest
        if segment is None or self._verdicts.kind_of(segment) is not None:
            return False
        if latest is not None and latest.base_offset == base_offset and latest.damaged is not None:
            return latest.state is RestoreState.DONE
        sources = self._commitlog.others.sources(base_offset)
        return any(is_set_aside(file) or file.role is Role.MOVED for file in sources)

    async def _examine(self, segment: Segment, verdict: Verdict) -> Repairable:
        reason, checksum, lost, disk = "", None, list[tuple[int, int]](), self._disks[segment.disk]
        if self._commitlog.disk_of(segment).is_unresponsive:
            reason = "its disk does not answer"
        else:
            try:
                checksum = await disk.read_checksum(segment.name, segment.ino, is_kept=verdict.kind.keeps_checksum)
                lost = await disk.unreadable_ranges(segment.name)
            except (DiskError, OSError, SegmentNotFoundError) as error:
                reason = f"its disk cannot read its checksum ({error})"
        reason = reason or why_not_repairable(verdict, checksum)
        if not reason and not self._commitlog.catalog.is_sealed(segment):
            reason = f"it is among the newest {NEWEST_KEPT} of the log, to which a broker may write"
        reason = reason or self._former_file_of(segment) or await self._obstacle(segment)
        equal = required_equal(verdict, checksum, segment.size, lost)
        required = required_checksum(verdict, checksum)
        return Repairable(segment, verdict.kind, reason, required, needs_chain(verdict.kind), equal)

    def _former_file_of(self, segment: Segment) -> str:
        """The reason, if it has one: only the mark of the present file says that the two are one segment."""
        for source in self._commitlog.others.sources(segment.base_offset):
            if source.role is Role.MOVED:
                path = self._commitlog.disk_of(source).path
                return f"its former file is still on {path}; it goes with its last user, or with that disk"
        return ""

    async def _obstacle(self, segment: Segment) -> str:
        """The reason why no copy can take the place of a segment now, by the last measurement of the disks;
        empty if one can."""
        if not self._mover.may_replace(segment):
            return "it is moved or changed at this moment, or may be written to; repeat the command"
        if self._drains.choose_target(segment.base_offset, but=segment.disk) is None:
            return "no other disk takes it below its `force` threshold; free space, or add a disk"
        try:
            await self._mover.require_only_file(segment)
        except (StoreError, OSError) as error:
            return str(error)
        return ""

    def room(self) -> int:
        """Number of segments that the disks take below their `force` threshold."""
        size = self._commitlog.segment_size
        return sum(segments_below_force(target, size) for target in self._drains.targets())

    def begin(
        self,
        base_offset: BaseOffset,
        source: int,
        mtime_ns: int,
        digest: bytes,
        rate: int,
        token: str,
        *,
        repairs: bool = False,
    ) -> Restoring:
        """Begin to restore a segment from an open file, whose descriptor stays the caller's. `digest` is the
        xxh3_128 of its checked content; `cancel` needs the `token`. `repairs`: the segment is not missing, but
        damaged. Raises PoolError, OSError."""
        if self.latest is not None and self.latest.state is RestoreState.RUNNING:
            name = format_segment_name(base_offset).decode()
            raise PoolError(f"{name}: another restore is under way; wait until it has ended")
        damaged = self._find_damaged(base_offset) if repairs else None
        if damaged is None:
            self._require_missing(base_offset)
        job = _Job(Restoring(base_offset, damaged, rate, token), os.dup(source), mtime_ns, digest)
        self._send.send_nowait(job)
        self.latest = job.restoring
        return job.restoring

    def cancel(self, base_offset: BaseOffset, token: str) -> bool:
        """End the restore under way within a second, if it is this one. Returns whether it is."""
        restoring = self.latest
        if restoring is None or restoring.state is not RestoreState.RUNNING:
            return False
        if (restoring.base_offset, restoring.token) != (base_offset, token):
            return False
        restoring.is_cancelled = True
        restoring.turn.cancel()
        return True

    def _require_missing(self, base_offset: BaseOffset) -> None:
        """Raises PoolError unless the segment lies in a gap of the log, or continues the log before its beginning.
        The log changes while a segment is copied, so this is asked again until the segment is published."""
        name = format_segment_name(base_offset).decode()
        if not any(start <= base_offset < end for start, end in self.missing()):
            raise PoolError(f"{name}: is in no gap of the log; the log may have been cut or have expired there")
        first = self._commitlog.catalog.first
        if first is not None and base_offset + self._commitlog.segment_size < first.base_offset:
            raise PoolError(f"{name}: would begin the log with a gap; restore the segments after it first")

    def _find_damaged(self, base_offset: BaseOffset) -> Segment:
        """Raises PoolError unless the segment is in the log, and has a verdict."""
        segment = self._commitlog.catalog.get(base_offset)
        if segment is None or self._verdicts.kind_of(segment) is None:
            name = format_segment_name(base_offset).decode()
            raise PoolError(f"{name}: is not known to be damaged any more; see `commitlogfs scrub status`")
        return segment

    async def _require_right(self, damaged: Segment, digest: bytes) -> None:
        """Raises PoolError unless a copy with this digest may replace a damaged segment."""
        name, verdict = damaged.name.decode(), self._verdicts.verdict_on(damaged)
        if verdict is None:
            raise PoolError(f"{name}: is not known to be damaged any more; see `commitlogfs scrub status`")
        found = await self._examine(damaged, verdict)
        if found.reason:
            raise PoolError(f"{name}: {verdict.kind.value}: {found.reason}")
        if found.checksum not in (None, digest):
            raise PoolError(f"{name}: the copy has another checksum than the segment had when it was sealed")

    async def _restore(self, job: _Job) -> None:
        restoring, name = job.restoring, format_segment_name(job.restoring.base_offset).decode()
        damaged = restoring.damaged

        def require_wanted() -> None:
            if restoring.is_cancelled:
                raise MoveStoppedError(f"{name}: {_CANCELLED}")
            if damaged is None:
                self._require_missing(restoring.base_offset)
            elif self._find_damaged(restoring.base_offset) is not damaged:
                raise PoolError(f"{name}: was moved meanwhile; repeat the command")

        try:
            await self._drains.measure_targets()
            if damaged is not None:
                await self._require_right(damaged, job.digest)
            target = self._drains.choose_target(
                restoring.base_offset, but=None if damaged is None else damaged.disk
            )
            if target is None:
                raise PoolError(f"{name}: no disk takes it below its `force` threshold; free space, or add a disk")
            await self._take_in(job, target, require_wanted)
        except MoveStoppedError as error:
            reason = _CANCELLED if restoring.is_cancelled else str(error)
            restoring.state, restoring.reason = RestoreState.FAILED, reason
        except (StoreError, OSError) as error:
            restoring.state, restoring.reason = RestoreState.FAILED, str(error)
            log_event(log, logging.WARNING, "restore_failed", segment=name, reason=str(error))
        else:
            restoring.state = RestoreState.DONE

    async def _take_in(self, job: _Job, target: DiskNumber, require_wanted: Callable[[], None]) -> None:
        restoring, turn = job.restoring, job.restoring.turn

        def rate() -> int:
            return restoring.rate

        if restoring.damaged is not None:
            await self._mover.repair(restoring.damaged, job.source, job.digest, target, rate, require_wanted, turn)
            return
        catalog = self._commitlog.catalog
        neighbour = catalog.predecessor(restoring.base_offset) or catalog.first
        if neighbour is None:
            name = format_segment_name(restoring.base_offset).decode()
            raise PoolError(f"{name}: the log has no segment any more")
        like = unpack(neighbour.attributes)
        restored = Restored(Owner(like.uid, like.gid, like.mode), job.mtime_ns, job.digest)
        await self._mover.restore(restoring.base_offset, job.source, restored, target, rate, require_wanted, turn)
