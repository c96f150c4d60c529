"""Spark drivers of their own, so that a test can have several, on a cluster, and kill them.

    python -m support.spark_driver count MASTER LOG [KEY=VALUE ...]   prints one line of JSON
    python -m support.spark_driver stream LOG DIR [KEY=VALUE ...]     into DIR/table, until killed
    python -m support.spark_driver drain LOG DIR [KEY=VALUE ...]      the same up to the log's present end

KEY=VALUE is an option of the source, or a setting of Spark where it begins with "spark.". `count` with marks=DIR
leaves a file there for each partition, and takes its time.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SLOW_S = 0.1
BUSY_S = 600.0
"""A driver that has not ended by then hangs: where others keep the machine busy, its start alone takes minutes."""


def start(*arguments: object) -> subprocess.Popen[str]:
    """A driver in the background."""
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "support.spark_driver", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": tests},
        start_new_session=True,
    )


class DriverEndedError(Exception):
    """A driver that was to be at work has ended."""


def require_running(driver: subprocess.Popen[str]) -> None:
    if driver.poll() is not None:
        raise DriverEndedError(f"with {driver.returncode}: {driver.communicate()[1][-6000:]}")


def finish(driver: subprocess.Popen[str], timeout_s: float = BUSY_S) -> str:
    """Its output, once it has ended well; it is killed if that takes too long."""
    try:
        out, err = driver.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill(driver)
        raise
    assert driver.returncode == 0, err[-6000:]
    return out


def kill(driver: subprocess.Popen[str]) -> None:
    """With its JVM, at once; harmless after its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()


def run(*arguments: object, timeout_s: float = BUSY_S) -> str:
    return finish(start(*arguments), timeout_s)


def _session(master: str, settings: dict[str, str], directory: Path | None = None) -> Any:
    from commitlogfs.pipeline.source.session import session

    small = {"spark.driver.memory": "768m", "spark.sql.shuffle.partitions": "2"}
    if directory is not None:
        small["spark.local.dir"] = str(directory / "local")
    return session("driver", master=master, settings=small | settings)


def _count(master: str, log: str, options: dict[str, str], settings: dict[str, str]) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    marks = options.pop("marks", None)
    spark = _session(master, settings)
    schema = "topic string, queueId int, queueOffset long, body binary"
    rows = spark.read.format("commitlog").schema(schema).options(**options).load(log)
    if marks is not None:

        def take_time(rows: Iterator[Any]) -> Iterator[Any]:
            yield from rows
            time.sleep(SLOW_S)
            (Path(marks) / f"{os.getpid()}.{time.monotonic_ns()}").touch()

        rows = spark.createDataFrame(rows.rdd.mapPartitions(take_time), rows.schema)
    sums = rows.groupBy("topic", "queueId").agg(
        F.count("*").alias("count"), F.sum("queueOffset").alias("offsets"), F.sum(F.length("body")).alias("bytes")
    )
    print(json.dumps(sorted([list(row) for row in sums.collect()])))
    spark.stop()


def _stream(log: str, directory: Path, options: dict[str, str], settings: dict[str, str], *, drain: bool) -> None:
    spark = _session("local[2]", settings, directory)
    schema = "commitLogOffset long, topic string, queueId int, queueOffset long, body binary"
    rows = spark.readStream.format("commitlog").schema(schema).options(startingOffsets="earliest", **options)
    sink = rows.load(log).writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    sink = sink.trigger(availableNow=True) if drain else sink.trigger(processingTime="500 milliseconds")
    sink.start(str(directory / "table")).awaitTermination()
    spark.stop()


def _main(arguments: Sequence[str]) -> None:
    verb, one, other, *rest = arguments
    given = dict(text.split("=", 1) for text in rest)
    settings = {key: value for key, value in given.items() if key.startswith("spark.")}
    options = {key: value for key, value in given.items() if key not in settings}
    if verb == "count":
        _count(one, other, options, settings)
    else:
        _stream(one, Path(other), options, settings, drain=verb == "drain")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _main(sys.argv[1:])
