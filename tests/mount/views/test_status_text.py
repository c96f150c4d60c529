"""Sentences of `status`, from documents made by hand."""

import time
from typing import Any

import pytest

from commitlogfs.console.formatting import local_minute
from commitlogfs.mount.views.status_text import (
    describe_checksums,
    describe_degraded,
    describe_disk,
    describe_drain,
    describe_log,
    describe_pressure,
    describe_removed_lately,
    describe_store_root,
    shortened,
)

LIMITS = {"clean": 75, "force": 85, "full": 90, "resume": 83, "min_free_bytes": 0}


def a_disk(**changes: object) -> dict[str, Any]:
    return {
        "path": "/data1",
        "state": "rw",
        "refusal": None,
        "cordon": None,
        "last_error": "",
        "thresholds": LIMITS,
        "next_threshold": "clean",
        "eta_seconds": 32400.0,
        **changes,
    }


def a_drain(**changes: object) -> dict[str, Any]:
    return {
        "mode": "copy",
        "segments_left": 0,
        "segments_kept": 0,
        "unreadable_segments": 0,
        "no_room": False,
        "eta_seconds": None,
        **changes,
    }


def a_log(**changes: object) -> dict[str, Any]:
    empty = {"count": 0, "unsized": 0, "first_offset": 0, "last_offset": None, "size": 1 << 30, "gaps": []}
    return {**empty, **changes}


def a_document(**changes: object) -> dict[str, Any]:
    return {
        "segments": a_log(count=12, last_offset=11 << 30),
        "ingest_bytes_per_second": 31e6,
        "placement": {"fallback": False, "next_disk": "/data2"},
        "statfs": {"used_percent": 50, "trigger": "all"},
        "thresholds": LIMITS,
        "store_root": {"path": "/store", "used_percent": 40.0},
        "missing_disks": ["/data3", "/data4"],
        **changes,
    }


def a_checksums(**changes: object) -> dict[str, Any]:
    known = {"with": 57, "without": 0, "unread": 0, "computing": 0, "mismatches": []}
    return a_document(checksums={**known, **changes})


def test_checksums():
    assert describe_checksums(a_document()) == ""  # of a former daemon
    assert describe_checksums(a_checksums()) == ""
    lacking = "57 sealed segments with a checksum, 1,203 still without."
    assert describe_checksums(a_checksums(without=1200, unread=3, computing=2)) == lacking


def test_log():
    assert describe_log(a_document()) == (
        "12 segments of 1GiB, log offsets 0 to 12,884,901,888, growing by 29.6 MiB/s."
    )
    assert describe_log(a_document(ingest_bytes_per_second=0.0)).endswith("12,884,901,888.")
    idle = a_document(ingest_bytes_per_second=0.0, idle_since=1_700_000_000.5)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_700_000_000))
    assert describe_log(idle).endswith(f"12,884,901,888, idle since {when}.")
    empty = a_document(segments=a_log(first_offset=None, size=4096))
    assert describe_log(empty) == "The log is empty; segments of 4KiB will be made when the broker starts."
    made_ahead = a_log(count=1, unsized=1, last_offset=0)
    assert describe_log(a_document(segments=made_ahead, ingest_bytes_per_second=0.0)) == (
        "1 segment of 1GiB, log offsets 0 to 1,073,741,824, and 1 segment without a size yet."
    )
    gap = {**a_document()["segments"], "gaps": [[1 << 30, 2 << 30]]}
    assert "WITH 1 GAP: consumers skip over a gap silently" in describe_log(a_document(segments=gap))
    accepted = describe_log(a_document(segments={**gap, "accepted_gaps": 1}))
    assert "with 1 gap of disks that were given up" in accepted
    assert "WITH" not in accepted


def test_degraded():
    assert describe_degraded(a_document()) == "DEGRADED: served without /data3, /data4."


def test_a_long_list_of_findings_is_cut_for_each_code():
    gaps = [{"code": "accepted-loss", "file": str(number)} for number in range(400)]
    other = {"code": "directory-open-to-others", "file": ""}
    shown = list(shortened([*gaps[:399], other, gaps[399]]))
    assert shown == [*((gap, 0) for gap in gaps[:4]), (gaps[4], 395), (other, 0)]
    assert list(shortened(gaps[:5])) == [(gap, 0) for gap in gaps[:5]]


def test_a_disk_that_is_too_small_is_not_called_full():
    document = a_document(alerts=[{"code": "disk-too-small", "disk": "/data1"}])
    disk = a_disk(path="/data1", refusal="no-room")
    assert describe_disk(disk, document) == "too small for a segment: takes none"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "reaches clean (75 %) in about 9 h"),
        ({"eta_seconds": None}, "below clean (75 %)"),
        ({"path": "/data2"}, "takes the next segment, reaches clean (75 %) in about 9 h"),
        ({"next_threshold": None}, ""),
        ({"refusal": "above-force"}, "skipped for new segments until below 83 %"),
        ({"refusal": "no-room"}, "full: no new segments until space is free"),
        ({"refusal": "in-backoff", "last_error": "EIO"}, "in backoff for a moment: EIO"),
        ({"refusal": "not-writable"}, "read-only: its segments are served, new ones are made on other disks"),
        ({"refusal": "unknown-usage"}, "does not answer: gets no new segments until it does"),
        (
            {"refusal": "unknown-usage", "state": "unresponsive", "last_error": "no answer"},
            "does not answer: gets no new segments until it does; no answer",
        ),
        (
            {"refusal": "unknown-usage", "state": "unreadable", "last_error": "EIO"},
            "cannot be read: gets no new segments until two checks can read again; EIO",
        ),
        (
            {
                "refusal": "unknown-usage",
                "state": "unresponsive",
                "last_error": "no answer",
                "cordon": {"since": 0, "reason": ""},
            },
            f"cordoned since {time.strftime('%Y-%m-%d %H:%M', time.localtime(0))}; unresponsive: no answer",
        ),
        (
            {"state": "joining", "refusal": "not-writable"},
            "joins the pool: gets segments as soon as the disks have recorded it",
        ),
        (
            {"state": "leaving", "refusal": "cordoned"},
            "leaves the pool: repeat `disk remove`, or `disk uncordon` it",
        ),
        (
            {"state": "cordoned", "refusal": "cordoned", "cordon": {"since": 0, "reason": "noisy"}},
            f"cordoned since {time.strftime('%Y-%m-%d %H:%M', time.localtime(0))} (noisy): "
            "its segments are served, new ones are made on other disks",
        ),
        (
            {
                "state": "failed",
                "refusal": "cordoned",
                "cordon": {"since": 0, "reason": "noisy"},
                "last_error": "Input/output error",
            },
            f"cordoned since {time.strftime('%Y-%m-%d %H:%M', time.localtime(0))} (noisy); "
            "failed: Input/output error",
        ),
        (
            {
                "state": "offline",
                "refusal": "cordoned",
                "cordon": {"since": 0, "reason": ""},
            },
            f"cordoned since {time.strftime('%Y-%m-%d %H:%M', time.localtime(0))}; offline",
        ),
        (
            {
                "state": "failed",
                "refusal": "cordoned",
                "drain": a_drain(segments_left=5, segments_kept=1),
                "held_segments": 0,
                "last_error": "Input/output error",
            },
            "draining: 5 segments left, 1 of them among the newest of the log; failed: Input/output error",
        ),
    ],
)
def test_disk(changes, text):
    assert describe_disk(a_disk(**changes), a_document()) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (
            1,
            "1 segment left: the broker may still write to it; it is moved when the broker has made newer segments",
        ),
        (
            3,
            "3 segments left: the broker may still write to them; they are moved when the broker has made newer "
            "segments",
        ),
    ],
)
def test_a_drain_that_waits_for_the_broker(count, text):
    drain = a_drain(segments_left=count, segments_kept=count, eta_seconds=0.0)
    assert describe_drain({"drain": drain, "held_segments": 0}) == f"draining: {text}"


def test_a_drain_that_saves_all_names_no_way_that_it_goes_already():
    """As of a damaged segment whose file is too short, which no drain moves."""
    reason = {"disk": "/data1", "segment": "0" * 20, "reason": "has 1 bytes instead of 2"}
    drain = a_drain(segments_left=1, segments_kept=0, rotten_segments=1, waits_for=reason, eta_seconds=None)
    said = describe_drain({"drain": drain, "held_segments": 0})
    assert said == "draining: 1 segment left, of which 1 differs from its checksum; `disk drain --failing` moves it"
    said = describe_drain({"drain": {**drain, "mode": "failing"}, "held_segments": 0})
    assert said == f"draining: 1 segment left; waits for /data1 ({'0' * 20}: has 1 bytes instead of 2)"


def test_a_disk_in_fall_back():
    document = a_document(placement={"fallback": True, "next_disk": None})
    said = describe_disk(a_disk(next_threshold="full", eta_seconds=60.0), document)
    assert said == "above its limit like all others, so used anyway, reaches full (90 %) in about 60 s"


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (75, "nothing for lack of space before 75 %"),
        (76, "deletes expired segments at once"),
        (86, "deletes its oldest segments, whatever their age"),
        (91, "refuses messages and deletes its oldest segments"),
    ],
)
def test_pressure(used, said):
    text = describe_pressure(a_document(statfs={"used_percent": used, "trigger": "all"}))
    assert said in text
    assert "least full" in text
    assert "fullest" in describe_pressure(a_document(statfs={"used_percent": used, "trigger": "any"}))


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (None, "does not answer"),
        (75.0, "fine up to 75 %"),
        (75.1, "above 75 % the broker deletes expired segments"),
        (85.5, "above 85 % the broker deletes its oldest segments for it"),
    ],
)
def test_store_root(used, said):
    text = describe_store_root(a_document(store_root={"path": "/store", "used_percent": used}))
    assert text.startswith("The store root /store")
    assert said in text


def a_removal(at: float, reason: str = "unlink", why: str | None = None) -> dict[str, Any]:
    return {"at": at, "kind": "removed", "facts": {"reason": reason, "why": why}}


def test_what_the_broker_has_removed_lately():
    now = 1_700_000_000.0
    latest = a_removal(now - 60, why="statfs shows 86 % used")
    removals = [latest, *(a_removal(now - 60 - second) for second in range(1, 22)), a_removal(now - 3700)]
    said = describe_removed_lately(removals, now)
    assert said.startswith(
        "Removed through the mount in the last hour, as by the broker: 22 segments within 21 s, "
    )
    assert said.endswith(f"the latest at {local_minute(now - 60)} (statfs shows 86 % used).")
    assert "1 segment, the latest" in describe_removed_lately([latest], now)
    assert describe_removed_lately([a_removal(now, "force"), a_removal(now - 3700)], now) == ""


def test_slow_disks():
    times = {"operation": "write", "seconds": 0.0843, "peers_seconds": 0.0019, "usual_seconds": None, "since": 1}
    skipped = a_disk(state="slow", refusal="slow", slowness={**times, "probe_in_seconds": 480})
    assert describe_disk(skipped, a_document()) == (
        "slow: 84.3 ms for a write, peers 1.9 ms; gets no new segments, next probe in 8 min"
    )
    alone = {**times, "peers_seconds": None, "usual_seconds": 0.004, "probe_in_seconds": None}
    noted = describe_disk(a_disk(slowness=alone), a_document())
    assert noted.endswith(
        ", slow: 84.3 ms for a write, usually 4.0 ms; only noted: too few peers, or too many slow disks"
    )
    assert "slow" not in describe_disk(a_disk(slowness=None), a_document())
