"""The result of `retention simulate` in sentences, and as a document. Pure."""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.units import format_size
from commitlogfs.store.retention import Mode, Rule, Trigger
from commitlogfs.store.retention.simulate import Scenario
from commitlogfs.store.retention.simulated_pool import PlannedDisk
from commitlogfs.store.retention.simulated_report import (
    LEVELS,
    Actor,
    DiskChange,
    DiskReport,
    Retention,
    SimulationReport,
)

DAY_S: Final = 86_400
HEADINGS: Final = ("disk", "size", "other data", *LEVELS, "at the end")
_EARLIER: Final = 0.9
"""A disk that reaches `force` in less than this share of the time the pool needs is a small one."""

_ALIKE: Final = 0.02
"""Tolerance of the times in one row."""


@dataclass(frozen=True, slots=True)
class Remark:
    code: str
    level: str
    """"note" or "warning"."""
    text: str
    remedy: str


def size_in_words(size_bytes: int) -> str:
    exact = format_size(size_bytes)
    return exact if len(exact) <= 6 else approximate_size(size_bytes)


def duration_in_words(seconds: float) -> str:
    for length, unit in ((DAY_S, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def describe_scenario(scenario: Scenario, duration_s: float) -> str:
    rules = scenario.rules
    disks = [disk for disk in scenario.disks if not disk.added_s]
    text = f"{count_of(len(disks), 'disk')}, {size_in_words(sum(disk.size_bytes for disk in disks))} in all, "
    text += f"{size_in_words(scenario.ingest_bytes_per_s)}/s "
    if scenario.daily_wave:
        text += f"with daily waves of {scenario.daily_wave:.0%} "
    text += f"in segments of {size_in_words(scenario.segment_size)}, "
    text += f"placement {scenario.placement}, trigger {rules.trigger.value}, mode {rules.mode.value}, "
    return f"{text}from empty, for {duration_in_words(duration_s)}:"


def describe_retention(report: SimulationReport) -> str:
    retention = report.retention
    if retention is None:
        if report.first_removal_s is None:
            return "Nothing is removed in this time: the log keeps everything."
        if any(change.drains and change.empty_s is None for change in report.changes):
            return "The log has not reached a steady state: a disk still drains at the end."
        return "The log has not reached a steady state: it still grows at the end."
    assert report.steady_s is not None
    text = f"The log reaches back {_range_in_words(retention)}"
    return f"{text}, from {duration_in_words(report.steady_s)} after the beginning on."


def _range_in_words(retention: Retention) -> str:
    shortest, longest = duration_in_words(retention.shortest_s), duration_in_words(retention.longest_s)
    if shortest == longest:
        return shortest
    return f"{shortest} to {longest} (median {duration_in_words(retention.median_s)})"


def describe_changes(report: SimulationReport) -> list[str]:
    """One line for each disk that is added or drains."""
    return [_change_in_words(change, report.disks[change.number - 1]) for change in report.changes]


def _change_in_words(change: DiskChange, disk: DiskReport) -> str:
    at, path = duration_in_words(change.at_s), disk.planned.path
    if not change.drains:
        text = f"{path} ({size_in_words(disk.planned.size_bytes)}) is added after {at}"
    elif change.empty_s is None:
        text = f"{path} drains from {at} on, and is not empty at the end: {count_of(disk.segments, 'segment')} left"
    else:
        took = duration_in_words(change.empty_s - change.at_s)
        text = f"{path} drains from {at} on, and is empty after {duration_in_words(change.empty_s)}: {took} later"
        if change.forecast_s is not None:
            text += f" (forecast at the beginning: {duration_in_words(change.forecast_s)})"
    if change.before is None:
        return f"{text}."
    return f"{text}. In the day before the change, the log reached back {_range_in_words(change.before)}."


def describe_pool(report: SimulationReport, scenario: Scenario) -> str:
    who = "Every disk" if scenario.rules.trigger is Trigger.ALL else "The first disk"
    reached = [
        f"{level} after {duration_in_words(report.reached_s[level])}"
        for level in LEVELS
        if level in report.reached_s
    ]
    if not reached:
        return (
            f"{who} stays below clean." if scenario.rules.trigger is Trigger.ANY else "No level is reached by all."
        )
    return f"{who} has reached {', '.join(reached)}."


def describe_removals(report: SimulationReport, scenario: Scenario) -> list[str]:
    reserved_s = _reserved_s(scenario)
    why = {
        Rule.AGE: f"older than {duration_in_words(reserved_s)}",
        Rule.FORCE: "for lack of space, whatever their age",
        Rule.FULL: "at full, so that a new one fits",
    }
    who = {Actor.BROKER: "The broker", Actor.FILESYSTEM: "The filesystem"}
    lines = []
    for (actor, rule), count in sorted(
        report.removed.items(), key=lambda item: (item[0][0].value, item[0][1].value)
    ):
        lines.append(f"{who[actor]} removes {count_of(count, 'segment')}: {why[rule]}.")
    if report.first_removal_s is not None:
        lines.append(f"The first one is removed after {duration_in_words(report.first_removal_s)}.")
    return lines


def table_rows(report: SimulationReport) -> list[tuple[str, ...]]:
    """Neighbours with almost the same times share a row, with the times of the first of them."""
    groups: list[list[DiskReport]] = []
    for disk in report.disks:
        if groups and _fare_alike(groups[-1][0], disk):
            groups[-1].append(disk)
        else:
            groups.append([disk])
    return [_cells(group) for group in groups]


def remarks(report: SimulationReport, scenario: Scenario) -> list[Remark]:
    return [
        *_refusals(report),
        *_early_removals(report, scenario),
        *_foreign_data(report),
        *_small_disks(report, scenario),
        *_slow_expiry(report, scenario),
        *_too_short(report, scenario),
    ]


def as_document(report: SimulationReport, scenario: Scenario, found: list[Remark]) -> dict[str, Any]:
    """Stable schema (docs/reference/cli.md). Bytes, percent, and seconds since the beginning; null: never."""
    rules, broker, retention = scenario.rules, scenario.broker, report.retention
    return {
        "scenario": {
            "duration_seconds": report.duration_s,
            "ingest_bytes_per_second": scenario.ingest_bytes_per_s,
            "daily_wave_percent": round(scenario.daily_wave * 100),
            "segment_size": scenario.segment_size,
            "placement": scenario.placement,
            "mode": rules.mode.value,
            "trigger": rules.trigger.value,
            "reserved_seconds": _reserved_s(scenario),
            "delete_when": sorted(rules.delete_when or broker.delete_when),
        },
        "reached_seconds": {level: report.reached_s.get(level) for level in LEVELS},
        "first_removal_seconds": report.first_removal_s,
        "steady_seconds": report.steady_s,
        "retention_seconds": _retention_as_document(retention),
        "changes": [
            {
                "disk": change.number,
                "change": "drain" if change.drains else "add",
                "at_seconds": change.at_s,
                "empty_seconds": change.empty_s,
                "forecast_seconds": change.forecast_s,
                "retention_before_seconds": _retention_as_document(change.before),
            }
            for change in report.changes
        ],
        "removed": [
            {"by": actor.value, "rule": rule.value, "segments": count}
            for (actor, rule), count in sorted(report.removed.items(), key=str)
        ],
        "youngest_removed_seconds": report.youngest_removed_s,
        "segments": {"created": report.created, "at_the_end": report.segments, "most": report.most_segments},
        "refused": {"creates": report.refused_creates, "seconds": report.refused_s},
        "disks": [
            {
                "number": disk.number,
                "path": disk.planned.path,
                "total_bytes": disk.planned.size_bytes,
                "foreign_bytes": disk.planned.foreign_bytes,
                "thresholds": {
                    "clean": disk.planned.thresholds.clean,
                    "force": disk.planned.thresholds.force,
                    "full": disk.planned.thresholds.full,
                    "resume": disk.planned.thresholds.resume,
                    "min_free": disk.planned.thresholds.min_free_bytes,
                },
                "reached_seconds": {level: disk.reached_s.get(level) for level in LEVELS},
                "skipped": disk.was_skipped,
                "used_percent": disk.used_percent,
                "segments": disk.segments,
            }
            for disk in report.disks
        ],
        "remarks": [{"code": r.code, "level": r.level, "text": r.text, "remedy": r.remedy} for r in found],
    }


def _retention_as_document(retention: Retention | None) -> dict[str, float] | None:
    if retention is None:
        return None
    return {"shortest": retention.shortest_s, "median": retention.median_s, "longest": retention.longest_s}


def fill_time_s(disks: tuple[PlannedDisk, ...], bytes_per_s: int) -> float:
    """Seconds until all disks are at `force`."""
    room = sum(max(0, d.size_bytes * d.thresholds.force / 100 - d.foreign_bytes) for d in disks)
    return room / bytes_per_s


# --- remarks -----------------------------------------------------------------------------------------------


def _refusals(report: SimulationReport) -> list[Remark]:
    found = []
    if report.refused_s:
        text = f"messages are refused for {duration_in_words(report.refused_s)} in all"
        if report.refused_creates:
            text += f", and {count_of(report.refused_creates, 'segment')} found no disk at the first try"
        found.append(Remark("refused", "warning", text, "more room, a lower rate, or less other data"))
    elif report.refused_creates:
        text = f"{count_of(report.refused_creates, 'segment')} found no disk at first, and were created in time"
        found.append(Remark("refused", "warning", text, "more room between force and full"))
    return found


def _early_removals(report: SimulationReport, scenario: Scenario) -> list[Remark]:
    reserved_s = _reserved_s(scenario)
    if report.youngest_removed_s is None or report.youngest_removed_s >= reserved_s:
        return []
    force = min(disk.thresholds.force for disk in scenario.disks)
    needed = reserved_s * scenario.ingest_bytes_per_s * 100 / force
    text = f"messages are removed after {duration_in_words(report.youngest_removed_s)}, before their time: "
    text += f"{duration_in_words(reserved_s)} (fileReservedTime, reserved)"
    remedy = f"{approximate_size(needed)} of equal disks are enough; or lower the rate, or the reserved time"
    return [Remark("removed-early", "warning", text, remedy)]


def _foreign_data(report: SimulationReport) -> list[Remark]:
    found = []
    for disk in report.disks:
        planned = disk.planned
        if not planned.foreign_bytes:
            continue
        level = next((level for level in reversed(LEVELS) if disk.reached_s.get(level) == 0), None)
        if level is None:
            continue
        text = (
            f"{planned.path} is above {level} from the beginning by {approximate_size(planned.foreign_bytes)} of "
        )
        text += "other data"
        if not disk.segments:
            text += ", and takes no segment"
        found.append(Remark("foreign-data", "warning", text, "free space there, or leave that disk out"))
    return found


def _small_disks(report: SimulationReport, scenario: Scenario) -> list[Remark]:
    """A remark on disks that reach `force` long before the others."""
    lasting = _lasting(report)
    last_s = max((d.reached_s.get("force", report.duration_s) for d in lasting), default=0.0)
    small = [d for d in lasting if 0 < d.reached_s.get("force", math.inf) < _EARLIER * last_s]
    if not small:
        return []
    names = _listed([d.planned.path for d in small])
    when = duration_in_words(min(d.reached_s["force"] for d in small))
    idle = [d for d in lasting if d not in small and _is_below_clean(d)]
    if scenario.rules.trigger is Trigger.ANY and report.removed and idle:
        text = f"{names}: at force after {when}, and with trigger any that decides for the whole log: "
        text += f"{idle[0].planned.path} is {idle[0].used_percent:.0f} % used at the end"
        return [Remark("small-disk-decides", "warning", text, "trigger all, or disks of one size")]
    text = f"{names}: at force after {when}, long before the others, which take the segments while it is skipped"
    remedy = "placement weighted fills disks of different sizes alike"
    return [Remark("small-disk", "note", text, remedy if scenario.placement != "weighted" else "")]


def _lasting(report: SimulationReport) -> list[DiskReport]:
    """All disks but those that are added or drain, which have their own times."""
    return [disk for disk in report.disks if not disk.planned.added_s and disk.planned.drains_s is None]


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


def _is_below_clean(disk: DiskReport) -> bool:
    """Whether a disk that takes segments has room for more."""
    return bool(disk.segments) and disk.used_percent < disk.planned.thresholds.clean


def _slow_expiry(report: SimulationReport, scenario: Scenario) -> list[Remark]:
    """A remark if more segments come in a day than a broker removes in its hours."""
    broker = scenario.broker
    if scenario.rules.mode is Mode.FILESYSTEM or (Actor.BROKER, Rule.AGE) not in report.removed:
        return []
    a_day = broker.batch * 360 * len(broker.delete_when)
    comes = scenario.ingest_bytes_per_s * DAY_S / scenario.segment_size
    if comes <= a_day or "clean" not in report.reached_s:
        return []
    text = (
        f"in its hours (deleteWhen) a broker removes at most {a_day:,} segments a day, and {comes:,.0f} come in: "
    )
    text += "expired ones stay until the disks are above clean"
    return [Remark("slow-expiry", "note", text, "nothing has to be done: the disks stay at clean")]


def _too_short(report: SimulationReport, scenario: Scenario) -> list[Remark]:
    if report.steady_s is not None or report.refused_s:
        return []
    wanted_s = max(2 * fill_time_s(scenario.disks, scenario.ingest_bytes_per_s), 2 * report.duration_s)
    text = f"{duration_in_words(report.duration_s)} are too short to show the steady state"
    return [Remark("too-short", "note", text, f"--days {math.ceil(wanted_s / DAY_S)}")]


def _reserved_s(scenario: Scenario) -> float:
    ours = scenario.rules.reserved_s
    return scenario.broker.reserved_s if ours is None else ours


def _fare_alike(one: DiskReport, other: DiskReport) -> bool:
    if (
        replace(other.planned, path=one.planned.path) != one.planned
        or one.reached_s.keys() != other.reached_s.keys()
    ):
        return False
    return all(math.isclose(other.reached_s[level], at_s, rel_tol=_ALIKE) for level, at_s in one.reached_s.items())


def _cells(group: list[DiskReport]) -> tuple[str, ...]:
    first, last = group[0], group[-1]
    planned = first.planned
    least, most = (f"{choose(disk.used_percent for disk in group):.1f}" for choose in (min, max))
    return (
        str(first.number) if first is last else f"{first.number}-{last.number}",
        size_in_words(planned.size_bytes),
        size_in_words(planned.foreign_bytes) if planned.foreign_bytes else "-",
        *(duration_in_words(first.reached_s[level]) if level in first.reached_s else "never" for level in LEVELS),
        f"{least} %" if least == most else f"{least}-{most} %",
    )
