"""The whole log counted by topic through Spark, on as many cores as it is given."""

import time

from pyspark.sql import SparkSession

from commitlogfs.bench.pipeline.errors import WrongResultError
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog


def measure_counting(spark: SparkSession, log: SyntheticLog, rounds: int) -> list[float]:
    """Messages per second of each round; the session has started, and one query has run before."""
    _count(spark, log)
    return [log.messages / _count(spark, log) for _ in range(rounds)]


def _count(spark: SparkSession, log: SyntheticLog) -> float:
    started = time.perf_counter()
    table = spark.read.format("commitlog").schema("topic string").load(str(log.folder))
    rows = table.groupBy("topic").count().collect()
    seconds = time.perf_counter() - started
    if {row["topic"]: row["count"] for row in rows} != log.topics:
        raise WrongResultError(f"counted {rows}, where {log.topics} were written")
    return seconds
