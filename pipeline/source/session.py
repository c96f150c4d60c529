"""Spark as our own jobs and tests start it: a session for queries, or only the context that the jobs need."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import install_exception_handler
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


@dataclass(frozen=True, slots=True)
class JobContext:
    """Spark without SQL, which takes more than a third of the time that a session needs to start."""

    sparkContext: SparkContext  # noqa: N815 - the name that a session has for it

    def stop(self) -> None:
        self.sparkContext.stop()


Spark = SparkSession | JobContext
"""Our jobs run in either."""


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
    start = _Start.of(name, master, settings or {}, log_level, in_workers=in_workers)
    builder = SparkSession.builder
    for key, value in start.settings.items():
        builder = builder.config(key, value)
    with _jvm_options(start.jvm_options):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    spark.dataSource.register(CommitlogDataSource)
    return spark


def job_context(name: str, *, master: str | None = None, log_level: str = "ERROR") -> JobContext:
    """Spark for our jobs, as `session` with `in_workers` starts it, but without queries."""
    start = _Start.of(name, master, {}, log_level, in_workers=True)
    conf = SparkConf()
    for key, value in start.settings.items():
        conf.set(key, value)
    with _jvm_options(start.jvm_options):
        context = SparkContext.getOrCreate(conf)
    install_exception_handler()  # as a session does it: errors of the JVM are raised as PySparkException
    context.setLogLevel(log_level)
    return JobContext(context)


@dataclass(frozen=True, slots=True)
class _Start:
    """How Spark is to be started."""

    settings: Mapping[str, str]
    jvm_options: Sequence[str]

    @classmethod
    def of(
        cls, name: str, master: str | None, settings: Mapping[str, str], log_level: str, *, in_workers: bool
    ) -> Self:
        """See `session`."""
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        chosen = master or os.environ.get("MASTER") or LOCAL
        is_local = chosen.startswith("local")
        ours = {"spark.app.name": name, **_SETTINGS}
        if master is not None or not _is_submitted():
            ours["spark.master"] = chosen
        if is_local:
            ours |= _LOCAL_SETTINGS
        if in_workers:
            ours |= _IN_WORKERS
        jvm_options = [_QUICK_JVM] if is_local and in_workers else []
        if log_level in _QUIET_LEVELS and not _has_logging_of_its_own():
            jvm_options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        return cls(ours | dict(settings), jvm_options)


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
