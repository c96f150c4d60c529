"""Counts the whole log by topic with Spark on a given number of cores: in the JVM, and in the workers."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrameReader, SparkSession

from commitlogfs.bench.pipeline.errors import WrongResultError
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog
from commitlogfs.pipeline.jobs.stats import stats
from commitlogfs.pipeline.source.session import session

_DEADLINE_S = 900.0


class QueryRates(NamedTuple):
    """Messages per second of each round of `groupBy("topic").count()` on the table: all rows go to the JVM."""

    narrow: list[float]
    """With a schema of this one column."""
    wide: list[float]
    """With all columns, of which the query needs one."""


class WorkerRates(NamedTuple):
    """Messages per second of each round; the workers count, including bytes and times."""

    job: list[float]
    """`stats`."""
    aggregate: list[float]
    """A query with the option `aggregate`."""


def measure_query(log: SyntheticLog, cores: int, spark_directory: Path, rounds: int) -> QueryRates:
    """The session has been started, and one query has run before. Runs in a separate process, because the options
    of the JVM differ from those for the job. Raises WrongResultError.
    """
    values = (log.directory, spark_directory, log.segment_size, log.messages, log.bytes, cores, rounds)
    command = [sys.executable, "-m", __name__, *map(str, values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise WrongResultError(f"the query failed: {said}")
    return QueryRates(*json.loads(done.stdout))


def measure_workers(spark: SparkSession, log: SyntheticLog, rounds: int) -> WorkerRates:
    """Both in turn, after a round that does not count. Raises WrongResultError."""
    return WorkerRates(*_in_turn(spark, log, rounds, (_stats, _aggregate)))


def _in_turn(
    spark: SparkSession,
    log: SyntheticLog,
    rounds: int,
    ways: Sequence[Callable[[SparkSession, SyntheticLog], float]],
) -> list[list[float]]:
    """Messages per second of each way, which gives the seconds that it has taken."""
    for way in ways:
        way(spark, log)
    rates: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, found in zip(ways, rates, strict=True):
            found.append(log.messages / way(spark, log))
    return rates


def local_session(cores: int, spark_directory: Path, *, in_workers: bool) -> SparkSession:
    """A session on this machine."""
    settings = {"spark.driver.memory": "1g", "spark.local.dir": str(spark_directory)}
    return session("bench-pipeline", master=f"local[{cores}]", settings=settings, in_workers=in_workers)


def _query_rounds(log: SyntheticLog, cores: int, spark_directory: Path, rounds: int) -> list[list[float]]:
    spark = local_session(cores, spark_directory, in_workers=False)
    try:
        return _in_turn(spark, log, rounds, (_narrow_query, _wide_query))
    finally:
        spark.stop()


def _narrow_query(spark: SparkSession, log: SyntheticLog) -> float:
    return _query(spark.read.format("commitlog").schema("topic string"), log)


def _wide_query(spark: SparkSession, log: SyntheticLog) -> float:
    return _query(spark.read.format("commitlog"), log)


def _query(read: DataFrameReader, log: SyntheticLog) -> float:
    started = time.perf_counter()
    table = read.load(str(log.directory))
    rows = table.groupBy("topic").count().collect()
    seconds = time.perf_counter() - started
    _require_counts({row["topic"]: row["count"] for row in rows}, log)
    return seconds


def _stats(spark: SparkSession, log: SyntheticLog) -> float:
    started = time.perf_counter()
    found = stats(spark, str(log.directory))
    seconds = time.perf_counter() - started
    _require_counts({name: topic.messages for name, topic in found.topics.items()}, log)
    return seconds


def _aggregate(spark: SparkSession, log: SyntheticLog) -> float:
    started = time.perf_counter()
    table = spark.read.format("commitlog").option("aggregate", "topic").load(str(log.directory))
    sums = {"messages": "sum", "bytes": "sum", "first": "min", "last": "max"}
    rows = table.groupBy("topic").agg(sums).collect()
    seconds = time.perf_counter() - started
    _require_counts({row["topic"]: row["sum(messages)"] for row in rows}, log)
    return seconds


def _require_counts(counts: dict[str, int], log: SyntheticLog) -> None:
    if counts != log.topics:
        raise WrongResultError(f"counted {counts}, where {log.topics} were written")


def _main(directory: str, spark_directory: str, *numbers: str) -> None:
    segment_size, messages, size, cores, rounds = map(int, numbers)
    log = SyntheticLog(Path(directory), segment_size, messages, size)
    json.dump(_query_rounds(log, cores, Path(spark_directory), rounds), sys.stdout)


if __name__ == "__main__":
    _main(*sys.argv[1:])
