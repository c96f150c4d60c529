"""Restores: segments that are missing in the log come back from a slave or a backup, one at a time.

The command that asks for it finds, opens and checks the file (mount/restoring); here it becomes a segment. If the
command ends meanwhile, the segment that it has begun is completed.
"""

import logging
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import trio

from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.fusefs.moves.mover import Mover, MoveStoppedError
from commitlogfs.store.disks.losses import lost_before
from commitlogfs.store.errors import PoolError, StoreError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.moves.copy import Restored
from commitlogfs.store.moves.targets import segments_below_force
from commitlogfs.store.pool.commitlog import CommitLog
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
    digest: bytes


class Restores:
    def __init__(self, commitlog: CommitLog, mover: Mover, drains: Drains) -> None:
        self._commitlog = commitlog
        self._mover = mover
        self._drains = drains
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

    def room(self) -> int:
        """Number of segments that the disks take below their `force` threshold."""
        size = self._commitlog.segment_size
        return sum(segments_below_force(target, size) for target in self._drains.targets())

    def begin(
        self, base_offset: BaseOffset, source: int, mtime_ns: int, digest: bytes, rate: int, token: str
    ) -> Restoring:
        """Begin to restore a segment from an open file, whose descriptor stays the caller's. `digest` is the
        xxh3_128 of its checked content; `cancel` needs the `token`. Raises PoolError, OSError."""
        if self.latest is not None and self.latest.state is RestoreState.RUNNING:
            name = format_segment_name(base_offset).decode()
            raise PoolError(f"{name}: another restore is under way; wait until it has ended")
        self._require_missing(base_offset)
        job = _Job(Restoring(base_offset, rate, token), os.dup(source), mtime_ns, digest)
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

    async def _restore(self, job: _Job) -> None:
        restoring, name = job.restoring, format_segment_name(job.restoring.base_offset).decode()

        def require_wanted() -> None:
            if restoring.is_cancelled:
                raise MoveStoppedError(f"{name}: {_CANCELLED}")
            self._require_missing(restoring.base_offset)

        try:
            await self._drains.measure_targets()
            target = self._drains.choose_target(restoring.base_offset)
            catalog = self._commitlog.catalog
            neighbour = catalog.predecessor(restoring.base_offset) or catalog.first
            if target is None or neighbour is None:
                raise PoolError(f"{name}: no disk takes it below its `force` threshold; free space, or add a disk")
            like = unpack(neighbour.attributes)
            restored = Restored(Owner(like.uid, like.gid, like.mode), job.mtime_ns, job.digest)
            await self._mover.restore(
                restoring.base_offset,
                job.source,
                restored,
                target,
                lambda: restoring.rate,
                require_wanted,
                restoring.turn,
            )
        except MoveStoppedError as error:
            reason = _CANCELLED if restoring.is_cancelled else str(error)
            restoring.state, restoring.reason = RestoreState.FAILED, reason
        except (StoreError, OSError) as error:
            restoring.state, restoring.reason = RestoreState.FAILED, str(error)
            log_event(log, logging.WARNING, "restore_failed", segment=name, reason=str(error))
        else:
            restoring.state = RestoreState.DONE
