"""The scrub and the damaged segments as parts of the status document."""

from typing import Any

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.integrity.scrub import DiskFigures
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.scrub.finding import damage_finding
from commitlogfs.store.scrub.progress import Command
from commitlogfs.store.scrub.verdict import Verdict
from commitlogfs.store.segment import format_segment_name


def scrub_report(parts: Parts) -> dict[str, Any]:
    """The part `scrub` of the document. The cost depends on the number of disks and of damaged segments."""
    scrub, disks = parts.scrub, parts.commitlog.disks
    run, figures = scrub.latest, scrub.figures()
    return {
        "state": _state(parts),
        "since": run.begun_s or None,
        "rate": run.rate or None,
        "scheduled": run.is_scheduled,
        "messages": run.follows_chains,
        "done_bytes": sum(one.progress.read_bytes for one in figures.values()) if run.begun_s else 0,
        "left_bytes": sum(one.left_bytes for one in figures.values()),
        "bytes_per_second": sum(one.bytes_per_second for one in figures.values() if one.left_bytes),
        "eta_seconds": _longest([one.eta_s for one in figures.values()]),
        "completed": scrub.completed_s() or None,
        "next": scrub.next_s(),
        "every_seconds": scrub.rules.every_s or None,
        "window": sorted(scrub.rules.window),
        "disks": [_disk_report(disks[number], one) for number, one in figures.items()],
        "unread_disks": list(parts.commitlog.missing),
        "unknown": unknown_disks(parts),
        "damaged": [damage_report(parts, *found) for found in parts.verdicts.present()],
        "set_aside": [set_aside_report(parts, *found) for found in parts.verdicts.replaced()],
    }


def unknown_disks(parts: Parts) -> list[str]:
    """Paths of the disks that have not answered yet, since this daemon has started, how far the scrub is there, or
    which of their segments are damaged."""
    waiting = {*parts.scrub.not_loaded(), *parts.verdicts.not_loaded()}
    return [disk.path for number, disk in parts.commitlog.disks.items() if number in waiting]


def _disk_report(disk: Disk, figures: DiskFigures) -> dict[str, Any]:
    return {
        "number": disk.number,
        "path": disk.path,
        "segment": None if figures.segment is None else figures.segment.name.decode(),
        "done_bytes": figures.progress.read_bytes,
        "left_bytes": figures.left_bytes,
        "bytes_per_second": figures.bytes_per_second,
        "eta_seconds": figures.eta_s,
        "waits_for": figures.waits_for or None,
        "ended": figures.progress.ended_s > 0,
        "unread": figures.progress.unread,
        "completed": figures.progress.completed_s or None,
    }


def _longest(times_s: list[float | None]) -> float | None:
    """None if one of them is not known."""
    known = [time_s for time_s in times_s if time_s is not None]
    return max(known, default=0.0) if len(known) == len(times_s) else None


def _state(parts: Parts) -> str:
    scrub = parts.scrub
    if scrub.is_active:
        return "paused" if scrub.latest.command is Command.PAUSE else "running"
    if not scrub.latest.begun_s:
        return "none"
    return "cancelled" if scrub.latest.command is Command.CANCEL else "done"


def damage_report(parts: Parts, segment: Segment, verdict: Verdict) -> dict[str, Any]:
    base = segment.base_offset
    return {
        "segment": segment.name.decode(),
        "base_offset": base,
        "disk": parts.commitlog.disk_of(segment).path,
        "kind": verdict.kind.value,
        "since": verdict.since_s,
        "recorded": parts.verdicts.is_recorded(segment),
        "located": verdict.is_located,
        "ranges": [(base + begin, base + end) for begin, end in verdict.ranges],
        "message_count": verdict.message_count,
        "messages": [
            {
                "log_offset": base + message.position,
                "topic": message.topic or None,
                "queue_id": message.queue_id,
                "queue_offset": message.queue_offset,
            }
            for message in verdict.messages
        ],
    }


def set_aside_report(parts: Parts, file: Segment, verdict: Verdict | None) -> dict[str, Any]:
    """The damaged file of a repaired segment."""
    disk = parts.commitlog.disk_of(file).path
    return {
        "segment": format_segment_name(file.base_offset).decode(),
        "base_offset": file.base_offset,
        "disk": disk,
        "path": f"{disk}/{file.path.decode()}",
        "kind": None if verdict is None else verdict.kind.value,
        "bytes": unpack(file.attributes).allocated_bytes,
    }


def damage_findings(parts: Parts) -> list[dict[str, str]]:
    """One finding for each damaged segment."""
    return [
        damage_finding(
            parts.commitlog.disk_of(segment).path,
            segment.base_offset,
            verdict,
            is_recorded=parts.verdicts.is_recorded(segment),
        ).as_json()
        for segment, verdict in parts.verdicts.present()
    ]
