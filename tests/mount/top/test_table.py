"""Cells and columns of the table of disks."""

from typing import Any

import pytest

from commitlogfs.mount.top.devices import DeviceFigures
from commitlogfs.mount.top.figures import DiskFigures
from commitlogfs.mount.top.table import (
    bytes_per_second,
    operation_time,
    outlook,
    short_duration,
    short_names,
    sort_disks,
    work_of,
)

LIMITS = {"clean": 75, "force": 85, "full": 90}


def a_disk(number: int = 1, work: DeviceFigures | None = None, **status: Any) -> DiskFigures:
    known = {"state": "rw", "thresholds": LIMITS, "used_percent": 50.0, **status}
    return DiskFigures(f"/data{number}/log", number, "vda", work, known)


def busy(ratio: float) -> DeviceFigures:
    return DeviceFigures("vda", 0.0, ratio, None, None, ratio, 0.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1023, "1.0K"),
        (10_000, "9.8K"),
        (12_288, "12K"),
        (1_023_000, "999K"),
        (31e6, "30M"),
        (5e9, "4.7G"),
        (2e15, "1819T"),
    ],
)
def test_a_rate_in_few_characters(value: float | None, text: str) -> None:
    assert bytes_per_second(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0ms"),
        (85e-6, "85us"),
        (0.0012, "1.2ms"),
        (0.32, "320ms"),
        (2.5, "2.5s"),
        (123.0, "123s"),
        (1e9, "9999s"),
    ],
)
def test_a_time_in_few_characters(seconds: float | None, text: str) -> None:
    assert operation_time(seconds) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"), [(20, "20s"), (5400, "90m"), (32400, "9h"), (3e5, "3d"), (1e8, "3y"), (1e12, ">99y")]
)
def test_a_duration_in_few_characters(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/data1/commitlog", "/data2/commitlog"], ["data1", "data2"]),
        (["/mnt/a/x", "/mnt/b/y"], ["a/x", "b/y"]),
        (["/mnt/a", "/mnt/a/b"], ["a", "a/b"]),
        (["/d/log"], ["/d/log"]),
        ([], []),
    ],
)
def test_names_without_what_all_paths_have(paths: list[str], names: list[str]) -> None:
    assert list(short_names(paths).values()) == names


def test_the_next_threshold_and_its_time() -> None:
    assert outlook(a_disk(next_threshold="clean", eta_seconds=32400.0)) == "clean 9h"
    assert outlook(a_disk(used_percent=76.0, next_threshold="force", eta_seconds=None)) == "force"


def test_a_skipped_disk_and_a_full_one() -> None:
    assert outlook(a_disk(used_percent=86.0, next_threshold="full", refusal="above-force")) == "skipped"
    assert outlook(a_disk(used_percent=91.0, next_threshold=None, refusal="no-room")) == "FULL"


def test_orders_put_the_greatest_first() -> None:
    disks = [
        a_disk(1, busy(0.1), used_percent=10.0, eta_seconds=50.0),
        a_disk(2, busy(0.9), used_percent=20.0, eta_seconds=None),
        a_disk(3, None, used_percent=None, eta_seconds=10.0),
    ]

    def numbers(order: str) -> list[int]:
        return [disk.number for disk in sort_disks(disks, order)]

    assert numbers("number") == [1, 2, 3]
    assert numbers("used") == [2, 1, 3]
    assert numbers("utilisation") == [2, 1, 3]
    assert numbers("written") == [2, 1, 3]
    assert numbers("next threshold") == [3, 1, 2]


def test_the_jobs_of_a_disk() -> None:
    scrubbed = {"path": "/data1/log", "done_bytes": 30, "left_bytes": 70, "ended": False}
    document = {
        "moves": {"current": {"from": "/data1/log", "to": "/data2/log", "done_bytes": 1, "size": 2}},
        "scrub": {"state": "running", "disks": [scrubbed]},
    }
    assert (
        work_of(a_disk(1, drain={"segments_left": 1200}), document) == "move from 50%, drain 1,200 left, scrub 30%"
    )
    assert work_of(a_disk(2), document) == "move to 50%"
    assert work_of(a_disk(3), document) == ""
