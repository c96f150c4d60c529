"""An entry of the journal as one line in words. Pure."""

from collections.abc import Callable
from typing import Any, Final

from commitlogfs.mount.journal.entries import Entry, Kind

_REASONS: Final = {
    "above-force": "above its limit for new segments",
    "no-room": "full",
    "slow": "slow",
    "in-backoff": "failed a moment ago",
    "not-writable": "not writable",
    "cordoned": "closed for new segments",
    "unknown-usage": "does not answer",
}
_POLICIES: Final = {
    "round-robin": "round robin",
    "modulo": "by the offset (modulo)",
    "weighted": "by weight",
    "emptier-first": "emptier disks first, for a rebalance",
}
_REMOVALS: Final = {
    "unlink": "removed by a caller of the mount (unlink), such as the broker",
    "force": "removed by the rule `force`",
    "full": "removed by the rule `full`",
    "age": "removed by the rule `age`",
    "left-over": "removed as a left-over",
}


def describe(entry: Entry) -> str:
    """The decision and its reason, without the time."""
    if entry.facts.get("left_out"):
        what = entry.segment or entry.disk or ""
        return f"{entry.kind.value}: {what} (the facts were too long for the journal)"
    return _TEXTS[entry.kind](entry)


def describe_policy(policy: str) -> str:
    return _POLICIES.get(policy, policy)


def describe_removal(reason: str) -> str:
    return _REMOVALS.get(reason, f"removed by the rule `{reason}`")


def describe_standing(standing: dict[str, Any]) -> str:
    """A disk that was passed over: "/data2 (above its limit for new segments: 86.1 % used, limit 85 %)"."""
    return f"{standing['disk']} ({describe_refusal(standing)})"


def describe_refusal(standing: dict[str, Any]) -> str:
    """Why a disk got no segment, with its figures at that moment."""
    reason = _REASONS.get(standing["reason"], standing["reason"])
    figures = []
    if standing["threshold"] is not None:
        figures.append(f"{standing['used_percent']:g} % used, limit {standing['threshold']} %")
    elif standing["reason"] == "no-room" and standing["free_bytes"] is not None:
        figures.append(f"{standing['free_bytes'] / (1 << 20):,.0f} MiB free, less than a segment needs")
    if standing["detail"]:
        figures.append(standing["detail"])
    return f"{reason}: {'; '.join(figures)}" if figures else reason


def repeated(facts: dict[str, Any]) -> str:
    times = facts.get("repeats", 0)
    return f" (and {times:,} times before that, since the entry before)" if times else ""


def _placed(entry: Entry) -> str:
    facts = entry.facts
    text = f"{entry.segment}: placed on {entry.disk}, {describe_policy(facts['policy'])}"
    if facts["after"]:
        text += f", the segment before is on {facts['after']}"
    if facts["fallback"]:
        text += "; all disks were above their limit for new segments, so those below `full` were used anyway"
    if facts["passed_over"]:
        text += f"; passed over: {', '.join(map(describe_standing, facts['passed_over']))}"
    if facts["failures"]:
        text += f"; refused before: {', '.join(facts['failures'])}"
    return text


def _refused(entry: Entry) -> str:
    standings = entry.facts["passed_over"]
    disks = ", ".join(map(describe_standing, standings)) or entry.facts["why"]
    return f"{entry.segment}: no disk took it: {disks}{repeated(entry.facts)}"


def _removed(entry: Entry) -> str:
    why = f": {entry.facts['why']}" if entry.facts["why"] else ""
    return f"{entry.segment}: {describe_removal(entry.facts['reason'])}, from {entry.disk}{why}"


def _removal_failed(entry: Entry) -> str:
    return f"{entry.segment}: could not be removed from {entry.disk}: {entry.facts['why']}{repeated(entry.facts)}"


def _copied(entry: Entry) -> str:
    source = entry.facts["source"] or "outside the pool"
    return f"{entry.segment}: {entry.kind.value} from {source} to {entry.disk}"


def _copy_failed(entry: Entry) -> str:
    way = f"from {entry.facts['source'] or 'outside the pool'} to {entry.disk}"
    return f"{entry.segment}: its copy {way} failed: {entry.facts['why']}{repeated(entry.facts)}"


def _given_up(entry: Entry) -> str:
    return f"{entry.segment}: given up on {entry.disk}, to be made on another disk: {entry.facts['why']}"


def _disk(entry: Entry) -> str:
    facts = entry.facts
    now = describe_state(facts["state"], facts["reason"], facts, entry.disk or "")
    if facts["former_state"] is None:
        return f"{entry.disk}: {now} when this journal began"
    former = _REASONS.get(facts["former_reason"], facts["former_reason"]) or "taken for new segments"
    before = former if facts["former_state"] == "rw" else facts["former_state"]
    return f"{entry.disk}: {now}; before: {before}"


def describe_state(state: str, reason: str, facts: dict[str, Any], disk: str) -> str:
    """The state of a disk and whether it gets new segments."""
    if not reason:
        return "taken for new segments" if state == "rw" else state
    standing = {"disk": disk, **{key: facts[key] for key in ("used_percent", "threshold", "free_bytes", "detail")}}
    text = describe_refusal({**standing, "reason": reason})
    return f"gets no new segments, {text}" if state == "rw" else f"{state}, gets no new segments ({text})"


_TEXTS: Final[dict[Kind, Callable[[Entry], str]]] = {
    Kind.PLACED: _placed,
    Kind.REFUSED: _refused,
    Kind.REMOVED: _removed,
    Kind.REMOVAL_FAILED: _removal_failed,
    Kind.MOVED: _copied,
    Kind.RESTORED: _copied,
    Kind.REPAIRED: _copied,
    Kind.COPY_FAILED: _copy_failed,
    Kind.GIVEN_UP: _given_up,
    Kind.DISK: _disk,
    Kind.MOUNTED: lambda entry: f"mounted by daemon {entry.facts['pid']}",
    Kind.TAKEOVER: lambda entry: f"the mount was taken over by daemon {entry.facts['pid']}",
}
