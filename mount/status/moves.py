"""Moves and drains as parts of the status document."""

import time
from typing import Any

from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.forecast import seconds_until_expired
from commitlogfs.store.disks.membership import Drain, DrainMode
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.moves.targets import segments_below_force
from commitlogfs.store.pool.catalog import Segment

_PHASES = 2
"""Every byte is copied once, and read back once."""


def moves_report(operations: CommitLogOperations) -> dict[str, Any]:
    """The part `moves` of the document."""
    disks, counters = operations.commitlog.disks, operations.commitlog.counters
    progress = operations.mover.progress
    current = None
    if progress is not None:
        current = {
            "segment": progress.file.name.decode(),
            "from": disks[progress.file.disk].path,
            "to": disks[progress.target].path,
            "phase": progress.phase,
            "done_bytes": progress.done_bytes,
            "size": progress.file.size,
        }
    return {
        "current": current,
        "segments": counters.moved,
        "bytes": counters.moved_bytes,
        "failed": counters.move_failures,
        "last_error": operations.drains.last_error,
        "bytes_per_second": operations.drains.bytes_per_second(),
    }


def drain_report(disk: Disk, operations: CommitLogOperations, ingest: float) -> dict[str, Any] | None:
    """The part `drain` of a disk; None while it does not drain. `ingest` is in bytes per second."""
    drain, log = disk.drain, operations.commitlog
    if drain is None:
        return None
    on_disk = log.catalog.on_disk(disk.number)
    to_move = len(operations.drains.waiting(disk))
    return {
        "mode": drain.mode.value,
        "since": drain.since_s,
        "rate": drain.rate or None,
        "segments_left": len(on_disk),
        "segments_kept": len(on_disk) - to_move,
        "no_room": disk.number in operations.drains.no_room,
        "eta_seconds": _eta_s(disk, drain, on_disk, to_move, operations, ingest),
    }


def _eta_s(
    disk: Disk, drain: Drain, on_disk: list[Segment], to_move: int, operations: CommitLogOperations, ingest: float
) -> float | None:
    """Seconds until the disk holds no segment that can go now; None if not known."""
    if not on_disk:
        return 0.0
    size = operations.commitlog.segment_size
    if drain.mode is DrainMode.EXPIRY:
        return seconds_until_expiry(disk, on_disk, operations, ingest)
    rate = drain.rate / _PHASES if drain.rate else operations.drains.bytes_per_second()
    return to_move * size / rate if rate else None


def seconds_until_expiry(
    disk: Disk, on_disk: list[Segment], operations: CommitLogOperations, ingest: float
) -> float | None:
    log = operations.commitlog
    newest = max(on_disk, key=lambda segment: segment.base_offset)
    room = sum(
        (segments_below_force(target, log.segment_size) + log.catalog.count_on_disk(target.number))
        * log.segment_size
        for target in operations.drains.targets()
        if target.number != disk.number
    )
    last = log.catalog.last_whole
    written_since = 0 if last is None else max(0, last.base_offset - newest.base_offset)
    lifetime_left_s = None
    if log.lifetime_s is not None:
        lifetime_left_s = unpack(newest.attributes).mtime_ns / 1e9 + log.lifetime_s - time.time()
    return seconds_until_expired(room, written_since, ingest, lifetime_left_s)
