"""Forced deletion as documents: the rules, their present decision, and what would be removed next."""

import time
from functools import partial
from typing import Any

from commitlogfs.fusefs.files.retention import Retention
from commitlogfs.store.disks import forecast
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.retention import Mode, RetentionRules, Rule, Trigger
from commitlogfs.store.segment import format_segment_name


def retention_report(retention: Retention, log: CommitLog, bytes_per_second: float) -> dict[str, Any]:
    """Part of the status document. `bytes_per_second`: growth of each eligible disk."""
    rules, decision, held = retention.rules, retention.preview(), retention.held()
    return {
        "mode": rules.mode.value,
        "trigger": rules.trigger.value,
        "force_after_seconds": rules.force_after_s,
        "cycles": retention.cycles,
        "force_in_seconds": decision.force_in_s,
        "pressure_in_seconds": _pressure_in_s(rules, log, bytes_per_second),
        "removing": len(decision.planned),
        "removed": {rule.value: log.counters.removed[rule.value] for rule in Rule},
        "held_open": {"segments": len(held), "bytes": sum(segment.allocated_bytes for segment in held)},
        "alerts": [
            {"code": alert.code.value, "disk": alert.disk or None, "text": alert.text} for alert in decision.alerts
        ],
    }


def foresee(retention: Retention, log: CommitLog) -> list[dict[str, Any]]:
    """Segments that would be removed if only time passed, oldest first; `in_seconds` is the earliest time."""
    now, later = retention.preview(), retention.foresee()
    planned = now.planned or later.planned
    in_s = 0.0 if now.planned else now.force_in_s or 0.0
    until_hour_s = partial(_until_hour_s, retention.rules, log.clock.wall())
    return [
        {
            "segment": format_segment_name(removal.segment.base_offset).decode(),
            "disk": log.disks[removal.segment.disk].path,
            "bytes": removal.segment.allocated_bytes,
            "rule": removal.rule.value,
            "reason": removal.reason,
            "in_seconds": until_hour_s() if removal.rule is Rule.AGE and not now.planned else in_s,
        }
        for removal in planned
    ]


def _pressure_in_s(rules: RetentionRules, log: CommitLog, bytes_per_second: float) -> float | None:
    """Seconds until the trigger is met at the present rate; None if it will not be met, or nothing is deleted."""
    if rules.mode is Mode.OFF:
        return None
    times = []
    for disk in log.disks.values():
        usage = log.usage(disk.number)
        if disk.intended_state is DiskState.RW and usage is not None:
            times.append(forecast.seconds_until(usage, disk.thresholds.force, bytes_per_second))
    known = [seconds for seconds in times if seconds is not None]
    if not known or (rules.trigger is Trigger.ALL and len(known) < len(times)):
        return None
    return max(known) if rules.trigger is Trigger.ALL else min(known)


def _until_hour_s(rules: RetentionRules, now_s: float) -> float:
    """Seconds until the next hour of delete_when begins, by the local clock."""
    now = time.localtime(now_s)
    past = now.tm_min * 60 + now.tm_sec
    hours = min((hour - now.tm_hour) % 24 for hour in rules.delete_when)
    return max(0.0, hours * 3600.0 - past)
