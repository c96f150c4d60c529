"""A local Spark session for tests, whose JVM and workers are gone when it is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from support.waiting import PATIENCE_S

from commitlogfs.pipeline.source.session import session

MASTER = "local[2]"


@contextmanager
def local_session(
    directory: Path, *, master: str = MASTER, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """One for this process, small, with everything it writes below `directory`."""
    small = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory} -XX:-UsePerfData",
    }
    spark = session("tests", master=master, settings={**small, **(settings or {})})
    try:
        yield spark
    finally:
        spark.stop()
        _end_jvm()


def _end_jvm() -> None:
    """PySpark leaves the JVM to the end of the process, to which it listens on its standard input."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    jvm = gateway.proc
    jvm.stdin.close()
    jvm.wait(PATIENCE_S)
    SparkContext._gateway = None
    SparkContext._jvm = None
