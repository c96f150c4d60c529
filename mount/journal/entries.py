"""The entries of the journal, and their compact text in its slots. Pure."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from commitlogfs.mount.journal.ring import MAX_PAYLOAD_BYTES, Record
from commitlogfs.store.placement.standing import Standing

_PASSED_OVER: Final = "passed_over"
_LONGEST_TEXT: Final = 300
"""Characters of an error or a reason; more would take the slots of other entries."""


class Kind(Enum):
    PLACED = "placed"
    REFUSED = "refused"
    REMOVED = "removed"
    REMOVAL_FAILED = "removal-failed"
    MOVED = "moved"
    RESTORED = "restored"
    REPAIRED = "repaired"
    COPY_FAILED = "copy-failed"
    """A move, restore or repair has failed."""
    GIVEN_UP = "given-up"
    DISK = "disk"
    """The state of a disk has changed, or whether it gets new segments."""
    MOUNTED = "mounted"
    TAKEOVER = "takeover"


@dataclass(frozen=True, slots=True)
class Entry:
    sequence: int
    at: float
    """Seconds since 1970."""
    kind: Kind
    segment: str | None
    disk: str | None
    """Path of the disk."""
    facts: dict[str, Any]
    """By kind; docs/reference/status.md lists them."""


def encode(entry: Entry) -> bytes:
    """The payload of an entry, without its sequence number. The facts of one that is too large are left out."""
    facts = {key: _compact(key, value) for key, value in entry.facts.items()}
    fields = [round(entry.at, 3), entry.kind.value, entry.segment, entry.disk]
    payload = json.dumps([*fields, facts], separators=(",", ":")).encode()
    if len(payload) > MAX_PAYLOAD_BYTES:
        payload = json.dumps([*fields, {"left_out": True}], separators=(",", ":")).encode()
    return payload


def decode(record: Record) -> Entry | None:
    """None for an entry of a kind that this version does not know."""
    try:
        at, kind, segment, disk, facts = json.loads(record.payload)
        expanded = {key: _expanded(key, value) for key, value in facts.items()}
        return Entry(record.sequence, float(at), Kind(kind), segment, disk, expanded)
    except (ValueError, TypeError, AttributeError):
        return None


def facts_of(standing: Standing) -> dict[str, Any]:
    """A disk that was passed over, and why."""
    return {
        "disk": standing.disk,
        "reason": standing.reason,
        "used_percent": standing.used_percent,
        "threshold": standing.threshold,
        "free_bytes": standing.available_bytes,
        "detail": standing.detail[:_LONGEST_TEXT],
    }


def shortened(text: str) -> str:
    return text[:_LONGEST_TEXT]


def _compact(key: str, value: Any) -> Any:
    """The disks as lists without keys: most entries then fit into one slot."""
    return [list(one.values()) for one in value] if key == _PASSED_OVER else value


def _expanded(key: str, value: Any) -> Any:
    if key != _PASSED_OVER:
        return value
    return [dict(zip(_STANDING_KEYS, one, strict=True)) for one in value]


_STANDING_KEYS: Final = tuple(facts_of(Standing("", "", None, None, None)))
