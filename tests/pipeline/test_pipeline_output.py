"""What the verbs hand to their jobs and print of the results, without Spark."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.messages import messages
from support.written_logs import write_log

from commitlogfs.pipeline import cli
from commitlogfs.pipeline.commands import common
from commitlogfs.pipeline.jobs import audit as audit_job
from commitlogfs.pipeline.jobs.audit import AuditReport


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def none(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(common, "spark_session", none)
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
