"""A rebalance, running or only planned, as a document."""

import math
from typing import Any

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.moves.rebalancing import Levels
from commitlogfs.mount.status.moves import PHASES
from commitlogfs.store.disks.membership import DiskNumber, RebalanceMode
from commitlogfs.store.moves.balance import balance
from commitlogfs.store.moves.levelling import expect_levelling


def plan_report(parts: Parts, mode: RebalanceMode, rate: int, ingest: float) -> dict[str, Any]:
    """The answer to `rebalance plan`. `rate` as for a move; `ingest` is in bytes per second."""
    found, size = parts.rebalancing.levels(), parts.commitlog.segment_size
    paths = {number: disk.path for number, disk in parts.commitlog.disks.items()}
    moves = []
    if mode is RebalanceMode.COPY:
        planned = balance(found.levels, size)
        segments, changes = planned.segments, planned.changes
        seconds = _copy_s(parts, segments, rate)
        goals = {x.number: float(x.share_with(changes[x.number], size)) for x in found.levels}
        moves = [
            {"from": paths[f.source], "to": paths[f.target], "segments": f.segments, "bytes": f.segments * size}
            for f in planned.flows
        ]
    else:
        lifetime_s = parts.commitlog.removals.lifetime(parts.commitlog.clock.wall())
        expected = expect_levelling(found.levels, size, found.goal, ingest, lifetime_s)
        segments, seconds, goals = math.ceil(expected.written_bytes / size), expected.seconds, expected.shares
        changes = {}
        if found.is_reached:
            segments, seconds = 0, 0.0
    ended = parts.rebalancing.last_ended
    at_the_end = goals.values() or (0.0,)
    return {
        "mode": mode.value,
        "rate": rate or None,
        "spread_points": _percent(found.spread),
        "goal_points": _percent(found.goal),
        "end_points": _percent(max(at_the_end) - min(at_the_end)),
        "balanced": found.is_reached,
        "disks": _disks(parts, found, goals, changes),
        "moves": moves,
        "segments": segments,
        "bytes": segments * size,
        "segment_size": size,
        "eta_seconds": seconds,
        "waits_for_drains": [paths[number] for number in sorted(parts.rebalancing.copied_away())],
        "last_ended": ended
        and {
            "since": ended.since_s,
            "balanced": ended.is_reached,
            "spread_points": _percent(ended.spread),
        },
    }


def rebalance_report(parts: Parts, ingest: float) -> dict[str, Any] | None:
    """The part `rebalance` of the status document; None while none runs."""
    rebalance = parts.commitlog.membership.rebalance
    if rebalance is None:
        return None
    plan = plan_report(parts, rebalance.mode, rebalance.rate, ingest)
    disks = parts.commitlog.disks
    return {
        "mode": rebalance.mode.value,
        "since": rebalance.since_s,
        "rate": rebalance.rate or None,
        "spread_points": plan["spread_points"],
        "goal_points": plan["goal_points"],
        "segments_left": plan["segments"],
        "bytes_left": plan["bytes"],
        "eta_seconds": plan["eta_seconds"],
        "waits_for": [disks[number].path for number in parts.rebalancing.levels().awaited],
    }


def _disks(
    parts: Parts, found: Levels, goals: dict[DiskNumber, float], changes: dict[DiskNumber, int]
) -> list[dict[str, Any]]:
    size = found.segment_size
    shares = {level.number: float(level.share) for level in found.levels}
    others = {
        level.number: max(0, level.used_bytes - parts.commitlog.catalog.whole_count_on_disk(level.number) * size)
        for level in found.levels
    }
    return [
        {
            "number": number,
            "path": disk.path,
            "used_percent": _percent(shares[number]) if number in shares else None,
            "goal_percent": _percent(goals[number]) if number in goals else None,
            "other_bytes": others.get(number),
            "change": changes.get(number, 0),
            "held_segments": len(parts.commitlog.others.moved(number)),
            "left_out": found.left_out.get(number) or found.awaited.get(number),
        }
        for number, disk in parts.commitlog.disks.items()
    ]


def _copy_s(parts: Parts, segments: int, rate: int) -> float | None:
    """Seconds for that many moves; None before any move has shown how fast the disks are."""
    if not segments:
        return 0.0
    bytes_per_second = rate / PHASES if rate else parts.drains.bytes_per_second()
    return segments * parts.commitlog.segment_size / bytes_per_second if bytes_per_second else None


def _percent(ratio: float) -> float:
    return round(ratio * 100, 2)
