"""A rebalance, planned or running, as sentences. Pure."""

from typing import Any

from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of


def describe_plan(plan: dict[str, Any]) -> list[str]:
    """The plan of a rebalance: the spread, then one line for each disk, then the work and its time."""
    lines = [describe_spread(plan)]
    lines += [_describe_disk(disk, plan) for disk in plan["disks"]]
    lines += [
        f"{move['from']} -> {move['to']}: {count_of(move['segments'], 'segment')} "
        f"({approximate_size(move['bytes'])})"
        for move in plan["moves"]
    ]
    lines.append(describe_work(plan))
    if not _is_possible(plan):
        lines.append(
            f"The goal cannot be reached: {plan['end_points']:.1f} points would remain{_describe_others(plan)}."
        )
    if plan["waits_for_drains"]:
        lines.append(f"Drains come first: {', '.join(plan['waits_for_drains'])}.")
    return lines


def _is_possible(plan: dict[str, Any]) -> bool:
    return bool(plan["end_points"] <= plan["goal_points"] + 0.01)


def _describe_others(plan: dict[str, Any]) -> str:
    """The disk with the most data besides its segments, if there are any."""
    largest = max(plan["disks"], key=lambda disk: int(disk.get("other_bytes") or 0), default=None)
    if largest is None or not largest.get("other_bytes"):
        return ""
    return f"; {largest['path']} holds {approximate_size(largest['other_bytes'])} that are no segments"


def describe_spread(plan: dict[str, Any]) -> str:
    """How far apart the fullest and the emptiest disk are."""
    taking_part = [disk for disk in plan["disks"] if disk["used_percent"] is not None]
    text = f"Spread {plan['spread_points']:.1f} points"
    if taking_part:
        fullest = max(taking_part, key=lambda disk: float(disk["used_percent"]))
        emptiest = min(taking_part, key=lambda disk: float(disk["used_percent"]))
        text += (
            f" ({fullest['path']} {fullest['used_percent']:.1f} %, {emptiest['path']} "
            f"{emptiest['used_percent']:.1f} %)"
        )
    text += f", goal {plan['goal_points']:.1f}"
    if plan["goal_points"] > 2:
        text += " (one segment is so large a part of the smallest disk)"
    return f"{text}."


def describe_work(plan: dict[str, Any]) -> str:
    """Segments to be copied or written, and the time that it takes."""
    if plan["balanced"]:
        return "The disks are equally full: nothing to do."
    size = f"{count_of(plan['segments'], 'segment')} ({approximate_size(plan['bytes'])})"
    if plan["mode"] == "copy":
        return f"To move: {size}; {_describe_time(plan)}."
    if not _is_possible(plan):
        return (
            f"By placement, nothing is copied: the emptier disks are at `force` when the broker has written {size}."
        )
    return f"By placement, nothing is copied: done when the broker has written {size}; {_describe_time(plan)}."


def _describe_time(plan: dict[str, Any]) -> str:
    if plan["eta_seconds"] is not None:
        return f"about {approximate_duration(plan['eta_seconds'])}"
    known = "after the first moves" if plan["mode"] == "copy" else "once the log grows"
    return f"the time is known {known}"


def describe_start(plan: dict[str, Any], *, dry_run: bool) -> str:
    """Result of a start of this rebalance, or of its dry run."""
    if plan["balanced"]:
        return describe_work(plan)
    size = f"{count_of(plan['segments'], 'segment')} ({approximate_size(plan['bytes'])})"
    if plan["mode"] == "copy":
        way, work = "copying", f"{size} to move"
    else:
        way, work = "placement", f"nothing is copied; done when the broker has written {size}"
    head = f"would start a rebalance by {way}" if dry_run else f"rebalance by {way} started"
    return f"{head}: {work}; {_describe_time(plan)}"


def describe_rebalance(rebalance: dict[str, Any]) -> str:
    """How far the rebalance that runs is."""
    way = "by placement" if rebalance["mode"] == "placement" else "by copying"
    text = f"Rebalance {way}: spread {rebalance['spread_points']:.1f} points, goal {rebalance['goal_points']:.1f}"
    left, eta = rebalance["segments_left"], rebalance["eta_seconds"]
    if left:
        what = "new segments" if rebalance["mode"] == "placement" else "segments to move"
        text += f"; {left:,} {what} ({approximate_size(rebalance['bytes_left'])})"
        text += "" if eta is None else f", about {approximate_duration(eta)}"
    if rebalance["waits_for"]:
        text += f"; does not end before these disks are well or out of use: {', '.join(rebalance['waits_for'])}"
    return f"{text}."


def _describe_disk(disk: dict[str, Any], plan: dict[str, Any]) -> str:
    name = f"{disk['number']}  {disk['path']}"
    if disk["used_percent"] is None:
        return f"{name}  left out: {disk['left_out']}"
    text = f"{name}  {disk['used_percent']:.1f} % -> {disk['goal_percent']:.1f} %"
    if plan["mode"] == "copy" and disk["change"]:
        verb = "takes" if disk["change"] > 0 else "gives"
        text += f"  {verb} {count_of(abs(disk['change']), 'segment')}"
    if disk["held_segments"]:
        text += f"  (without {count_of(disk['held_segments'], 'moved segment')} that the broker still has open)"
    return text
