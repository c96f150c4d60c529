"""Spark for all modules here: one local session, since its start costs seconds, and what jobs need of one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from support.in_process_spark import InProcessSpark
from support.spark import local_session


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
