from typing import Any

import pytest

from commitlogfs.mount.views.rebalance_text import describe_plan, describe_rebalance, describe_start, describe_work

MIB = 1 << 20


def disk(number: int, used: float | None, goal: float | None, change: int = 0, **more: Any) -> dict[str, Any]:
    shown = {"number": number, "path": f"/data{number}", "used_percent": used, "goal_percent": goal}
    return {**shown, "change": change, "held_segments": 0, "left_out": None, **more}


def plan(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "mode": "copy",
        "rate": None,
        "spread_points": 40.0,
        "goal_points": 2.0,
        "end_points": 1.5,
        "balanced": False,
        "disks": [disk(1, 60.0, 40.5, -20, held_segments=2), disk(2, 20.0, 39.0, 20)],
        "moves": [{"from": "/data1", "to": "/data2", "segments": 20, "bytes": 20 * MIB}],
        "segments": 20,
        "bytes": 20 * MIB,
        "segment_size": MIB,
        "eta_seconds": 120.0,
        "waits_for_drains": [],
    }
    return {**known, **changes}


def test_a_plan_shows_each_disk_and_each_way():
    assert describe_plan(plan()) == [
        "Spread 40.0 points (/data1 60.0 %, /data2 20.0 %), goal 2.0.",
        "1  /data1  60.0 % -> 40.5 %  gives 20 segments  (without 2 moved segments that the broker still has open)",
        "2  /data2  20.0 % -> 39.0 %  takes 20 segments",
        "/data1 -> /data2: 20 segments (20.0 MiB)",
        "To move: 20 segments (20.0 MiB); about 2 min.",
    ]


def test_remarks_follow_where_there_is_reason():
    disks = [disk(1, 60.0, 60.0), disk(2, None, None, left_out="cordoned")]
    lines = describe_plan(plan(disks=disks, goal_points=5.0, end_points=9.0, waits_for_drains=["/data7"]))
    assert lines[0].endswith("goal 5.0 (one segment is so large a part of the smallest disk).")
    assert "2  /data2  left out: cordoned" in lines
    assert "The goal cannot be reached: 9.0 points would remain." in lines
    assert lines[-1] == "Drains come first: /data7."


def test_data_of_others_are_named_if_they_prevent_the_goal():
    disks = [disk(1, 97.4, 97.4, other_bytes=400 << 30), disk(2, 10.0, 85.0, other_bytes=0)]
    lines = describe_plan(plan(mode="placement", disks=disks, moves=[], end_points=12.4, eta_seconds=None))
    assert (
        "The goal cannot be reached: 12.4 points would remain; /data1 holds 400 GiB that are no segments." in lines
    )
    assert (
        "By placement, nothing is copied: the emptier disks are at `force` when the broker has written 20 segments "
        "(20.0 MiB)."
    ) in lines


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"balanced": True}, "The disks are equally full: nothing to do."),
        (
            {"eta_seconds": None},
            "To move: 20 segments (20.0 MiB); the time is known after the first moves.",
        ),
        (
            {"mode": "placement"},
            "By placement, nothing is copied: done when the broker has written 20 segments (20.0 MiB); "
            "about 2 min.",
        ),
    ],
)
def test_the_work_in_one_sentence(changes, expected):
    assert describe_work(plan(**changes)) == expected


@pytest.mark.parametrize(
    ("changes", "dry_run", "expected"),
    [
        ({}, False, "rebalance by copying started: 20 segments (20.0 MiB) to move; about 2 min"),
        ({}, True, "would start a rebalance by copying: 20 segments (20.0 MiB) to move; about 2 min"),
        (
            {"mode": "placement", "eta_seconds": None},
            False,
            "rebalance by placement started: nothing is copied; done when the broker has written 20 segments "
            "(20.0 MiB); the time is known once the log grows",
        ),
        ({"balanced": True}, False, "The disks are equally full: nothing to do."),
    ],
)
def test_a_start(changes, dry_run, expected):
    assert describe_start(plan(**changes), dry_run=dry_run) == expected


def test_a_running_one():
    running = {
        "mode": "placement",
        "spread_points": 7.25,
        "goal_points": 2.0,
        "segments_left": 1200,
        "bytes_left": 1200 * MIB,
        "eta_seconds": None,
        "waits_for": ["/data3"],
    }
    assert describe_rebalance(running) == (
        "Rebalance by placement: spread 7.2 points, goal 2.0; 1,200 new segments (1.2 GiB); does not end before "
        "these disks are well or out of use: /data3."
    )
    done = {**running, "mode": "copy", "segments_left": 0, "waits_for": []}
    assert describe_rebalance(done) == "Rebalance by copying: spread 7.2 points, goal 2.0."
