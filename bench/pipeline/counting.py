"""Counts the whole log by topic with Spark on a given number of cores: by a query, and by our own job."""

import json
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from commitlogfs.bench.pipeline.errors import WrongResultError
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog
from commitlogfs.pipeline.jobs.stats import stats
from commitlogfs.pipeline.source.session import session

_DEADLINE_S = 900.0


def measure_query(log: SyntheticLog, cores: int, spark_directory: Path, rounds: int) -> list[float]:
    """Messages per second of each round of `groupBy("topic").count()` on the table: all rows go to the JVM. The
    session has been started, and one query has run before. Runs in a separate process, because the options of the
    JVM differ from those for the job. Raises WrongResultError.
    """
    values = (log.directory, spark_directory, log.segment_size, log.messages, log.bytes, cores, rounds)
    command = [sys.executable, "-m", __name__, *map(str, values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise WrongResultError(f"the query failed: {said}")
    rates: list[float] = json.loads(done.stdout)
    return rates


def measure_stats(spark: SparkSession, log: SyntheticLog, rounds: int) -> list[float]:
    """Messages per second of each round of the job `stats`, which counts in the workers, including bytes and
    times."""
    _stats(spark, log)
    return [log.messages / _stats(spark, log) for _ in range(rounds)]


def local_session(cores: int, spark_directory: Path, *, in_workers: bool) -> SparkSession:
    """A session on this machine."""
    settings = {"spark.driver.memory": "1g", "spark.local.dir": str(spark_directory)}
    return session("bench-pipeline", master=f"local[{cores}]", settings=settings, in_workers=in_workers)


def _query_rounds(log: SyntheticLog, cores: int, spark_directory: Path, rounds: int) -> list[float]:
    spark = local_session(cores, spark_directory, in_workers=False)
    try:
        _query(spark, log)
        return [log.messages / _query(spark, log) for _ in range(rounds)]
    finally:
        spark.stop()


def _query(spark: SparkSession, log: SyntheticLog) -> float:
    started = time.perf_counter()
    table = spark.read.format("commitlog").schema("topic string").load(str(log.directory))
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


def _require_counts(counts: dict[str, int], log: SyntheticLog) -> None:
    if counts != log.topics:
        raise WrongResultError(f"counted {counts}, where {log.topics} were written")


def _main(directory: str, spark_directory: str, *numbers: str) -> None:
    segment_size, messages, size, cores, rounds = map(int, numbers)
    log = SyntheticLog(Path(directory), segment_size, messages, size)
    json.dump(_query_rounds(log, cores, Path(spark_directory), rounds), sys.stdout)


if __name__ == "__main__":
    _main(*sys.argv[1:])
