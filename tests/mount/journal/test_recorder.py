"""Recorded decisions in words, and a journal that cannot be written."""

import logging
from pathlib import Path
from typing import Any

import pytest
from support.clocks import SetClock

from commitlogfs.fusefs.kernel.decisions import Placement
from commitlogfs.mount.journal import recorder
from commitlogfs.mount.journal.entries import Kind
from commitlogfs.mount.journal.recorder import Journal
from commitlogfs.mount.journal.selection import Selection, answer, select
from commitlogfs.store.clock import SYSTEM_CLOCK
from commitlogfs.store.placement.standing import Standing
from commitlogfs.store.timing import DEFAULT

REPEAT_S = DEFAULT.daemon.journal_repeat_s
NAME = b"00000000000001048576"
WELL = Standing("/data1", "", 40.0, None, 10**9)
FULL = Standing("/data2", "above-force", 86.1, 85, 10**8)
SLOW = Standing("/data3", "slow", 20.0, None, 10**9)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def journal(tmp_path: Path, clock: SetClock) -> Journal:
    journal = Journal(clock, REPEAT_S)
    journal.open(tmp_path / "a.journal", "pool")
    return journal


def recorded(journal: Journal, **selection: Any) -> list[dict[str, Any]]:
    return select(journal.read(), Selection(**selection), 100)


def test_a_placement_says_why_disks_were_passed_over(journal: Journal) -> None:
    standings = (WELL, FULL, SLOW)
    journal.placed(Placement(NAME, "/data1", "round-robin", "/data3", False, standings, ("/data4: I/O error",)))
    (found,) = recorded(journal)
    assert found["text"] == (
        "00000000000001048576: placed on /data1, round robin, the segment before is on /data3; passed over: /data2 "
        "(above its limit for new segments: 86.1 % used, limit 85 %), /data3 (slow); "
        "refused before: /data4: I/O error"
    )
    assert found["facts"]["used_percent"] == 40.0
    assert found["facts"]["passed_over"][0] == {
        "disk": "/data2",
        "reason": "above-force",
        "used_percent": 86.1,
        "threshold": 85,
        "free_bytes": 10**8,
        "detail": "",
    }


def test_equal_refusals_are_counted(journal: Journal, clock: SetClock) -> None:
    for _ in range(5):
        journal.refused(NAME, "no disk", (FULL,))
    assert len(recorded(journal)) == 1
    clock.ahead_s = REPEAT_S
    journal.refused(NAME, "no disk", (FULL,))
    newest, first = recorded(journal)
    assert newest["text"].endswith("(and 4 times before that, since the entry before)")
    assert "repeats" not in first["facts"]
    journal.refused(NAME, "no disk", (SLOW,))
    assert "repeats" not in recorded(journal)[0]["facts"]


def test_a_disk_is_recorded_when_its_standing_changes(journal: Journal, tmp_path: Path) -> None:
    for standing in (WELL, WELL, Standing("/data1", "no-room", 60.0, None, 5 << 20), WELL):
        journal.disk_seen("rw", standing)
    assert [entry["text"] for entry in recorded(journal, disk="/data1")] == [
        "/data1: taken for new segments; before: full",
        "/data1: gets no new segments, full: 5 MiB free, less than a segment needs; before: taken for new segments",
        "/data1: taken for new segments when this journal began",
    ]
    journal.close()
    successor = Journal(SYSTEM_CLOCK, REPEAT_S)
    successor.open(tmp_path / "a.journal", "pool")
    successor.disk_seen("rw", WELL)
    assert len(recorded(successor)) == 3
    successor.disk_seen("failed", Standing("/data1", "in-backoff", None, None, None, "/data1: I/O error"))
    assert recorded(successor)[0]["text"] == (
        "/data1: failed, gets no new segments (failed a moment ago: /data1: I/O error); "
        "before: taken for new segments"
    )


def test_entries_are_selected(journal: Journal) -> None:
    journal.begun(Kind.MOUNTED, 7, 1 << 20)
    journal.removed(NAME, "/data1", "force", "/data1 is 86 % full")
    journal.copied("moved", b"00000000000002097152", "/data1", "/data2")
    journal.copied("restored", NAME, "", "/data2")
    journal.copy_failed(NAME, "/data1", "/data2", "unreadable")
    journal.given_up(NAME, "/data1", "its filesystem is read-only")
    journal.removal_failed(NAME, "/data1", "I/O error")
    assert [entry["kind"] for entry in recorded(journal, segment=NAME.decode())] == [
        *("removal-failed", "given-up", "copy-failed", "restored", "removed")
    ]
    assert [entry["kind"] for entry in recorded(journal, disk="/data1", kind=Kind.MOVED)] == ["moved"]
    assert [entry["kind"] for entry in select(journal.read(), Selection(), 2)] == ["removal-failed", "given-up"]
    assert answer(journal.read(), Selection(), 1)["begins_at"] == recorded(journal)[-1]["at"]
    assert recorded(journal, kind=Kind.REMOVED)[0]["text"] == (
        "00000000000001048576: removed by the rule `force`, from /data1: /data1 is 86 % full"
    )


def test_facts_that_are_too_long_are_left_out(journal: Journal) -> None:
    many = tuple(
        Standing(f"/disks/{'x' * 200}{number}", "cordoned", 1.0, None, 1, "y" * 900) for number in range(64)
    )
    journal.refused(NAME, "none", many)
    (found,) = recorded(journal)
    assert found["facts"] == {"left_out": True}
    assert NAME.decode() in found["text"]


def test_an_unusable_journal_is_one_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(SYSTEM_CLOCK, REPEAT_S)
    with caplog.at_level(logging.WARNING):
        journal.open(tmp_path / "absent" / "a.journal", "pool")
        journal.removed(NAME, "/data1", "unlink", None)
        journal.removed(NAME, "/data1", "unlink", None)
    assert [record.message for record in caplog.records] == ["journal_unusable"]
    assert journal.read() == b""
    assert answer(journal.read(), Selection(), 1) == {"begins_at": None, "decisions": []}


def test_a_failing_write_ends_the_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(SYSTEM_CLOCK, REPEAT_S)
    with Path("/dev/full").open("wb") as full:
        journal._file = recorder.JournalFile(tmp_path / "a.journal", full.fileno(), 0)
        with caplog.at_level(logging.WARNING):
            journal.removed(NAME, "/data1", "unlink", None)
            journal.removed(NAME, "/data1", "unlink", None)
        with pytest.raises(OSError, match="Bad file descriptor"):
            full.close()
    assert [record.message for record in caplog.records] == ["journal_unusable"]
