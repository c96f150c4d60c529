"""`commitlogfs-pipeline export`: exports the log as Parquet files."""

import itertools
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commitlogfs.pipeline.jobs.export import ExportPlan, ExportRequest, ExportResult, KeptRange
    from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, FinishedRange
    from commitlogfs.pipeline.jobs.export_tables import ExportTables
    from commitlogfs.pipeline.jobs.table_commits import TableSize


_FILE_SIZE = "512m"
_TABLE_INTERVAL_S = 30.0
_NO_INTERVAL = "export: --interval has no effect without --follow; leave it out"
_ROUNDS_PER_HINT = 100
"""The files of a table that follows the log are counted only once in so many rounds."""


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    log: common.Log,
    output: Annotated[
        str,
        typer.Argument(metavar="OUTPUT", help="A directory that all workers share, or a URI.", show_default=False),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...", help="Export only these columns, which may include text.", show_default="all"
        ),
    ] = None,
    partition_by: Annotated[
        str,
        typer.Option(metavar="NAMES", help='Levels of directories: "topic,date", one of these, or "none".'),
    ] = "topic,date",
    topic: Annotated[str | None, typer.Option(metavar="NAME,NAME,...", help="Export only these topics.")] = None,
    topic_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Export only topics whose whole name matches.")
    ] = None,
    starting_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="Begin: earliest, latest or a log offset.")
    ] = None,
    ending_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="End: latest or a log offset, exclusive.")
    ] = None,
    starting_timestamp: Annotated[
        str | None, typer.Option(metavar="MS", help="Export only messages stored at this time or later.")
    ] = None,
    ending_timestamp: Annotated[
        str | None, typer.Option(metavar="MS", help="Export only messages stored before this time.")
    ] = None,
    system_topics: Annotated[
        bool, typer.Option("--include-system-topics", help="Export the broker's own topics, too.")
    ] = False,
    half_messages: Annotated[
        bool, typer.Option("--include-half-messages", help="Export undecided transactions and rollbacks, too.")
    ] = False,
    mode: common.Mode = "FAILFAST",
    check_crc: Annotated[bool, typer.Option(help="Check each body against its CRC.")] = True,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="Refuse if a part of the log is missing that was not exported.")
    ] = True,
    decompress: Annotated[
        bool, typer.Option("--decompress", help="Decompress the column body; the column text always is.")
    ] = False,
    compression: Annotated[str, typer.Option(metavar="NAME", help="zstd, snappy, gzip, lz4 or none.")] = "zstd",
    file_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Target size of one output file, in bytes of log (upper bound).",
            show_default=_FILE_SIZE,
        ),
    ] = None,
    range_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of a range that is committed at once, in bytes of log.",
            show_default="8g, more for many cores",
        ),
    ] = None,
    iceberg: Annotated[
        str | None,
        typer.Option(
            metavar="CATALOG.NAMESPACE.TABLE",
            help="Add the files to this Iceberg table, too: one commit for each range. It is made if absent.",
        ),
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Make OUTPUT a Delta table, too: one commit for each range.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Export finished ranges again and replace their files.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Export new messages until interrupted: to the tables, or as a stream to an output of its own.",
        ),
    ] = False,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Stream up to the present end of the log, then stop.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Interval of --follow.", show_default="60; 30 for tables"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Directory where a stream keeps its position.", show_default="OUTPUT/_checkpoint"
        ),
    ] = None,
    segment_size: common.SegmentSize = None,
    split_size: common.SplitSize = common.DEFAULT_SPLIT,
    master: common.Master = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be exported.")] = False,
    as_json: common.Json = False,
) -> None:
    """Write the messages as Parquet files, in directories by topic and by day (UTC) of the store time.

    The same call again exports only new messages; after a kill it continues after the last finished range. Each
    message is exported once.

    EXIT STATUS: 0 ok; 1 damage was skipped, parts of the log are missing, a range was not replaced, or the log is
    damaged (FAILFAST); 2 bad options; 3 no log at LOG, or Spark does not start; 4 refused: OUTPUT holds other
    files, is of another log, or cannot be written.
    """
    from commitlogfs.pipeline.jobs.export import ExportRequest, plan_export

    options = common.given(
        {
            "topic": topic,
            "topicPattern": topic_pattern,
            "startingOffsets": starting_offsets,
            "endingOffsets": ending_offsets,
            "startingTimestamp": starting_timestamp,
            "endingTimestamp": ending_timestamp,
            "includeSystemTopics": str(system_topics),
            "includeHalfMessages": str(half_messages),
            "mode": mode,
            "checkCrc": str(check_crc),
            "decompress": str(decompress),
            "failOnDataLoss": str(fail_on_data_loss),
            "segmentSize": segment_size,
            "splitSize": split_size,
        }
    )
    request = ExportRequest(
        log,
        output,
        **({} if columns is None else {"columns": _names(columns)}),
        partition_by=_partitions(partition_by),
        compression=compression,
        file_size=common.parse_size("--file-size", file_size or _FILE_SIZE),
        range_size=None if range_size is None else common.parse_size("--range-size", range_size),
        replace=replace,
        whole_files=iceberg is not None,
    )
    tables = _tables(iceberg, delta=delta)
    is_endless = follow or available_now
    if is_endless:
        once = replace or dry_run or wants_json(as_json)
        _check_endless_options(options, interval, once=once, available_now=available_now)
    is_stream = is_endless and not tables
    if is_stream:
        _check_stream_options(file_size, range_size)
    else:
        _check_range_options(checkpoint, tables, None if follow else interval, replace, available_now)
        _check_tables(output, iceberg, tables)
    common.list_log(log, segment_size)
    if is_stream:
        _stream(request, options, master, checkpoint, interval, available_now=available_now)
        return
    every_s = (interval or _TABLE_INTERVAL_S) if follow else None
    if dry_run:
        _show_plan(plan_export(request, options), as_json=as_json)
    else:
        _export_ranges(request, options, master, iceberg, delta=delta, every_s=every_s, as_json=as_json)


def _export_ranges(
    request: "ExportRequest",
    options: dict[str, str],
    master: str | None,
    iceberg: str | None,
    *,
    delta: bool,
    every_s: float | None,
    as_json: bool,
) -> None:
    """Exports once, or each `every_s` seconds until interrupted."""
    from commitlogfs.pipeline.jobs.export import plan_export
    from commitlogfs.pipeline.jobs.export_directory import ExportDirectory

    directory = ExportDirectory(request.output)
    plan = plan_export(request, options, directory=directory)
    tables = _open_tables(plan, directory, iceberg, delta=delta)
    if every_s is None:
        result = _run(plan, options, master, directory, tables)
        _show(result, tables.sizes(), as_json=as_json)
        has_findings = result.has_findings
    else:
        has_findings = _follow(plan, options, master, directory, tables, every_s)
    if has_findings:
        raise typer.Exit(ExitCode.FINDINGS)


def _tables(iceberg: str | None, *, delta: bool) -> list[str]:
    """The options that ask for a table besides the files."""
    return [name for name, given in (("--iceberg", iceberg is not None), ("--delta", delta)) if given]


def _check_range_options(
    checkpoint: str | None, tables: list[str], interval: float | None, replace: bool, available_now: bool
) -> None:
    """Raises UsageError if an option of streams is given for an export of ranges, or one that excludes another."""
    if interval is not None:
        raise UsageError(_NO_INTERVAL)
    if checkpoint is not None:
        why = f"with {tables[0]}" if tables else "without --follow or --available-now"
        raise UsageError(f"export: --checkpoint has no effect {why}; leave it out")
    if available_now:
        raise UsageError(f"export: --available-now is not needed with {tables[0]}; leave it out")
    if replace and tables:
        raise UsageError(f"export: --replace deletes files that the table of {tables[0]} has; leave it out")


def _check_tables(output: str, iceberg: str | None, tables: list[str]) -> None:
    """Raises OptionError if a table could not have this output or name, before anybody asks a server for it."""
    from commitlogfs.pipeline.jobs.iceberg_table import split_name
    from commitlogfs.pipeline.jobs.table_commits import plain_place

    if tables:
        plain_place(output)
    if iceberg is not None:
        split_name(iceberg)


def _check_endless_options(
    options: dict[str, str], interval: float | None, *, once: bool, available_now: bool
) -> None:
    """Raises UsageError if an option of a single export is given for one that follows the log."""
    if available_now and interval is not None:
        raise UsageError(_NO_INTERVAL)
    if once:
        raise UsageError(
            "export: --follow and --available-now exclude --replace, --dry-run and --json; leave these out"
        )
    if "endingOffsets" in options or "endingTimestamp" in options:
        raise UsageError(
            "export: --follow and --available-now go to the log's end; leave out --ending-offsets and "
            "--ending-timestamp"
        )


def _check_stream_options(file_size: str | None, range_size: str | None) -> None:
    """Raises UsageError if an option of range exports is given for a stream."""
    if file_size is not None or range_size is not None:
        raise UsageError("export: --file-size and --range-size have no effect on a stream; leave them out")


def _partitions(text: str) -> tuple[str, ...]:
    return () if text == "none" else _names(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _open_tables(
    plan: "ExportPlan", directory: "ExportDirectory", iceberg: str | None, *, delta: bool
) -> "ExportTables":
    """Refuses before Spark is started, and the tables before the output is changed."""
    from commitlogfs.pipeline.jobs.export_tables import ExportTables

    schema, partition_by = plan.layout.file_schema, plan.request.partition_by
    tables = ExportTables.open(directory.place, schema, partition_by, iceberg=iceberg, delta=delta)
    directory.open(plan.settings).close()
    return tables


def _run(
    plan: "ExportPlan",
    options: dict[str, str],
    master: str | None,
    directory: "ExportDirectory",
    tables: "ExportTables",
) -> "ExportResult":
    from commitlogfs.pipeline.jobs.export import export

    with (
        common.spark_for_jobs("export", master) as spark,
        common.progress_bar("export", plan.todo_bytes) as on_progress,
    ):
        run = partial(
            export,
            spark,
            plan.request,
            options,
            on_progress=on_progress,
            on_finished=tables.add,
            directory=directory,
        )
        return common.run_job(spark, run)


def _follow(
    plan: "ExportPlan",
    options: dict[str, str],
    master: str | None,
    directory: "ExportDirectory",
    tables: "ExportTables",
    interval_s: float,
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """Exports what is new, again and again, until interrupted; whether there were findings."""
    from commitlogfs.pipeline.jobs.export import export
    from commitlogfs.pipeline.jobs.export_directory import ExportBusyError
    from commitlogfs.pipeline.source.options import Edge

    if plan.options.start is Edge.LATEST:  # the end of the log when the first run began
        options = options | {"startingOffsets": str(max((one.end for one in plan.before), default=plan.end_offset))}
    stop, known, has_findings = threading.Event(), {one.name for one in plan.before}, False

    def on_finished(finished: "FinishedRange") -> None:
        nonlocal has_findings
        if finished.name not in known:
            # At once: the next run does not read this range again.
            common.complain_of(finished.damages)
            has_findings |= bool(finished.damages)
            known.add(finished.name)
        tables.add(finished)

    def rounds() -> None:
        nonlocal has_findings
        shown: object = None
        for number in itertools.count():
            began = clock.monotonic()
            try:
                result = export(spark, plan.request, options, on_finished=on_finished, directory=directory)
            except ExportBusyError:
                result = None  # what the other export does not add, a later round does
            if result is not None:
                _show_exported(result)
                missing = result.lost, result.kept, result.not_served
                has_findings |= any(missing)
                if shown != (missing, result.accepted):
                    _show_missing(result)
                shown = missing, result.accepted
            if number % _ROUNDS_PER_HINT == 0:
                _show_sizes(tables.sizes())
            if stop.wait(max(0.0, began + interval_s - clock.monotonic())):
                return

    def end() -> None:
        stop.set()
        spark.sparkContext.cancelAllJobs()

    with common.spark_for_jobs("export", master) as spark, suppress(KeyboardInterrupt):
        common.interruptible(rounds, end)
    return has_findings


def _show_plan(plan: "ExportPlan", *, as_json: bool) -> None:
    from commitlogfs.pipeline.log.losses import accepted_lines

    if wants_json(as_json):
        common.show_json(plan.as_json())
        return
    common.say(
        f"{count_of(len(plan.before), 'range')} finished before; {approximate_size(plan.todo_bytes)} of the log to "
        f"export in {count_of(len(plan.todo), 'range')}"
    )
    _show_removed(plan.removed, "would be removed")
    for start, end in plan.todo:
        common.show(f"{start}-{end}")
    for line in accepted_lines(plan.accepted):
        common.say(line)
    for one in plan.kept:
        common.complain(f"would not be replaced: {_kept(one)}")


def _kept(one: "KeptRange") -> str:
    return f"log offsets {one.start} to {one.end}: {one.reason}"


def _show_sizes(sizes: "Sequence[TableSize]") -> None:
    for one in sizes:
        if one.needs_compaction:
            average = approximate_size(one.size // one.files)
            common.say(
                f"{one.name}: has {count_of(one.files, 'file')} of {average} on average; compact it with your "
                f"engine ({one.compaction})"
            )


def _show(result: "ExportResult", sizes: "Sequence[TableSize]" = (), *, as_json: bool = False) -> None:
    if wants_json(as_json):
        common.show_json(result.as_json() | {"tables": [one.as_json() for one in sizes]})
        return
    _show_removed(result.removed, "removed")
    _show_exported(result)
    if not result.ranges and not result.kept:
        common.say(f"Nothing new: the log is exported up to {result.end_offset:,}.")
    _show_missing(result)
    common.complain_of(result.damages)
    _show_sizes(sizes)


def _show_removed(removed: "Sequence[FinishedRange]", what: str) -> None:
    if removed:
        common.say(
            f"{what}: {count_of(len(removed), 'range')} of another log, log offsets {removed[0].start} to "
            f"{removed[-1].end}"
        )


def _show_exported(result: "ExportResult") -> None:
    files = [file for one in result.ranges for file in one.files]
    if result.ranges:
        common.say(
            f"{count_of(result.rows, 'message')} in {count_of(len(files), 'file')}, "
            f"{approximate_size(sum(file.size for file in files))}; the log is exported up to {result.end_offset:,}"
        )


def _show_missing(result: "ExportResult") -> None:
    from commitlogfs.pipeline.log.losses import accepted_lines

    for omission in result.not_served:
        common.complain(f"missing: {omission}")
    for start, end in result.lost:
        common.complain(f"lost: log offsets {start} to {end} are not in the log")
    for line in accepted_lines(result.accepted):
        common.say(line)
    for one in result.kept:
        common.complain(f"not replaced: {_kept(one)}")


def _stream(
    request: "ExportRequest",
    options: dict[str, str],
    master: str | None,
    checkpoint: str | None,
    interval: float | None,
    *,
    available_now: bool,
) -> None:
    from commitlogfs.pipeline.jobs.export_stream import DEFAULT_INTERVAL_S, follow, wait

    with common.spark_for_queries("export", master) as spark:
        query = follow(
            spark,
            request.log,
            request.output,
            columns=request.columns,
            partition_by=request.partition_by,
            compression=request.compression,
            checkpoint=checkpoint,
            interval_s=interval or DEFAULT_INTERVAL_S,
            available_now=available_now,
            options=options,
        )
        try:
            common.interruptible(partial(wait, query), query.stop)
        except KeyboardInterrupt:
            if available_now:
                raise  # the export is incomplete
