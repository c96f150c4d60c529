"""The status document as sentences. Pure."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of, local_minute
from commitlogfs.console.units import format_size
from commitlogfs.mount.status.disk_content import describe_held

_FAILURES: Final = frozenset({"failed", "offline", "unreadable", "unresponsive", "vanished"})
MOST_OF_A_CODE: Final = 5
"""Findings of one code that are shown: a disk that was given up leaves one for each segment."""
_LATELY_S: Final = 3600.0
_NO_ANSWER: Final = "does not answer: gets no new segments until it does"


def describe_degraded(document: dict[str, Any]) -> str:
    return f"DEGRADED: served without {', '.join(document['missing_disks'])}."


def describe_offline(disk: dict[str, Any]) -> str:
    """A disk that is not served because an operator has released it."""
    number, path, since = disk["number"], disk["path"], local_minute(disk["since"])
    return f"{number}  {path}  offline since {since}: its segments are not served; `disk online {number}` ends that"


def describe_log(document: dict[str, Any]) -> str:
    segments = document["segments"]
    size = format_size(segments["size"])
    if not segments["count"]:
        return f"The log is empty; segments of {size} will be made when the broker starts."
    text = f"{count_of(segments['count'], 'segment')} of {size}, log offsets {segments['first_offset']:,} to "
    text += f"{segments['last_offset'] + segments['size']:,}"
    if segments["gaps"]:
        accepted = segments.get("accepted_gaps", 0)  # a daemon of a former version does not report it
        count = len(segments["gaps"]) - accepted
        if count:
            text += f", WITH {count} GAP{'S' if count > 1 else ''}: consumers skip over a gap silently"
        if accepted:
            text += f", with {count_of(accepted, 'gap')} of disks that were given up"
    if segments["unsized"]:
        text += f", and {count_of(segments['unsized'], 'segment')} without a size yet"
    rate = document["ingest_bytes_per_second"]
    if rate >= 1:
        return f"{text}, growing by {approximate_size(rate)}/s."
    if document.get("idle_since") is not None:  # a daemon of a former version does not report it
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(document["idle_since"]))
        return f"{text}, idle since {since}."
    return f"{text}."


def describe_checksums(document: dict[str, Any]) -> str:
    """How many sealed segments have a checksum; empty if there is nothing to say."""
    checksums = document.get("checksums")  # a daemon of a former version does not report it
    if checksums is None:
        return ""
    lacking = checksums["without"] + checksums["unread"]
    if not lacking:
        return ""
    return f"{count_of(checksums['with'], 'sealed segment')} with a checksum, {lacking:,} still without."


def describe_mount(document: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """One mount among several: name, mountpoint, segments, used percent as the broker sees it, remarks."""
    name, mountpoint = document["name"], document["mountpoint"] or "?"
    if "error" in document:
        return name, mountpoint, "?", "?", document["error"].removeprefix(f"{name}: ")
    segments = document["segments"]
    remarks = ["DEGRADED"] if document["degraded"] else []
    remarks += [count_of(len(segments["gaps"]), "gap")] if segments["gaps"] else []
    alerts = dict.fromkeys(alert["code"] for alert in document["retention"]["alerts"])
    remarks += [f"alert {code}" for code in alerts]
    used = f"{document['statfs']['used_percent']} %"
    return name, mountpoint, f"{segments['count']:,}", used, ", ".join(remarks) or "ok"


def describe_alert(alert: dict[str, Any]) -> str:
    """The alert in one line, with its code."""
    where = f"{alert['disk']}: " if alert["disk"] else ""
    return f"{where}{alert['text']} [{alert['code']}]"


def shortened(findings: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """The first few findings of each code, in their order. The last of these, if more are left out, comes with
    their number; each other one with 0."""
    counts, shown = Counter(finding["code"] for finding in findings), Counter[str]()
    for finding in findings:
        code = finding["code"]
        shown[code] += 1
        if shown[code] <= MOST_OF_A_CODE:
            yield finding, counts[code] - MOST_OF_A_CODE if shown[code] == MOST_OF_A_CODE else 0


def describe_passthrough(daemon: dict[str, Any]) -> str:
    plain = daemon["plain_files"]
    text = f"passthrough on, but for {count_of(plain, 'file')}" if plain else "passthrough on"
    if daemon["passthrough"] == "off":
        text = f"passthrough off ({daemon['passthrough_reason']})"
    if daemon.get("takeover_available", True):  # a daemon of a former version does not report it
        return text
    return (
        f"{text}; no takeover is possible, so the mount ends with the daemon "
        f"({daemon['takeover_unavailable_reason']})"
    )


def describe_disk(disk: dict[str, Any], document: dict[str, Any]) -> str:
    """Which rule is in force on this disk, what happens next, and when."""
    if disk["state"] == "joining":
        return "joins the pool: gets segments as soon as the disks have recorded it"
    if disk["state"] == "vanished":
        return f"its path does not lead to it: gets no new segments until it is mounted there again{_cause(disk)}"
    if disk["state"] == "leaving":
        return "leaves the pool: repeat `disk remove`, or `disk uncordon` it"
    if disk.get("drain") is not None:  # a daemon of a former version does not report it
        return f"{describe_drain(disk)}{_describe_failure(disk)}"
    if disk["refusal"] == "no-room" and _is_too_small(disk["path"], document):
        return "too small for a segment: takes none"
    if disk["refusal"] is not None:
        return _describe_refusal(disk)
    parts = []
    if document["placement"]["fallback"]:
        parts.append("above its limit like all others, so used anyway")
    if disk["path"] == document["placement"]["next_disk"]:
        parts.append("takes the next segment")
    if disk["next_threshold"] is not None:
        percent = disk["thresholds"][disk["next_threshold"]]
        eta = disk["eta_seconds"]
        limit = f"{disk['next_threshold']} ({percent} %)"
        parts.append(f"below {limit}" if eta is None else f"reaches {limit} in about {approximate_duration(eta)}")
    if disk.get("slowness") is not None:  # a daemon of a former version does not report it
        parts.append(_describe_slowness(disk))
    return ", ".join(parts)


def _is_too_small(path: str, document: dict[str, Any]) -> bool:
    alerts = document.get("alerts", ())  # a daemon of a former version does not report them here
    return any(alert["code"] == "disk-too-small" and alert["disk"] == path for alert in alerts)


def _cause(disk: dict[str, Any]) -> str:
    return f"; {disk['last_error']}" if disk["last_error"] else ""


def _describe_refusal(disk: dict[str, Any]) -> str:
    """Why this disk gets no new segments, and how that ends."""
    refusal = disk["refusal"]
    if disk["state"] == "slow":
        return f"{_describe_slowness(disk)}{_cause(disk)}"
    if refusal == "above-force":
        return f"skipped for new segments until below {disk['thresholds']['resume']} %"
    if refusal == "no-room":
        return "full: no new segments until space is free"
    if refusal == "in-backoff":
        return _describe_backoff(disk)
    if refusal == "not-writable":
        return f"read-only: its segments are served, new ones are made on other disks{_describe_failure(disk)}"
    if disk["state"] == "offline" and disk["cordon"] is None and refusal == "cordoned":
        return "to be offline: repeat `disk offline`, or `disk online` keeps it"
    if refusal == "cordoned" or disk["cordon"] is not None:
        return _describe_cordon(disk)
    return _describe_backoff(disk) if disk["last_error"] else _NO_ANSWER


def _describe_slowness(disk: dict[str, Any]) -> str:
    """How slow a disk is, compared with others, and what happens next."""
    slowness = disk["slowness"]
    others = (("peers", slowness["peers_seconds"]), ("usually", slowness["usual_seconds"]))
    compared = "".join(f", {name} {_milliseconds(seconds)}" for name, seconds in others if seconds is not None)
    text = f"slow: {_milliseconds(slowness['seconds'])} for a {slowness['operation']}{compared}; "
    probe_in_s = slowness["probe_in_seconds"]
    if probe_in_s is None:
        return f"{text}only noted: too few peers, or too many slow disks"
    return f"{text}gets no new segments, next probe in {approximate_duration(probe_in_s)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _describe_backoff(disk: dict[str, Any]) -> str:
    """Why this disk is tried last, and how that ends."""
    if disk["state"] == "unresponsive":
        return f"{_NO_ANSWER}; {disk['last_error']}"
    if disk["state"] == "unreadable":
        return f"cannot be read: gets no new segments until two checks can read again; {disk['last_error']}"
    return f"in backoff for a moment: {disk['last_error']}"


def _describe_cordon(disk: dict[str, Any]) -> str:
    cordon = disk["cordon"]
    since = local_minute(cordon["since"])
    reason = f" ({cordon['reason']})" if cordon["reason"] else ""
    effect = _describe_failure(disk) or ": its segments are served, new ones are made on other disks"
    return f"cordoned since {since}{reason}{effect}"


def _describe_failure(disk: dict[str, Any]) -> str:
    """State and error of a disk that fails, to be added to its cordon or drain; empty for one that works."""
    if disk["state"] not in _FAILURES:
        return ""
    return f"; {disk['state']}: {disk['last_error']}" if disk["last_error"] else f"; {disk['state']}"


def describe_drain(disk: dict[str, Any]) -> str:
    """How far a disk that drains is, and what it waits for."""
    drain, held = disk["drain"], disk["held_segments"]
    left, eta = drain["segments_left"], drain["eta_seconds"]
    if not left and held:
        if drain["mode"] == "failing":
            return f"drained: {count_of(held, 'former file')} there; `disk safe-to-remove` reports more"
        return f"drained, held: {describe_held(held, disk.get('held_until'))}"  # None by a former daemon
    if not left:
        return "drained: `disk remove` takes it out of the pool"
    if drain["mode"] != "expiry":
        return _describe_copying(drain)
    text = f"draining by expiry: {count_of(left, 'segment')} left"
    return text if eta is None else f"{text}, gone in about {approximate_duration(eta)}"


def _describe_copying(drain: dict[str, Any]) -> str:
    """How far a drain is that moves segments, and what it waits for."""
    left, kept, eta = drain["segments_left"], drain["segments_kept"], drain["eta_seconds"]
    text = f"draining: {count_of(left, 'segment')} left"
    if left > kept and (stuck := _describe_stuck(drain)):
        return f"{text}, of which {stuck}"
    if drain["no_room"]:
        return f"{text}, WITHOUT ROOM on the other disks; add one, or wait for segments to expire"
    if left == kept:
        them, are = ("it", "it is") if left == 1 else ("them", "they are")
        return f"{text}: the broker may still write to {them}; {are} moved when the broker has made newer segments"
    if kept:
        text += f", {kept:,} of them among the newest of the log"
    if waits_for := drain.get("waits_for"):  # a daemon of a former version does not report it
        segment = f"{waits_for['segment']}: " if waits_for["segment"] else ""
        return f"{text}; waits for {waits_for['disk']} ({segment}{waits_for['reason']})"
    return text if eta is None else f"{text}, about {approximate_duration(eta)} to go"


def _describe_stuck(drain: dict[str, Any]) -> str:
    """The reason why the last segments of a drain stay on their disk; empty without one."""
    count = drain["segments_left"] - drain["segments_kept"]
    if count == drain["unreadable_segments"]:
        return f"nothing can be read ({count:,}); they are tried every 10 min"
    if drain["mode"] != "failing" and count == drain.get(
        "rotten_segments", 0
    ):  # a former daemon does not report it
        if count == 1:
            return "1 differs from its checksum; `disk drain --failing` moves it"
        return f"{count:,} differ from their checksums; `disk drain --failing` moves them"
    return ""


def describe_pressure(document: dict[str, Any]) -> str:
    """The fill level that the broker sees, and what the broker will do by itself."""
    shown = document["statfs"]["used_percent"]
    limits = document["thresholds"]
    who = "least full" if document["statfs"]["trigger"] == "all" else "fullest"
    text = f"The broker sees {shown} % used, and so does `df` (the {who} writable disk): "
    if shown > limits["full"]:
        return text + f"above {limits['full']} % it refuses messages and deletes its oldest segments."
    if shown > limits["force"]:
        return text + f"above {limits['force']} % it deletes its oldest segments, whatever their age."
    if shown > limits["clean"]:
        return text + f"above {limits['clean']} % it deletes expired segments at once."
    return text + f"it deletes nothing for lack of space before {limits['clean']} %."


def describe_removed_lately(decisions: Sequence[dict[str, Any]], now_s: float) -> str:
    """The segments that callers of the mount have removed within the last hour; empty without any. `decisions` are
    entries of the journal, newest first."""
    lately = [one for one in decisions if one["facts"].get("reason") == "unlink" and one["at"] >= now_s - _LATELY_S]
    if not lately:
        return ""
    newest, seconds = lately[0], lately[0]["at"] - lately[-1]["at"]
    within = f" within {approximate_duration(seconds)}" if len(lately) > 1 else ""
    reason = f" ({newest['facts']['why']})" if newest["facts"].get("why") else ""
    count, when = count_of(len(lately), "segment"), local_minute(newest["at"])
    who = "Removed through the mount in the last hour, as by the broker"
    return f"{who}: {count}{within}, the latest at {when}{reason}."


def describe_retention(retention: dict[str, Any]) -> str:
    """Whether the filesystem itself deletes, and when it begins."""
    if retention["mode"] == "off":
        return "The filesystem deletes nothing (mode off)."
    text = f"Forced deletion (mode {retention['mode']}): "
    held = retention["held_open"]
    after = ""
    if held["segments"]:
        size, verb = approximate_size(held["bytes"]), "is" if held["segments"] == 1 else "are"
        after = f" {count_of(held['segments'], 'removed segment')} of {size} {verb} still open, so not free yet."
    if retention["removing"]:
        return f"{text}removes {count_of(retention['removing'], 'segment')} now.{after}"
    if retention["force_in_seconds"] is not None:
        return (
            f"{text}begins in {approximate_duration(retention['force_in_seconds'])} if the pressure holds.{after}"
        )
    limit = "every disk has" if retention["trigger"] == "all" else "a disk has"
    waits = approximate_duration(retention["force_after_seconds"])
    text += f"begins when {limit} been at its force threshold for {waits}"
    eta = retention["pressure_in_seconds"]
    return f"{text}.{after}" if eta is None else f"{text}, in about {approximate_duration(eta)}.{after}"


def describe_store_root(document: dict[str, Any]) -> str:
    """How the broker frees space on the disk that holds its consumequeue."""
    root, limits = document["store_root"], document["thresholds"]
    used = root["used_percent"]
    if used is None:
        return f"The store root {root['path']} (consumequeue, index) does not answer."
    text = f"The store root {root['path']} (consumequeue, index) is {used:.0f} % used: "
    if used > limits["force"]:
        return text + f"above {limits['force']} % the broker deletes its oldest segments for it: free space there."
    if used > limits["clean"]:
        return text + f"above {limits['clean']} % the broker deletes expired segments at once for it."
    return text + f"fine up to {limits['clean']} %."
