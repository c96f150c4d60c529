"""The Spark session of our own jobs and tests."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from commitlogfs.pipeline.source import CommitlogDataSource

LOCAL: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Workers are spawned from the JVM, which would take the first python3 of PATH.
    "spark.pyspark.python": sys.executable,
    "spark.pyspark.driver.python": sys.executable,
    # Batches go to the JVM through a Unix socket: no port is opened, and it is faster than TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
}
_IN_WORKERS: Final = {
    # glibc would give memory back to the kernel after each piece of work and fetch it zeroed for the next one: a
    # fifth of a rebuild's time. So a worker keeps what a few splits need.
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
_QUICK_JVM: Final = {
    # C1 alone: what C2 takes of the cores to make code better that hardly runs, the workers would have used.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
}


def session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    in_workers: bool = False,
    log_level: str = "ERROR",
) -> SparkSession:
    """A session with the source registered; the one that is there already, if there is one.

    `master`: what spark-submit says, else all cores of this machine, on loopback alone. `settings` win over ours.
    `in_workers`: for jobs whose rows never leave the Python workers, as rebuild, audit, export and stats; a local
    JVM started so is slow at queries. Conditions are not pushed down: see CommitlogDataSource for what Spark would
    do with them.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = master or os.environ.get("MASTER") or LOCAL
    ours = _SETTINGS | (_IN_WORKERS if in_workers else {})
    if chosen.startswith("local"):
        ours |= _LOCAL_SETTINGS | (_QUICK_JVM if in_workers else {})
    if master is not None or not _is_submitted():
        builder = builder.master(chosen)
    for key, value in (ours | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    spark.dataSource.register(CommitlogDataSource)
    return spark


def _is_submitted() -> bool:
    """Whether spark-submit has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
