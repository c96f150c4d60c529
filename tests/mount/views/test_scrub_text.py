"""The scrub and the damaged segments as sentences."""

import time
from typing import Any

from commitlogfs.mount.views.scrub_text import (
    describe_damaged,
    describe_disks,
    describe_scrub,
    describe_start,
    describe_summary,
)

SINCE = int(time.mktime((2030, 5, 5, 3, 0, 0, 0, 0, -1)))
GIB = 1 << 30


def a_scrub(**changes: object) -> dict[str, Any]:
    disk = {
        "number": 1,
        "path": "/data1",
        "done_bytes": GIB,
        "left_bytes": 9 * GIB,
        "bytes_per_second": 100 << 20,
        "eta_seconds": 92.0,
        "waits_for": None,
        "ended": False,
        "unread": 0,
    }
    return {
        "state": "running",
        "since": SINCE,
        "rate": None,
        "done_bytes": GIB,
        "left_bytes": 9 * GIB,
        "bytes_per_second": 100 << 20,
        "eta_seconds": 92.0,
        "completed": None,
        "next": None,
        "disks": [disk],
        "damaged": [],
        **changes,
    }


def test_one_that_runs() -> None:
    assert describe_scrub(a_scrub()) == (
        "Scrub: since 2030-05-05 03:00, 1.0 GiB done, 9.0 GiB left, at the default rate, 92 s to go. "
        "No complete scrub yet."
    )
    assert describe_disks(a_scrub()) == ["1  /data1  1.0 GiB done, 9.0 GiB left, 100 MiB/s, 92 s to go"]
    waiting = a_scrub(disks=[{**a_scrub()["disks"][0], "waits_for": "a move"}])
    assert "92 s to go; waits: /data1 (a move)." in describe_scrub(waiting)
    assert describe_disks(waiting) == ["1  /data1  1.0 GiB done, 9.0 GiB left, waits: a move"]


def test_what_happens_next() -> None:
    paused = describe_scrub(a_scrub(state="paused", rate=1 << 20))
    assert "at most 1MiB/s on each disk; paused: `commitlogfs scrub resume` continues it." in paused
    done = describe_scrub(a_scrub(state="done", completed=SINCE + 3600, next=SINCE + 7200))
    assert done == (
        "Scrub: the one of 2030-05-05 03:00 has ended. Last complete one: 2030-05-05 04:00; the next one begins "
        "2030-05-05 05:00 or later."
    )
    cancelled = describe_scrub(a_scrub(state="cancelled"))
    assert cancelled.endswith(
        "was cancelled. No complete scrub yet; `commitlogfs scrub start` begins the next one."
    )


def test_segments_that_were_not_read() -> None:
    disk = {**a_scrub()["disks"][0], "ended": True, "unread": 12}
    scrub = a_scrub(state="done", disks=[disk])
    assert "has ended; not read: 12 segments of /data1 (see the log). No complete" in describe_scrub(scrub)
    assert describe_disks(scrub) == ["1  /data1  1.0 GiB done, ended, 12 segments not read"]
    running = a_scrub(disks=[{**disk, "unread": 1}])
    assert "92 s to go; not read: 1 segment of /data1 (see the log)." in describe_scrub(running)


def test_disks_that_are_not_there() -> None:
    scrub = a_scrub(state="done", unread_disks=["/data3", "/data4"])
    assert describe_scrub(scrub).endswith(
        "has ended; not read: /data3 (not served), /data4 (not served). None is complete without all disks; "
        "`commitlogfs scrub start` begins the next one."
    )


def test_a_verdict_that_is_not_recorded() -> None:
    damaged = {
        "segment": "00000000001073741824",
        "disk": "/data1",
        "kind": "written-broken",
        "since": SINCE,
        "recorded": False,
        "located": False,
        "ranges": [(1073741824, 2147483648)],
        "messages": [],
        "message_count": 0,
    }
    assert describe_damaged(damaged)[1:] == ["    not recorded by its disk: another daemon has to find it again"]
    assert describe_damaged({**damaged, "recorded": True})[1:] == []


def test_nothing_to_say() -> None:
    assert describe_summary({}) == ""  # of a former daemon
    assert describe_summary({"scrub": a_scrub(state="none")}) == ""


def test_disks_that_have_not_answered() -> None:
    said = "Damaged segments: not known yet of /data1, /data2, which still have to answer."
    assert describe_summary({"scrub": a_scrub(state="none", unknown=["/data1", "/data2"])}) == said
    running = describe_summary({"scrub": a_scrub(unknown=["/data1", "/data2"])})
    assert running == f"{describe_scrub(a_scrub())} {said}"


def test_a_start() -> None:
    answer = {"running": False, "changed": True, "rate": None, "segments": 12, "bytes": 12 * GIB}
    assert describe_start(answer, dry_run=False) == "the scrub reads 12 segments (12.0 GiB), at the default rate"
    again = {**answer, "running": True, "was_scheduled": False, "rate": 1 << 20}
    assert describe_start(again, dry_run=True) == "the scrub would read at most 1MiB/s on each disk"
    assert describe_start({**again, "was_scheduled": True}, dry_run=False) == (
        "the scrub now reads at most 1MiB/s on each disk, outside of its window, too: it is one by hand from now on"
    )
    assert describe_start({**again, "changed": False}, dry_run=False) == "the scrub is under way already"


def test_a_damaged_segment() -> None:
    damaged = {
        "segment": "00000000001073741824",
        "disk": "/data1",
        "kind": "rotted",
        "since": SINCE,
        "located": True,
        "ranges": [(1073741924, 1073742024)],
        "messages": [
            {"log_offset": 1073741924, "topic": "Orders", "queue_id": 3, "queue_offset": 4200},
            {"log_offset": 1073742000, "topic": None, "queue_id": 1, "queue_offset": 7},
        ],
        "message_count": 3,
    }
    assert describe_damaged(damaged) == [
        "/data1/00000000001073741824: rotted, found 2030-05-05 03:00; log offsets 1,073,741,924 to 1,073,742,024",
        "    Orders queue 3 offset 4,200, at log offset 1,073,741,924",
        "    unknown topic queue 1 offset 7, at log offset 1,073,742,000",
        "    and 1 more damaged message",
    ]
