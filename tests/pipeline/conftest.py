"""Spark for all modules here: one local session, since its start costs seconds, and what jobs need of one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from support.in_process_spark import InProcessSpark
from support.spark import local_session

from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.log.unread_end import find_unread

_SETTLED_S = 0.001


@pytest.fixture(scope="session")
def spark(base_directory: Path) -> Iterator[SparkSession]:
    directory = base_directory / "spark"
    directory.mkdir()
    with local_session(directory) as session:
        yield session


@pytest.fixture(params=["in this process", pytest.param("in Spark", marks=pytest.mark.full)])
def job_spark(request: pytest.FixtureRequest) -> SparkSession:
    """For rebuild, audit, export and stats: the full lane runs their tasks in this process and in Spark's workers,
    the gate in this process only. A job has at least one test in the gate that uses `spark`."""
    if request.param == "in Spark":
        session: SparkSession = request.getfixturevalue("spark")
        return session
    return cast("Any", InProcessSpark())


@pytest.fixture
def settled_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For logs to which nobody writes while they are read: readers read the end twice, as always, but wait a
    millisecond in between. This holds for this process, not for Spark's workers."""
    for reader in (find_end, find_unread):
        assert reader.__kwdefaults__ is not None
        monkeypatch.setitem(reader.__kwdefaults__, "settle_s", _SETTLED_S)
