"""One local Spark session for all modules here: its start costs seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.spark import local_session


@pytest.fixture(scope="session")
def spark(base_directory: Path) -> Iterator[SparkSession]:
    directory = base_directory / "spark"
    directory.mkdir()
    with local_session(directory) as session:
        yield session
