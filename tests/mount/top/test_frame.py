"""Frames of figures made by hand."""

from typing import Any

import pytest

from commitlogfs.mount.top.devices import DeviceFigures
from commitlogfs.mount.top.directories import Directory
from commitlogfs.mount.top.figures import DiskFigures, Figures
from commitlogfs.mount.top.frame import View, compose
from commitlogfs.store.files.usage import DiskUsage

LIMITS = {"clean": 75, "force": 85, "full": 90, "resume": 83, "min_free_bytes": 0}
NOW_S = 1_700_000_000.0
WORK = DeviceFigures("sda1", 123e6, 45e6, 0.0123, 0.123, 1.0, 33.0)


def an_alert(disk: int, urgency: str = "now") -> dict[str, Any]:
    return {
        "code": "disk-failed",
        "disk": f"/data{disk}/commitlog",
        "text": "no segment can be made on this disk",
        "remedy": "repair the disk, or replace it",
        "urgency": urgency,
        "runbook": "disk-dead",
    }


def a_disk(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "number": number,
        "path": f"/data{number}/commitlog",
        "state": "rw",
        "refusal": None,
        "cordon": None,
        "last_error": "",
        "used_percent": 71.4,
        "available_bytes": 5 << 40,
        "segments": 5000,
        "thresholds": LIMITS,
        "next_threshold": "clean",
        "eta_seconds": 32400.0,
        "drain": None,
        "held_segments": 0,
        **changes,
    }


def a_document(disks: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    last = 59_999 << 30
    return {
        "composed_at": NOW_S - 0.4,
        "mountpoint": "/var/rocketmq/store/commitlog",
        "degraded": False,
        "segments": {
            "count": 60_000, "unsized": 0, "first_offset": 0, "last_offset": last, "size": 1 << 30, "gaps": []
        },
        "ingest_bytes_per_second": 31e6,
        "placement": {"fallback": False, "next_disk": disks[2]["path"]},
        "statfs": {"used_percent": 71, "trigger": "all"},
        "thresholds": LIMITS,
        "retention": {"alerts": []},
        "alerts": [],
        "moves": {"current": None, "bytes_per_second": 0},
        "rebalance": None,
        "disks": disks,
        **changes,
    }  # fmt: skip


def some_figures(
    count: int = 12, trouble: str = "", decisions: int = 0, first: str = "/data1/commitlog", **changes: Any
) -> Figures:
    disks = [a_disk(number) for number in range(1, count + 1)]
    disks[0]["path"] = first
    document = a_document(disks, **changes)
    decided = {"at": NOW_S, "kind": "placed", "text": "00000000000000000000 was placed on /data1/commitlog"}
    return Figures(
        NOW_S,
        "broker",
        document["mountpoint"],
        document,
        trouble,
        tuple(DiskFigures(disk["path"], disk["number"], "sda1", WORK, disk) for disk in document["disks"]),
        (decided,) * decisions,
    )


def lines_of(figures: Figures, width: int = 80, height: int | None = 24, **options: Any) -> list[str]:
    return [line.text for line in compose(figures, View(width, height, 2.0, **options)).lines]


def rows_of(lines: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines if " 71% " in line]


@pytest.mark.parametrize("alerts", [0, 1, 5])
@pytest.mark.parametrize("trouble", ["", "broker: no daemon is running; start it with `commitlogfs mount`"])
def test_no_frame_is_larger_than_the_terminal(alerts: int, trouble: str) -> None:
    figures = some_figures(trouble=trouble, decisions=20, alerts=[an_alert(n) for n in range(1, alerts + 1)])
    for width in (1, 20, 40, 79, 80, 81, 100, 132, 160, 200, 250):
        for height in (1, 2, 5, 8, 12, 24, 60):
            frame = compose(figures, View(width, height, 2.0))
            assert len(frame.lines) == height
            assert all(line.width <= width for line in frame.lines)
            assert "q quit" in frame.lines[-1].text or width < 10 or height < 9


def test_twelve_disks_with_an_alert_fit_on_a_small_terminal() -> None:
    lines = lines_of(some_figures(alerts=[an_alert(2)]))
    assert rows_of(lines) == list(range(1, 13))
    shown = " ".join(" ".join(lines).split())
    assert "ALERT disk-failed: /data2/commitlog: no segment can be made" in shown
    assert "-> repair the disk, or replace it" in shown
    assert "Next segment: disk 3. Figures less than 1 s old." in shown
    assert "clean 9h" in shown
    assert "117M" in " ".join(lines)


def test_alerts_without_room_are_counted() -> None:
    lines = lines_of(some_figures(alerts=[an_alert(number) for number in range(1, 8)]))
    shown = "\n".join(lines)
    assert shown.count("ALERT") == 3
    assert "4 more alerts: `commitlogfs status` shows them" in shown
    everything = "\n".join(lines_of(some_figures(alerts=[an_alert(n) for n in range(1, 8)]), height=60))
    assert everything.count("ALERT") == 7


def test_urgent_alerts_differ_in_more_than_colour() -> None:
    shown = "\n".join(lines_of(some_figures(alerts=[an_alert(1), an_alert(2, "tomorrow")]), width=200, height=60))
    assert "ALERT disk-failed: /data1" in shown
    assert "alert disk-failed: /data2" in shown


def test_disks_that_do_not_fit_are_scrolled() -> None:
    figures = some_figures()
    lines = lines_of(figures, height=12, first=3)
    assert rows_of(lines)[0] == 4
    assert f"disks 4-{rows_of(lines)[-1]} of 12" in lines[-1]
    assert rows_of(lines_of(figures, height=12, first=99))[-1] == 12


def test_jobs_are_shown_below_the_disks() -> None:
    move = {
        "segment": "00000000001073741824", "from": "/data1/commitlog", "to": "/data2/commitlog",
        "phase": "copying", "done_bytes": 3 << 28, "size": 1 << 30,
    }  # fmt: skip
    lines = lines_of(some_figures(4, moves={"current": move, "bytes_per_second": 20 << 20}), width=160)
    assert (
        "Move of 00000000001073741824 from /data1/commitlog to /data2/commitlog: copying 75 %, 20.0 MiB/s." in lines
    )
    assert "move from 75%" in next(line for line in lines if line.startswith("1 "))


def test_decisions_fill_the_room_that_is_left() -> None:
    assert not any("was placed on" in line for line in lines_of(some_figures(decisions=20), height=18))
    lines = lines_of(some_figures(decisions=20), height=60)
    assert sum("was placed on" in line for line in lines) == 20


def test_a_daemon_that_is_away_is_named() -> None:
    known = a_disk(1)
    usage = DiskUsage(100, 20, 20)
    answering = Directory("/data1/commitlog", segments=7, usage=usage)
    disks = (
        DiskFigures("/data1/commitlog", 1, "sda1", WORK, known, answering),
        DiskFigures("/data2/commitlog", 2, "sdb1", WORK, a_disk(2), Directory("/data2/commitlog"), is_silent=True),
    )
    lines = lines_of(Figures(NOW_S, "broker", None, None, "broker: no daemon is running", disks))
    assert "DAEMON AWAY: broker: no daemon is running" in lines
    rows = [line.split() for line in lines if line[:2] in ("1 ", "2 ")]
    assert rows[0][4:7] == ["80%", "force", "7"]
    assert rows[1][:4] == ["2", "data2", "no", "answer"]
    assert "?" in rows[1]


def test_a_directory_that_cannot_be_read_is_named() -> None:
    absent = Directory("/data2/commitlog", error="No such file or directory")
    disks = (DiskFigures("/data2/commitlog", 2, "", None, a_disk(2), absent),)
    lines = lines_of(Figures(NOW_S, "broker", None, None, "broker: no daemon is running", disks))
    assert "Disk 2 (/data2/commitlog): No such file or directory." in lines
    assert any(" error " in line for line in lines)


@pytest.mark.parametrize("state", ["unresponsive", "unreadable", "cordoned"])
def test_a_disk_in_trouble_keeps_its_row_complete(state: str) -> None:
    figures = some_figures()
    figures.disks[5].status["state"] = state
    (row,) = [line for line in lines_of(figures) if state in line]
    assert row.split()[:3] == ["6", "data6", state]
    assert row.split()[-2:] == ["100%", "33"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    figures = some_figures(first="/data\x1b[2J\n1", alerts=[{**an_alert(1), "text": "\x1b]0;title\x07 \r\n"}])
    for line in compose(figures, View(120, 30, 2.0)).lines:
        assert line.text.isprintable()
        assert "\x1b" not in line.ansi(styled=False)


def test_plain_text_has_no_escapes_and_ascii_no_blocks() -> None:
    frame = compose(some_figures(), View(120, 30, 2.0, is_unicode=False))
    shown = [line.ansi(styled=False) for line in frame.lines]
    assert all(line.isascii() and "\x1b" not in line for line in shown)
    assert any("######|||  71% " in line for line in shown)
    assert any("\x1b[" in line.ansi(styled=True) for line in frame.lines)


def test_help_names_every_key() -> None:
    shown = "\n".join(lines_of(some_figures(), shows_help=True))
    assert "~" not in shown
    for key in ("q ", "p ", "s ", "j k, arrows", "? "):
        assert f"\n{key}" in shown
