"""One local Spark session for all modules here: its start costs seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.spark import local_session


@pytest.fixture(scope="session")
def spark(base_folder: Path) -> Iterator[SparkSession]:
    folder = base_folder / "spark"
    folder.mkdir()
    with local_session(folder) as session:
        yield session
