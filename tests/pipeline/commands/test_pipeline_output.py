"""Arguments that the verbs pass to their jobs, and their output, without Spark."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.messages import messages
from support.written_logs import write_log

from commitlogfs.console.errors import UsageError
from commitlogfs.pipeline import cli
from commitlogfs.pipeline.commands import common
from commitlogfs.pipeline.jobs import audit as audit_job
from commitlogfs.pipeline.jobs import stats as stats_job
from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.jobs.findings import Kind
from commitlogfs.pipeline.jobs.stats import Group, GroupedStats, LogStats, TopicStats
from commitlogfs.pipeline.source.group_keys import parse_keys
from commitlogfs.pipeline.source.tally import Figures
from commitlogfs.store.printable import printable


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def none(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(common, "spark_for_jobs", none)
    monkeypatch.setattr(common, "run_job", lambda _, work: work())


@pytest.mark.parametrize(
    ("topics", "known"), [({"A": {}, "B": {}}, frozenset({"A", "B"})), ({}, frozenset()), (None, None)]
)
def test_an_audit_knows_the_topics_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: dict[str, object] | None, known: frozenset[str] | None
) -> None:
    write_log(tmp_path / "commitlog", 1 << 16, messages(3))
    if topics is not None:
        (tmp_path / "config").mkdir()
        (tmp_path / "config/topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    given: dict[str, Any] = {}

    def run(_: None, log: str, **options: Any) -> AuditReport:
        given.update(options)
        return AuditReport(log, options["store_root"], 0, 0, 1)

    monkeypatch.setattr(audit_job, "audit", run)
    assert cli.main(["audit", "--store-root", str(tmp_path)]) == 0
    assert given["known_topics"] == known


# --- names from the log ----------------------------------------------------------------------------------

NAMES = [
    "x[/y]",
    "a[red]b",
    ":smile:",
    "\x1b]0;owned\x07\x1b[2J",
    "two\nlines",
    "turned\u202eround",
    "half\udc80",
    "主题",
]


def test_what_steers_a_terminal_is_written_out() -> None:
    assert [printable(name) for name in NAMES] == [
        *("x[/y]", "a[red]b", ":smile:"),
        *(r"\x1b]0;owned\x07\x1b[2J", r"two\nlines", r"turned\u202eround", r"half\udc80", "主题"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    write_log(tmp_path / "log", 1 << 16, messages(3))
    of_topic = TopicStats(1, 1, 1, 1, 1, 0, 0)
    place: dict[str, Any] = {"log": "log", "segments": 1, "start_offset": 0, "end_offset": 1}
    place |= {"damages": (), "missing": ()}
    found = LogStats(**place, total=of_topic, topics={name: of_topic})
    monkeypatch.setattr(stats_job, "stats", lambda *_, **__: found)
    assert cli.main(["stats", str(tmp_path / "log")]) == 0
    assert capfd.readouterr().out.splitlines()[1].startswith(f"{printable(name)} ")
    groups = (Group((None, 0), Figures(1, 1, 1, 1, 0, 0)), Group((name, 0), Figures(1, 1, 1, 1, 0, 0)))
    by_keys = GroupedStats(**place, keys=parse_keys("tags,hour(storeTimestamp)"), groups=groups)
    monkeypatch.setattr(stats_job, "grouped_stats", lambda *_, **__: by_keys)
    assert cli.main(["stats", str(tmp_path / "log"), "--by", "tags,hour(storeTimestamp)"]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[1].split()[:3] == ["-", "1970-01-01", "00:00:00"]
    assert shown[2].startswith(f"{printable(name)} ")
    assert cli.main(["stats", str(tmp_path / "log"), "--by", "tag"]) == 2
    assert "did you mean tags?" in capfd.readouterr().err
    report = AuditReport(str(tmp_path / "log"), None, 0, 0, 1, notes=[f"note of {name}"])
    report.findings.add(Kind.QUEUE_MISSING, -1, f"{name}/0", f"{name} is missing")
    monkeypatch.setattr(audit_job, "audit", lambda *_, **__: report)
    assert cli.main(["audit", str(tmp_path / "log")]) == 1
    shown = capfd.readouterr().out.splitlines()
    assert shown[1:3] == [
        f"note: note of {printable(name)}",
        f"queue-missing: {printable(name)}/0: {printable(name)} is missing",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_errors_and_warnings_show_names_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    def fail(*_: object) -> None:
        common.complain(f"topic {name}")
        raise UsageError(f"no {name}")

    monkeypatch.setattr(common, "list_log", fail)
    assert cli.main(["stats", "log"]) == 2
    assert capfd.readouterr().err == f"topic {printable(name)}\ncommitlogfs-pipeline: no {printable(name)}\n"
