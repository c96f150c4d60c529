"""The alerts of a status document, each with its remedy: the part `alerts` of it. Pure.

The daemon's own alerts come from its rules (store/retention/alerts.py); the others follow from the document.
docs/troubleshooting.md has a row for each of the former.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from commitlogfs.store.retention import AlertCode


class Urgency(Enum):
    NOW = "now"
    """Wake somebody: the log cannot be written, read or cleaned."""
    TOMORROW = "tomorrow"
    """In working hours."""


class DerivedCode(Enum):
    """Alerts that follow from the document."""

    DEGRADED = "degraded"
    LOG_GAP = "log-gap"
    DAMAGED_SEGMENT = "damaged-segment"
    NO_DISK_FOR_NEXT = "no-disk-for-the-next"
    MEMBERS_LAGGING = "members-lagging"
    STATE_LOST = "state-lost"
    NO_TAKEOVER = "no-takeover"


@dataclass(frozen=True, slots=True)
class Advice:
    urgency: Urgency
    remedy: str
    runbook: str
    """Name of a file in docs/runbooks/, without its suffix."""


_SEE_DMESG: Final = Advice(Urgency.NOW, "see `dmesg`; repair or detach the disk", "disk-does-not-answer")

ADVICE: Final[dict[AlertCode | DerivedCode, Advice]] = {
    AlertCode.FOREIGN_DATA: Advice(
        Urgency.TOMORROW, "free space on that disk; it is skipped meanwhile", "disk-full"
    ),
    AlertCode.DISK_TOO_SMALL: Advice(
        Urgency.TOMORROW, "use a larger disk, or make the pool anew with a smaller segment_size", "disk-full"
    ),
    AlertCode.ALL_FULL: Advice(Urgency.NOW, "look for the other alerts; add a disk or free space", "disk-full"),
    AlertCode.NO_WRITABLE_DISK: Advice(
        Urgency.NOW, "repair one of the disks, or remove `readonly` from the configuration", "disk-read-only"
    ),
    AlertCode.DISK_FAILED: Advice(Urgency.NOW, "repair the disk, or replace it", "disk-dead"),
    AlertCode.WRITEBACK_LOST: Advice(
        Urgency.NOW, "have the broker's slave, or a copy, at hand; repair the segments", "lost-writes"
    ),
    AlertCode.DISK_UNREADABLE: _SEE_DMESG,
    AlertCode.DISK_UNRESPONSIVE: _SEE_DMESG,
    AlertCode.DISK_VANISHED: Advice(Urgency.NOW, "mount the disk there again", "disk-back"),
    AlertCode.DISK_SLOW: Advice(Urgency.TOMORROW, "find out why its device is slow, or drain it", "disk-slow"),
    AlertCode.HELD_OPEN: Advice(
        Urgency.TOMORROW, "end the reader (`fuser -m MOUNTPOINT`), or restart the broker", "segments-stay"
    ),
    AlertCode.NOT_RECLAIMING: Advice(Urgency.TOMORROW, "find what keeps the space", "segments-stay"),
    AlertCode.STUCK: Advice(Urgency.NOW, "remove what keeps the segment", "segments-stay"),
    AlertCode.CLOCK_JUMPED: Advice(
        Urgency.TOMORROW, "set the clock right; if the new time is right, `commitlogfs restart`", "clock"
    ),
    AlertCode.AGE_UNKNOWN: Advice(
        Urgency.TOMORROW, "give the oldest segment its right time of change (`touch -d`)", "clock"
    ),
    DerivedCode.DEGRADED: Advice(Urgency.NOW, "bring the disks back, or give them up", "disk-back"),
    DerivedCode.LOG_GAP: Advice(
        Urgency.NOW, "bring back the disk or the files; `commitlogfs check` names the segments", "log-gap"
    ),
    DerivedCode.DAMAGED_SEGMENT: Advice(
        Urgency.TOMORROW, "repair it with `commitlogfs restore --from`", "damaged-segment"
    ),
    DerivedCode.NO_DISK_FOR_NEXT: Advice(Urgency.NOW, "free space, or repair or add a disk", "creates-fail"),
    DerivedCode.MEMBERS_LAGGING: Advice(
        Urgency.TOMORROW, "bring the disk back, or free some space on it", "members-lagging"
    ),
    DerivedCode.STATE_LOST: Advice(Urgency.TOMORROW, "restart the broker when convenient", "daemon"),
    DerivedCode.NO_TAKEOVER: Advice(Urgency.TOMORROW, "stop the broker, unmount and mount", "daemon"),
}


def find_alerts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The alerts of a status document, the urgent ones first: `code`, `disk` (null if all are meant), `text`,
    `urgency`, `remedy`, `runbook`."""
    own = document["retention"]["alerts"]
    alerts = [_described(AlertCode(alert["code"]), alert["disk"], alert["text"]) for alert in own]
    alerts += [_described(*found) for found in _derived(document)]
    return sorted(alerts, key=lambda alert: alert["urgency"] != Urgency.NOW.value)


def is_urgent(code: str) -> bool:
    """Whether one of the daemon's own alerts should wake somebody. Raises ValueError for an unknown code."""
    return ADVICE[AlertCode(code)].urgency is Urgency.NOW


def _described(code: AlertCode | DerivedCode, disk: str | None, text: str) -> dict[str, Any]:
    advice = ADVICE[code]
    return {
        "code": code.value,
        "disk": disk,
        "text": text,
        "urgency": advice.urgency.value,
        "remedy": advice.remedy,
        "runbook": advice.runbook,
    }


def _derived(document: dict[str, Any]) -> Iterator[tuple[DerivedCode, str | None, str]]:
    for path in document["missing_disks"]:
        yield DerivedCode.DEGRADED, path, "the mount is served without this disk and its segments"
    gaps = len(document["segments"]["gaps"]) - document["segments"]["accepted_gaps"]
    if gaps > 0:
        yield DerivedCode.LOG_GAP, None, f"the log has gaps ({gaps:,}), which consumers skip silently"
    damaged: dict[str, int] = {}
    for found in document["scrub"]["damaged"]:
        damaged[found["disk"]] = damaged.get(found["disk"], 0) + 1
    for path, count in damaged.items():
        yield DerivedCode.DAMAGED_SEGMENT, path, f"damaged segments ({count:,}) on this disk"
    own = {alert["code"] for alert in document["retention"]["alerts"]}
    if document["placement"]["next_disk"] is None and not own & _WITHOUT_PLACE:
        yield DerivedCode.NO_DISK_FOR_NEXT, None, "no disk takes the next segment, so its create will fail"
    for path in document["members"]["lagging"]:
        yield DerivedCode.MEMBERS_LAGGING, path, "the disk does not record the present list of members"
    daemon = document["daemon"]
    if daemon["state_lost"]:
        text = "a takeover lost the list of open files: fsync and fstat of files opened before it give ESTALE"
        yield DerivedCode.STATE_LOST, None, text
    if not daemon["takeover_available"]:
        reason = daemon["takeover_unavailable_reason"]
        yield DerivedCode.NO_TAKEOVER, None, f"the mount ends if its daemon does: {reason}"


_WITHOUT_PLACE: Final = frozenset({AlertCode.ALL_FULL.value, AlertCode.NO_WRITABLE_DISK.value})
"""Alerts that say why no disk takes the next segment."""
