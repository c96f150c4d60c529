"""Explains in words why a segment, a disk or the next create is as it is. Pure.

The sources are the status document, the answer of `locate`, and the journal of decisions, newest entry first.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Final

from commitlogfs.console.formatting import approximate_size
from commitlogfs.mount.journal.wording import describe_policy, describe_removal
from commitlogfs.mount.views.status_text import describe_disk, describe_offline
from commitlogfs.store.segment import format_segment_name

_ARRIVALS: Final = ("placed", "moved", "restored", "repaired")
"""Kinds of entries after which a segment is on their disk."""
_SHOWN: Final = 12
_REMEDIES: Final = {
    "slow": "it is probed regularly, and used again when its device is as fast as the others",
    "in-backoff": "repair the disk; it is tried again soon, and last of all",
    "unknown-usage": "see `dmesg`; repair the disk",
}
_STATE_REMEDIES: Final = {
    "draining": "`commitlogfs disk cancel {number}`",
    "cordoned": "`commitlogfs disk uncordon {number}`",
    "leaving": "`commitlogfs disk uncordon {number}`",
    "offline": "`commitlogfs disk online {number}`",
    "joining": "wait until the disks have recorded it",
    "vanished": "mount the disk there again",
}


@dataclass(frozen=True, slots=True)
class Known:
    """Sources about one mount."""

    status: dict[str, Any] | None
    """The status document; None if no daemon answers."""
    decisions: list[dict[str, Any]]
    """Entries of the journal about the target, newest first."""
    begins_at: float | None
    """Time of the oldest entry of the journal; None without a journal."""


@dataclass(slots=True)
class Explanation:
    lines: list[str] = field(default_factory=list)
    is_recorded: bool = True
    """Whether the journal has the decision that is asked for; False if the reason was derived, or is not known."""


def explain_segment(
    known: Known, offset: int, size: int, location: dict[str, Any] | None, before: dict[str, Any] | None
) -> Explanation:
    """`location` and `before` are the answers of `locate` for this offset and for the segment before; None if no
    daemon answers."""
    name = format_segment_name(offset - offset % size).decode()
    found = Explanation()
    if location is None:
        _explain_by_journal(found, known, name)
        return found
    if not location["present"]:
        _explain_absent(found, known, name, location)
        return found
    state = f" ({location['state']})" if location["state"] else ""
    inside = f"; offset {offset} is at position {location['position']:,} of it" if location["position"] else ""
    found.lines.append(f"Segment {name} is on {location['disk']}{state}{inside}.")
    history = _history(known)
    arrival = next((one for one in known.decisions if one["kind"] in _ARRIVALS), None)
    if arrival is not None and arrival["disk"] == location["disk"]:
        found.lines += history
        if arrival["kind"] != "placed" and not any(one["kind"] == "placed" for one in known.decisions):
            found.lines.append(f"Where it was made before is not recorded: {_reach(known)}.")
    else:
        found.is_recorded = False
        found.lines += history
        found.lines += [
            f"Why it is there is not recorded: {_reach(known)}.",
            _derive_placement(known, name, size, location, before),
        ]
    found.lines += _damage(known, name, location["disk"])
    return found


def explain_disk(known: Known, disk: dict[str, Any]) -> Explanation:
    """A disk of the status document."""
    document = known.status or {}
    found = Explanation()
    used = "used: not known" if disk["used_percent"] is None else f"{disk['used_percent']:g} % used"
    found.lines.append(f"{disk['path']} is {disk['state']}: {used}, {disk['segments']:,} segments.")
    now = describe_disk(disk, document)
    found.lines.append(f"Now: {now}." if now else "Now: gets new segments.")
    since, is_exact = _since(known, disk)
    refusal = disk["refusal"]
    text = "It gets new segments" if refusal is None else f"It gets no new segments ({refusal})"
    if since is None:
        found.is_recorded = False
        found.lines.append(f"{text}; since when is not recorded: {_reach(known)}.")
    elif is_exact:
        found.lines.append(f"{text} since {_moment(since)}.")
    else:
        found.lines.append(f"{text} at least since {_moment(since)}, when the journal began.")
    if refusal is not None:
        found.lines.append(f"To change it: {remedy(disk, document['segments']['size'])}.")
    found.lines += _history(known)
    return found


def explain_absent_disk(known: Known, path: str) -> Explanation | None:
    """A disk that the status document names as missing or given up, or one that only the journal knows; None if
    nothing does."""
    found = Explanation()
    document = known.status
    if document is None:
        if not known.decisions:
            return None
        found.lines += [*_history(known), f"No daemon answers, so the present state of {path} is not known."]
        return found
    offline = {one["path"]: one for one in document["offline_disks"]}
    given_up = {one["path"]: one for one in document["members"]["given_up"]}
    if path in offline:
        found.lines.append(f"{describe_offline(offline[path])}.")
    elif path in given_up:
        since = _moment(given_up[path]["since"])
        found.lines.append(f"{path} was given up at {since} (`disk remove --lost`): its segments are lost.")
    elif path in document["missing_disks"]:
        found.lines.append(f"{path} is a member of the pool, and is missing: the mount is served without it.")
        found.lines.append("To change it: bring the disk back, or give it up (`commitlogfs disk remove --lost`).")
    else:
        return None
    found.lines += _history(known)
    return found


def explain_create(known: Known) -> Explanation:
    """Where the next create would go, and why the last refused one failed. `decisions` are the refused creates."""
    found = Explanation()
    if known.status is None:
        found.lines.append("No daemon answers, so no segment can be created now.")
    else:
        found.lines += _preview(known.status)
    if known.decisions:
        latest = known.decisions[0]
        found.lines.append(f"The last create that failed: {_moment(latest['at'])}: {latest['text']}.")
    elif known.begins_at is not None:
        found.lines.append(f"No create has failed since {_moment(known.begins_at)}, when the journal began.")
    else:
        found.is_recorded = False
        found.lines.append("There is no journal, so whether creates have failed is not known.")
    return found


def explain_mount(known: Known) -> Explanation:
    """The next create, and the latest decisions."""
    found = Explanation()
    found.lines += [] if known.status is None else _preview(known.status)
    found.lines += _history(known)
    if known.begins_at is None:
        found.is_recorded = False
        found.lines.append("There is no journal of decisions.")
    return found


def remedy(disk: dict[str, Any], segment_size: int) -> str:
    """The change after which a disk gets new segments again."""
    refusal, state, path = disk["refusal"], disk["state"], disk["path"]
    if refusal in ("above-force", "no-room"):
        return _space_remedy(disk, segment_size)
    if state in _STATE_REMEDIES and refusal in ("cordoned", "not-writable"):
        return _STATE_REMEDIES[state].format(number=disk["number"])
    if refusal == "not-writable":
        return f"make {path} writable: remount its filesystem, or remove `readonly` from the configuration"
    return _REMEDIES.get(refusal, f"`commitlogfs disk uncordon {disk['number']}`")


# --- segments ----------------------------------------------------------------------------------------------------


def _explain_by_journal(found: Explanation, known: Known, name: str) -> None:
    if known.decisions:
        found.lines += _history(known)
        found.lines.append(f"No daemon answers, so it is not known whether {name} is still there.")
        return
    found.is_recorded = False
    found.lines.append(f"Nothing about {name} is recorded: {_reach(known)}; and no daemon answers.")


def _explain_absent(found: Explanation, known: Known, name: str, location: dict[str, Any]) -> None:
    document = known.status or {}
    segments = document["segments"]
    removal = next((one for one in known.decisions if one["kind"] == "removed"), None)
    if removal is not None:
        facts = removal["facts"]
        why = f": {facts['why']}" if facts["why"] else ""
        way = f"{describe_removal(facts['reason'])}, at {_moment(removal['at'])}, from {removal['disk']}{why}"
        found.lines.append(f"Segment {name} is gone: {way}.")
    else:
        found.lines.append(f"Segment {name} is not in the log: {location['reason']}.")
    last = segments["last_offset"]
    if last is not None and location["offset"] >= last + segments["size"]:
        found.lines.append(f"The log ends at offset {last + segments['size']}.")
        found.lines += _preview(document) if location["offset"] < last + 2 * segments["size"] else []
    elif removal is None:
        found.is_recorded = False
        found.lines.append(f"Its removal is not recorded: {_reach(known)}.")
    found.lines += _losses(document, int(name))
    found.lines += _history(known)


def _losses(document: dict[str, Any], base: int) -> list[str]:
    """Disks that may have had a segment that is in a gap."""
    if not any(start <= base < end for start, end in document["segments"]["gaps"]):
        return []
    return [
        "It is in a gap of the log, which consumers skip silently: `commitlogfs restore` closes gaps.",
        *(
            f"{one['path']} was given up at {_moment(one['since'])}; segments went with it."
            for one in document["members"]["given_up"]
        ),
    ]


def _derive_placement(
    known: Known, name: str, size: int, location: dict[str, Any], before: dict[str, Any] | None
) -> str:
    """The disk that the policy would have chosen if no disk was passed over."""
    document = known.status or {}
    policy = document["placement"]["policy"]
    disks = sorted((disk["number"], disk["path"]) for disk in document["disks"])
    if policy == "modulo":
        by_path = sorted(path for _, path in disks)
        expected = by_path[int(name) // size % len(by_path)]
        rule = f"by the offset (modulo {len(by_path)})"
    elif policy == "round-robin" and before is not None and before["present"]:
        later = [path for number, path in disks if number > before["disk_number"]]
        expected = (later or [path for _, path in disks])[0]
        rule = f"round robin, and the segment before it is on {before['disk']}"
    elif policy == "round-robin":
        return "Nothing can be derived either: the segment before it is not in the log any more."
    else:
        return f"Nothing can be derived from the policy ({describe_policy(policy)})."
    if expected == location["disk"]:
        return f"Derived, not recorded: {rule}, so it belongs on {expected}."
    return (
        f"Derived, not recorded: {rule}, so {expected} was next: either that disk was passed over, or this segment "
        "or the one before it was moved, or the disks of the pool were others then."
    )


def _damage(known: Known, name: str, disk: str) -> list[str]:
    document = known.status or {}
    damaged = [
        f"It is damaged ({one['kind']}) on {one['disk']}: repair it with `commitlogfs restore --from`."
        for one in document["scrub"]["damaged"]
        if one["segment"] == name
    ]
    if disk in document["scrub"].get("unknown", ()):  # a daemon of a former version does not report them
        damaged.append(
            "Whether it is damaged is not known yet: its disk has not answered since the daemon started."
        )
    return damaged + [
        f"{of['path']} has lost writes to it, noticed at {_moment(lost['since'])}."
        for of in document["disks"]
        for lost in of["lost_writes"]
        if lost["segment"] == name
    ]


# --- disks and creates -------------------------------------------------------------------------------------------


def _since(known: Known, disk: dict[str, Any]) -> tuple[float | None, bool]:
    """Since when a disk gets new segments or does not, for the present reason, and whether that is exact; None if
    the journal does not say so."""
    present = disk["refusal"] or ""
    since, is_exact = None, False
    for one in known.decisions:
        if one["kind"] != "disk":
            continue
        if one["facts"].get("reason") != present:
            break
        since, is_exact = one["at"], one["facts"]["former_state"] is not None
    return since, is_exact


def _preview(document: dict[str, Any]) -> list[str]:
    placement, segments = document["placement"], document["segments"]
    last = segments["last_offset"]
    name = "" if last is None else f" of segment {format_segment_name(last + segments['size']).decode()}"
    refused = [disk for disk in document["disks"] if disk["refusal"] is not None]
    if placement["next_disk"] is None:
        lines = [f"The next create{name} would fail: no disk takes a segment."]
    else:
        rule = describe_policy(placement["policy"])
        lines = [f"The next create{name} would go to {placement['next_disk']} ({rule})."]
    if placement["fallback"]:
        lines.append("All disks are above `force`, so those below `full` are used anyway.")
    size = segments["size"]
    lines += [
        f"{disk['path']} gets none: {describe_disk(disk, document)}; to change it: {remedy(disk, size)}."
        for disk in refused
    ]
    return lines


def _space_remedy(disk: dict[str, Any], segment_size: int) -> str:
    """How much has to be freed. Above `resume`, that decides; else a segment does not fit."""
    used, available, limits = disk["used_percent"], disk["available_bytes"], disk["thresholds"]
    if used is None or available is None:
        return f"free space on {disk['path']}"
    entire = available / (1 - used / 100) if used < 100 else disk["total_bytes"]
    missing = entire * (used - limits["resume"]) / 100
    if missing >= 0:
        percent = limits["resume"]
        return f"free {approximate_size(missing)} on {disk['path']}, so that it is below {percent} % (`resume`)"
    missing = max(0, segment_size + limits["min_free_bytes"] - available)
    return f"free {approximate_size(missing)} on {disk['path']}, so that a segment fits"


# --- journal -----------------------------------------------------------------------------------------------------


def _history(known: Known) -> list[str]:
    """The latest entries, oldest first."""
    return [f"{_moment(one['at'])}  {one['text']}" for one in reversed(known.decisions[:_SHOWN])]


def _reach(known: Known) -> str:
    if known.begins_at is None:
        return "there is no journal of decisions"
    return f"the journal begins at {_moment(known.begins_at)}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
