"""The Spark session of our own jobs and tests."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from commitlogfs.pipeline.source.data_source import CommitlogDataSource

LOCAL: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # The JVM starts the workers, and would use the first python3 of PATH.
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
    # glibc would return memory to the kernel after each task and get it zeroed for the next one, which costs a
    # fifth of a rebuild's time. So a worker keeps enough memory for a few splits.
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1"
"""C1 only: C2 would take the workers' processor time to optimize JVM code that hardly runs."""
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_LOGGING_NAMES: Final = ("log4j2.properties", "log4j2.xml", "log4j2.yaml", "log4j2.json")
_QUIET_LEVELS: Final = ("ERROR", "FATAL", "OFF")
_JVM_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Precede the user's own options (spark.driver.defaultJavaOptions, extraJavaOptions), so the user's win."""


def session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    in_workers: bool = False,
    log_level: str = "ERROR",
) -> SparkSession:
    """A session with the source registered; the existing session, if there is one.

    `master`: by default that of spark-submit, else all cores of this machine, on loopback only. `settings` override
    our own. `in_workers`: for jobs whose rows the JVM does not process (rebuild, audit, export, stats); a local JVM
    that this call starts is slow at queries. Conditions are not pushed down: CommitlogDataSource says why.
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
    jvm_options = [_QUICK_JVM] if is_local and in_workers else []
    if log_level in _QUIET_LEVELS and not _has_logging_of_its_own():
        jvm_options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    with _jvm_options(jvm_options):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    spark.dataSource.register(CommitlogDataSource)
    return spark


@contextmanager
def _jvm_options(options: Sequence[str]) -> Iterator[None]:
    """Sets options for a JVM that is started inside."""
    former = os.environ.get(_JVM_OPTIONS)
    os.environ[_JVM_OPTIONS] = " ".join([*options, *([] if former is None else [former])])
    try:
        yield
    finally:
        if former is None:
            del os.environ[_JVM_OPTIONS]
        else:
            os.environ[_JVM_OPTIONS] = former


def _has_logging_of_its_own() -> bool:
    """Whether Spark's configuration directory has a logging configuration."""
    home = os.environ.get("SPARK_HOME")
    directory = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    return directory is not None and any((Path(directory) / name).exists() for name in _LOGGING_NAMES)


def _is_submitted() -> bool:
    """Whether spark-submit has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
