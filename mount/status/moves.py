"""Moves and drains as parts of the status document."""

from typing import Any, Final

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.disks.disk_threads import OUTSIDE
from commitlogfs.fusefs.moves.mover import Cause, Hindrance
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.forecast import seconds_until_expired
from commitlogfs.store.disks.membership import Drain, DrainMode
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.moves.targets import Target, expiry_of
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment

PHASES = 2
"""Every byte is copied once, and read back once."""
_REASONS: Final = {
    Cause.DISK_KEEPS_ALL: (
        "nothing can be removed there; repair it, or save what can be read (`disk drain --failing`)"
    ),
    Cause.NAME_CHANGES: "an earlier change of its name is under way",
    Cause.FORMER_FILE: "its former file is still there: ",
    Cause.MAY_LACK_WRITES: "the disk may lack what was written to it; save it, and use `commitlogfs scrub clear`",
    Cause.IS_WRITTEN_TO: "a process that has it open may write to it",
    Cause.NAME_UNCERTAIN: "the disk has not shown yet whether it has a file of this name",
    Cause.EXPIRES_FIRST: "it is about to expire, and is not copied before",
    Cause.FAILED: "",
}
"""The detail of a hindrance follows."""


def moves_report(parts: Parts) -> dict[str, Any]:
    """The part `moves` of the document."""
    disks, counters = parts.commitlog.disks, parts.commitlog.counters
    progress = parts.mover.progress
    current = None
    if progress is not None:
        current = {
            "segment": progress.name.decode(),
            "from": None if progress.source == OUTSIDE else disks[progress.source].path,
            "to": disks[progress.target].path,
            "phase": progress.phase,
            "done_bytes": progress.done_bytes,
            "size": progress.size,
        }
    return {
        "current": current,
        "segments": counters.moved,
        "restored": counters.restored,
        "repaired": counters.repaired,
        "bytes": counters.moved_bytes,
        "failed": counters.move_failures,
        "last_error": parts.drains.last_error,
        "bytes_per_second": parts.drains.bytes_per_second(),
    }


def drain_report(disk: Disk, parts: Parts, ingest: float) -> dict[str, Any] | None:
    """The part `drain` of a disk; None while it does not drain. `ingest` is in bytes per second."""
    drain, log = disk.drain, parts.commitlog
    if drain is None:
        return None
    on_disk = log.catalog.on_disk(disk.number)
    to_move = len(parts.drains.waiting(disk))
    hindrance, has_room = _hindrance(drain, disk, parts), disk.number not in parts.drains.no_room
    is_expected = hindrance is None and has_room
    return {
        "mode": drain.mode.value,
        "since": drain.since_s,
        "rate": drain.rate or None,
        "segments_left": len(on_disk),
        "segments_kept": len(on_disk) - to_move,
        "unreadable_segments": parts.drains.unreadable_count(disk),
        "rotten_segments": sum(
            segment.disk == disk.number and verdict.kind.is_mismatch
            for segment, verdict in parts.verdicts.present()
        ),
        "no_room": not has_room,
        "waits_for": hindrance
        and {
            "disk": hindrance.disk,
            "segment": hindrance.segment and hindrance.segment.decode(),
            "reason": _REASONS[hindrance.cause] + hindrance.detail,
        },
        "eta_seconds": _eta_s(disk, drain, on_disk, to_move, parts, ingest) if is_expected else None,
    }


def _hindrance(drain: Drain, disk: Disk, parts: Parts) -> Hindrance | None:
    """None for a drain that moves nothing."""
    salvages = drain.mode is DrainMode.FAILING
    return parts.drains.hindrance(disk, salvages=salvages) if drain.mode.copies else None


def _eta_s(
    disk: Disk, drain: Drain, on_disk: list[Segment], to_move: int, parts: Parts, ingest: float
) -> float | None:
    """Seconds until the disk holds no segment that can go now; None if not known."""
    if not on_disk:
        return 0.0
    size = parts.commitlog.segment_size
    if drain.mode is DrainMode.EXPIRY:
        return seconds_until_expiry(disk, on_disk, parts, ingest)
    rate = drain.rate / PHASES if drain.rate else parts.drains.bytes_per_second()
    return to_move * size / rate if rate else None


def held_until(disk: Disk, parts: Parts, ingest: float = 0.0) -> float | None:
    """When the broker will have deleted the moved segments whose former files are still open on a disk, in seconds
    since 1970; None without any, or if it is not known. Its restart frees them at once. `ingest`, in bytes per
    second, counts while less than a day of the log is known."""
    log = parts.commitlog
    moved = [log.catalog.find(source.base_offset) for source in log.others.moved(disk.number)]
    present = [segment for segment in moved if segment is not None]
    seconds = seconds_until_expiry(disk, present, parts, ingest) if present else None
    return None if seconds is None else log.clock.wall() + seconds


def seconds_until_expiry(disk: Disk, on_disk: list[Segment], parts: Parts, ingest: float) -> float | None:
    log = parts.commitlog
    newest = max(on_disk, key=lambda segment: segment.base_offset)
    others = [
        Target(other.number, usage, other.thresholds)
        for other in log.disks.values()
        if other is not disk
        and other.present_state is DiskState.RW
        and (usage := log.space.measured(other.number)) is not None
    ]
    size, last = log.segment_size, log.catalog.last_whole
    newer = 0 if last is None else max(0, last.base_offset - newest.base_offset) // size
    held = sum(log.catalog.count_on_disk(other.number) for other in others)
    changed_s = unpack(newest.attributes).mtime_ns / 1e9
    facts = expiry_of(others, size, held, newer, log.clock.wall(), changed_s, ingest)

    def end_of(index: int) -> tuple[float, int]:
        segment = log.catalog.at(index)
        return unpack(segment.attributes).mtime_ns / 1e9, segment.base_offset + size

    history = log.removals.history(max(0, len(log.catalog) - NEWEST_KEPT), end_of)
    return seconds_until_expired(facts, history, log.removals)
