"""Parts that all verbs share: common options, the Spark session, progress bar and output."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from commitlogfs.console import settings
from commitlogfs.console.errors import UnreachableError, UsageError
from commitlogfs.console.output import make_console
from commitlogfs.pipeline.commands.spark_noise import StartFailedError, quiet_children
from commitlogfs.pipeline.log.errors import LocationError, OptionError
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.store.printable import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commitlogfs.pipeline.log.scanner import Damage
    from commitlogfs.pipeline.log.segments import LogListing
    from commitlogfs.pipeline.source.session import Spark

_Result = TypeVar("_Result")
_Spark = TypeVar("_Spark", bound="Spark")
_JAVA_EXCEPTION: Final = re.compile(r"^Exception in thread .*?: (.*)")
_LOST_TASK: Final = re.compile(
    r"^Job aborted .*: Lost task .* \(TID \d+\) \(.*?\): (?:[\w.$]+(?:Exception|Error): )?(.+)"
)
"""Spark's first line about a failed task; its last part is the task's own error."""
_KNOWN_REASONS: Final = {
    "Python worker exited unexpectedly": (
        "a Python worker was killed or crashed; if memory ran out, use fewer cores (--master local[1])"
    ),
    "Cannot call methods on a stopped SparkContext": "it stopped while starting; check that the master is running",
    "Connection refused": "its JVM ended while starting; check that $SPARK_LOCAL_DIRS or /tmp is writable",
}
"""Meanings of some errors of Spark, by a part of their text."""
_NO_JVM: Final = "JAVA_GATEWAY_EXITED"
_SPARK_CLASS: Final = re.compile(r"^\S*/spark-class: line \d+: ")
"""The shell script that starts the JVM, as bash names it before an error."""
_POLL_EVERY_S: Final = 0.2
_END_S: Final = 60.0
_JVM_EXIT_S: Final = 2.0
"""A process that is killed closes its connections a moment before it can be waited for."""


# --- options ---------------------------------------------------------------------------------------------


LOG_HELP: Final = (
    "The mounted commitlog directory, a broker's own, a comma list of bare disk directories, or a URI."
)
Log = Annotated[str, typer.Argument(metavar="LOG", show_default=False, help=LOG_HELP)]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark master.", show_default="local[*]")
]
SegmentSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="The broker's mappedFileSizeCommitLog.", show_default="that of the largest file"
    ),
]
SplitSize = Annotated[str, typer.Option(metavar="SIZE", help="Bytes of log that one task reads.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Mode = Annotated[
    str, typer.Option("--mode", metavar="FAILFAST|PERMISSIVE", help="PERMISSIVE skips damage and reports it.")
]
StoreLog = Annotated[str | None, typer.Argument(metavar="LOG", help=LOG_HELP, show_default="STORE/commitlog")]
BrokerConf = Annotated[
    Path | None,
    typer.Option("--broker-conf", metavar="FILE", help="The broker's broker.conf: sizes, delays, options."),
]
BrokerVersion = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y.Z",
        help="RocketMQ version of the queues and the index; before 5.4 they differ.",
        show_default="5.5.0, or 4.9 if RocketMQ 4 wrote topics.json",
    ),
]
DEFAULT_SPLIT: Final = "128m"


def given(options: dict[str, str | None]) -> dict[str, str]:
    """Options of `format("commitlog")` without those that were not given."""
    return {name: value for name, value in options.items() if value is not None}


def parse_mode(text: str) -> Any:
    """The DamageMode of this name."""
    from commitlogfs.pipeline.log.scanner import DamageMode

    return DamageMode.PERMISSIVE if _parse("mode", text).permissive else DamageMode.FAILFAST


def parse_split_size(text: str) -> int:
    size = _parse("splitSize", text).split_size
    return 0 if size is None else size


def parse_size(option: str, text: str) -> int:
    """Number of bytes in texts like 1073741824, 1g or 1GiB."""
    try:
        return parse_split_size(text)
    except OptionError as error:
        raise UsageError(f"{option}: {str(error).partition(' = ')[2]}") from None


def _parse(name: str, text: str) -> Any:
    return parse_options({"path": "-", name: text})


def list_log(log: str, segment_size: str | None, mode: Any = None) -> "LogListing":
    """The segments of the log. Fails on a wrong location before Spark is started; with FAILFAST as `mode`, also if
    one of several locations holds no segments. Raises LocationError, DataLossError, UserError."""
    from commitlogfs.pipeline.log.losses import require_log, require_places
    from commitlogfs.pipeline.log.scanner import DamageMode
    from commitlogfs.pipeline.log.segments import list_segments

    size = None if segment_size is None else parse_size("--segment-size", segment_size)
    try:
        listing = list_segments(log, size)
    except LocationError as error:
        if size is not None:
            list_segments(log)  # raises if the location is wrong; otherwise the size is wrong
            raise UsageError(f"--segment-size: {error}") from None
        raise
    require_log(listing)
    if mode is DamageMode.FAILFAST:
        require_places(listing, fail=True, tolerant="mode=PERMISSIVE")
    return listing


# --- Spark -----------------------------------------------------------------------------------------------


@contextmanager
def spark_for_jobs(verb: str, master: str | None) -> "Iterator[Spark]":
    """As `spark_for_queries`, without SQL, which starts sooner."""
    from commitlogfs.pipeline.source.session import job_context

    with _running(verb, master, job_context) as spark:
        yield spark


@contextmanager
def spark_for_queries(verb: str, master: str | None) -> "Iterator[SparkSession]":
    """A session that is always stopped at the end. SIGTERM raises KeyboardInterrupt inside. Raises UnreachableError
    if Spark does not start or its JVM ends inside."""
    from commitlogfs.pipeline.source.session import session

    with _running(verb, master, session) as spark:
        yield spark


@contextmanager
def _running(verb: str, master: str | None, launch: "Callable[..., _Spark]") -> "Iterator[_Spark]":
    start = partial(launch, f"commitlogfs-pipeline {verb}", master=master)
    if settings.current().verbose:
        spark = _started(partial(start, log_level="WARN"))
    else:
        try:
            with quiet_children():
                spark = _started(partial(start, log_level="OFF"))
        except StartFailedError as error:
            if isinstance(error.__cause__, ModuleNotFoundError):
                raise error.__cause__ from None
            where = f" with master {master}" if master else ""
            reason = _start_reason(error)
            raise UnreachableError(f"Spark does not start{where}: {reason}") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield spark
    except Exception as error:
        status = _jvm_status(spark) if _is_lost_connection(error) else None
        if status is None:
            raise
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        raise UnreachableError(
            f"Spark's JVM {how}; if memory ran out, use fewer cores (--master local[1]); finished output stays"
        ) from error
    finally:
        _stop(spark)


def _stop(spark: "Spark") -> None:
    """Stops Spark. A second interrupt is ignored: in a call to the JVM, py4j would print its trace."""
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        spark.stop()
    except Exception:
        if _jvm_status(spark) is None:
            raise  # a JVM that has ended cannot answer, which is reported already
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _is_lost_connection(error: BaseException) -> bool:
    return isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] == "py4j"


def _jvm_status(spark: "Spark") -> int | None:
    """Exit status of the JVM, as subprocess has it; None if it is running, or spark-submit has started it."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        return int(process.wait(_JVM_EXIT_S))
    except subprocess.TimeoutExpired:
        return None


def _started(start: "Callable[[], _Spark]") -> "_Spark":
    """Calls `start`, completely or not at all: an interrupt half-way would leave a JVM that waits for ever.

    It is started in a thread, where PySpark does not install its own handler for SIGINT: that handler calls the JVM
    in the middle of another call, which breaks the connection.
    """
    from pyspark import SparkContext

    try:
        return interruptible(start, lambda: None)
    except KeyboardInterrupt:
        context = SparkContext._active_spark_context
        if context is not None:
            context.stop()
        raise


def interruptible(work: Callable[[], _Result], cancel: Callable[[], object]) -> _Result:
    """Result of `work`. An interrupt calls `cancel`, which must end `work` soon, and is raised afterwards.

    `work` runs in a thread: an interrupt in the middle of a call to the JVM would break the connection, and each
    thread has its own.
    """
    done: list[_Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_EVERY_S)
    except KeyboardInterrupt:
        cancel()
        thread.join(_END_S)
        raise
    if failed:
        raise failed[0]
    return done[0]


def run_job(spark: "Spark", work: Callable[[], _Result]) -> _Result:
    """Runs `work`, which starts Spark jobs; an interrupt cancels them."""
    return interruptible(work, spark.sparkContext.cancelAllJobs)


def _start_reason(error: StartFailedError) -> str:
    """The JVM's own message, if it has exited with one."""
    for line in error.stderr:
        match = _JAVA_EXCEPTION.search(line)
        if match is not None:
            return match[1].strip()
    reason = spark_reason(error.__cause__ or error)
    if _NO_JVM in reason:
        lines = (_SPARK_CLASS.sub("", line.strip()) for line in error.stderr)
        said = next(filter(None, lines), "no JVM was started")
        return f"{said}; check JAVA_HOME: Spark needs Java 17 or later"
    return reason


def spark_reason(error: BaseException) -> str:
    """The line of Spark's long error text that says most."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() or java) if java is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    for part, meaning in _KNOWN_REASONS.items():
        if part in lines[0]:
            return meaning
    lost_task = _LOST_TASK.search(lines[0])
    return lines[0] if lost_task is None else lost_task[1]


# --- output ----------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Prints information that --quiet suppresses."""
    if not settings.current().quiet:
        show(text)


def show(line: str) -> None:
    """Prints a result."""
    typer.echo(printable(line))


def complain(text: str) -> None:
    typer.echo(printable(text), err=True)


def complain_of(damages: "Iterable[Damage]") -> None:
    for damage in damages:
        complain(
            f"damage: segment {damage.segment}, log offset {damage.offset}, {damage.length} bytes skipped: "
            f"{damage.reason}"
        )


def show_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2))


@contextmanager
def progress_bar(verb: str, log_bytes: int) -> Iterator[Callable[[int, int], None] | None]:
    """An OnProgress that shows the part of the log that is done, the rate and the time left; None if standard error
    is not a terminal. Only the ratio of its two numbers counts, so any unit will do."""
    console = make_console(stderr=True)
    if settings.current().quiet or not console.is_terminal:
        yield None
        return
    columns = (
        *(TextColumn(verb), BarColumn(), DownloadColumn(binary_units=True)),
        *(TransferSpeedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=log_bytes)
        reached = 0

        def show(done: int, known: int) -> None:
            nonlocal reached
            # The number of known tasks grows while a job runs: the bar then waits instead of going back.
            reached = max(reached, log_bytes * done // known if known else 0)
            progress.update(task, completed=reached)

        yield show


def data_console() -> Console:
    """A console for tables on standard output; in a pipe it is 200 columns wide."""
    return make_console(highlight=False, width=None if sys.stdout.isatty() else 200)
