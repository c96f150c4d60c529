"""The Spark session of our own jobs and tests."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1"
"""C1 alone: what C2 takes of the cores to make code better that hardly runs, the workers would have used."""
_JVM_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Come before the user's own options (spark.driver.defaultJavaOptions, extraJavaOptions), which so win."""


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
    `in_workers`: for jobs whose rows the JVM never looks into, as rebuild, audit, export and stats; a local JVM
    that this starts is slow at queries. Conditions are not pushed down: see CommitlogDataSource for what Spark
    would do with them.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = master or os.environ.get("MASTER") or LOCAL
    is_local = chosen.startswith("local")
    ours = _SETTINGS | (_LOCAL_SETTINGS if is_local else {}) | (_IN_WORKERS if in_workers else {})
    if master is not None or not _is_submitted():
        builder = builder.master(chosen)
    for key, value in (ours | dict(settings or {})).items():
        builder = builder.config(key, value)
    with _jvm_options(_QUICK_JVM) if is_local and in_workers else nullcontext():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    spark.dataSource.register(CommitlogDataSource)
    return spark


@contextmanager
def _jvm_options(options: str) -> Iterator[None]:
    """For a JVM that is started meanwhile."""
    former = os.environ.get(_JVM_OPTIONS)
    os.environ[_JVM_OPTIONS] = options if former is None else f"{options} {former}"
    try:
        yield
    finally:
        if former is None:
            del os.environ[_JVM_OPTIONS]
        else:
            os.environ[_JVM_OPTIONS] = former


def _is_submitted() -> bool:
    """Whether spark-submit has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
