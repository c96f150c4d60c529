"""Explanations in words, for states that are hard to construct on a mount."""

import time
from typing import Any

import pytest

from commitlogfs.mount.views.explain_text import (
    Known,
    explain_absent_disk,
    explain_create,
    explain_disk,
    explain_mount,
    explain_segment,
    remedy,
)

MIB = 1 << 20
GIB = 1 << 30
AT = 1_800_000_000.0
LIMITS = {"clean": 75, "force": 85, "full": 90, "resume": 83, "min_free_bytes": 0}


def disk(number: int, **changes: Any) -> dict[str, Any]:
    well = {
        "number": number,
        "path": f"/data{number}",
        "state": "rw",
        "refusal": None,
        "total_bytes": 100 * GIB,
        "available_bytes": 50 * GIB,
        "used_percent": 50.0,
        "segments": 7,
        "thresholds": LIMITS,
        "next_threshold": None,
        "eta_seconds": None,
        "last_error": "",
        "slowness": None,
        "lost_writes": [],
        "drain": None,
        "held_segments": 0,
        "cordon": None,
    }
    return well | changes


def status(*disks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    well = {
        "segments": {"first_offset": 0, "last_offset": 9 * MIB, "size": MIB, "gaps": [], "count": 10},
        "placement": {"policy": "round-robin", "fallback": False, "next_disk": "/data1"},
        "disks": list(disks) or [disk(1), disk(2), disk(3)],
        "scrub": {"damaged": []},
        "missing_disks": [],
        "offline_disks": [],
        "members": {"given_up": []},
    }
    return well | changes


def located(number: int, base: int, **changes: Any) -> dict[str, Any]:
    found = {
        "offset": base,
        "present": True,
        "segment": f"{base:020d}",
        "position": 0,
        "disk": f"/data{number}",
        "disk_number": number,
        "state": "sealed",
        "reason": "",
    }
    return found | changes


def entry(kind: str, disk: str | None, text: str = "", **facts: Any) -> dict[str, Any]:
    return {"at": AT, "kind": kind, "segment": None, "disk": disk, "text": text or kind, "facts": facts}


def segment_text(known: Known, location: dict[str, Any] | None, before: dict[str, Any] | None = None) -> str:
    found = explain_segment(known, 4 * MIB, MIB, location, before)
    return "\n".join(found.lines)


@pytest.mark.parametrize(
    ("policy", "at", "before", "expected"),
    [
        ("round-robin", 2, located(1, 3 * MIB), "the segment before it is on /data1, so it belongs on /data2."),
        ("round-robin", 1, located(3, 3 * MIB), "the segment before it is on /data3, so it belongs on /data1."),
        ("round-robin", 3, located(1, 3 * MIB), "so /data2 was next: either that disk was passed over"),
        ("round-robin", 2, located(0, 0, present=False), "Nothing can be derived either"),
        ("round-robin", 2, None, "Nothing can be derived either"),
        ("modulo", 2, None, "by the offset (modulo 3), so it belongs on /data2."),
        ("weighted", 2, located(1, 3 * MIB), "Nothing can be derived from the policy (by weight)."),
    ],
)
def test_a_placement_that_is_not_recorded_is_derived(
    policy: str, at: int, before: dict[str, Any] | None, expected: str
) -> None:
    document = status(placement={"policy": policy, "fallback": False, "next_disk": "/data1"})
    found = explain_segment(Known(document, [], AT), 4 * MIB, MIB, located(at, 4 * MIB), before)
    assert not found.is_recorded
    assert expected in "\n".join(found.lines)
    assert "Why it is there is not recorded: the journal begins at" in "\n".join(found.lines)


def test_a_segment_that_was_moved_before_the_journal_began() -> None:
    known = Known(status(), [entry("placed", "/data1")], AT)
    found = explain_segment(known, 4 * MIB, MIB, located(2, 4 * MIB), located(1, 3 * MIB))
    assert not found.is_recorded, "it was placed on another disk than it is on"
    known = Known(status(), [entry("moved", "/data2", source="/data1")], AT)
    found = explain_segment(known, 4 * MIB, MIB, located(2, 4 * MIB), None)
    assert found.is_recorded
    assert "Where it was made before is not recorded" in "\n".join(found.lines)


def test_a_damaged_segment() -> None:
    name = f"{4 * MIB:020d}"
    damaged = {"segment": name, "kind": "rotted", "disk": "/data2"}
    lost = {"segment": name, "since": AT}
    document = status(disk(2, lost_writes=[lost]), scrub={"damaged": [damaged]})
    text = segment_text(Known(document, [entry("placed", "/data2")], AT), located(2, 4 * MIB))
    assert "It is damaged (rotted) on /data2: repair it with `commitlogfs restore --from`." in text
    assert "/data2 has lost writes to it, noticed at" in text


def test_damage_that_is_not_known_yet() -> None:
    document = status(disk(2), scrub={"damaged": [], "unknown": ["/data2"]})
    known = Known(document, [entry("placed", "/data2")], AT)
    said = "Whether it is damaged is not known yet: its disk has not answered"
    assert said in segment_text(known, located(2, 4 * MIB))
    assert said not in segment_text(known, located(1, 4 * MIB))


def test_a_gap_of_a_disk_that_was_given_up() -> None:
    document = status(
        segments={"first_offset": 0, "last_offset": 9 * MIB, "size": MIB, "gaps": [[4 * MIB, 5 * MIB]]},
        members={"given_up": [{"number": 3, "path": "/data3", "since": AT}]},
    )
    absent = located(0, 4 * MIB, present=False, reason="in a gap of the log: see `commitlogfs check`")
    text = segment_text(Known(document, [], AT), absent)
    assert "is not in the log: in a gap of the log" in text
    assert "/data3 was given up at" in text


def test_nothing_is_known() -> None:
    known = Known(None, [], None)
    assert "there is no journal of decisions; and no daemon answers" in segment_text(known, None)
    assert explain_absent_disk(known, "/data1") is None
    assert "not known" in explain_create(known).lines[-1]
    assert explain_mount(known).lines == ["There is no journal of decisions."]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"refusal": "above-force", "used_percent": 90.0, "available_bytes": 10 * GIB},
            "free 7.0 GiB on /data1, so",
        ),
        ({"refusal": "no-room", "available_bytes": 1 * MIB // 4}, "free 768 KiB on /data1, so that a segment fits"),
        ({"refusal": "no-room", "used_percent": None, "available_bytes": None}, "free space on /data1"),
        ({"refusal": "cordoned", "state": "cordoned"}, "`commitlogfs disk uncordon 1`"),
        ({"refusal": "cordoned", "state": "draining"}, "`commitlogfs disk cancel 1`"),
        ({"refusal": "cordoned", "state": "offline"}, "`commitlogfs disk online 1`"),
        ({"refusal": "not-writable", "state": "ro"}, "make /data1 writable"),
        ({"refusal": "not-writable", "state": "vanished"}, "mount the disk there again"),
        ({"refusal": "slow", "state": "slow"}, "it is probed regularly"),
        ({"refusal": "in-backoff", "state": "failed"}, "repair the disk"),
        ({"refusal": "unknown-usage", "state": "rw"}, "see `dmesg`"),
    ],
)
def test_the_remedy_fits_the_refusal(changes: dict[str, Any], expected: str) -> None:
    assert expected in remedy(disk(1, **changes), MIB)


def test_a_slow_disk() -> None:
    slowness = {
        **{"operation": "write", "seconds": 0.2, "peers_seconds": 0.002, "usual_seconds": None},
        **{"since": AT, "probe_in_seconds": 60},
    }
    slow = disk(2, state="slow", refusal="slow", slowness=slowness)
    former = {"former_state": "rw", "former_reason": ""}
    known = Known(status(disk(1), slow), [entry("disk", "/data2", state="slow", reason="slow", **former)], AT)
    text = "\n".join(explain_disk(known, slow).lines)
    assert "/data2 is slow" in text
    assert "200.0 ms for a write, peers 2.0 ms" in text
    assert "It gets no new segments (slow) since" in text
    assert "To change it: it is probed regularly" in text


def test_since_when_is_the_first_entry_with_the_present_reason() -> None:
    def seen(at: float, reason: str, former: str | None) -> dict[str, Any]:
        facts = {"state": "rw", "reason": reason, "former_state": former, "former_reason": ""}
        return {**entry("disk", "/data1"), "at": at, "facts": facts}

    entries = [seen(AT + 3, "no-room", "failed"), seen(AT + 2, "no-room", "rw"), seen(AT + 1, "", "rw")]
    full = disk(1, refusal="no-room")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(AT + 2))
    lines = explain_disk(Known(status(full), entries, AT), full).lines
    assert lines[2] == f"It gets no new segments (no-room) since {since}."
    found = explain_disk(Known(status(full), [], AT), full)
    assert not found.is_recorded
    assert "since when is not recorded" in found.lines[2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"missing_disks": ["/data9"]}, "/data9 is a member of the pool, and is missing"),
        ({"offline_disks": [{"number": 9, "path": "/data9", "since": AT}]}, "`disk online 9` ends that"),
        ({"members": {"given_up": [{"path": "/data9", "since": AT}]}}, "its segments are lost"),
    ],
)
def test_a_disk_that_is_not_served(changes: dict[str, Any], expected: str) -> None:
    found = explain_absent_disk(Known(status(**changes), [], AT), "/data9")
    assert found is not None
    assert expected in "\n".join(found.lines)
    assert explain_absent_disk(Known(status(**changes), [], AT), "/data8") is None
