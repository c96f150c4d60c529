"""`commitlogfs-pipeline export`: exports the log as Parquet files."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common

if TYPE_CHECKING:
    from commitlogfs.pipeline.jobs.export import ExportPlan, ExportRequest, ExportResult, KeptRange


_FILE_SIZE = "512m"


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    log: common.Log,
    output: Annotated[
        str,
        typer.Argument(metavar="OUTPUT", help="A directory that all workers share, or a URI.", show_default=False),
    ],
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="Export only these columns.", show_default="all")
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
    replace: Annotated[
        bool, typer.Option("--replace", help="Export finished ranges again and replace their files.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Stream new messages until interrupted, into an output of its own."),
    ] = False,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Stream up to the present end of the log, then stop.")
    ] = False,
    interval: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Interval of --follow.", show_default="60")
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
    damaged (FAILFAST); 2 bad options; 3 no log at LOG, or Spark does not start; 4 refused: OUTPUT holds other files
    or cannot be written.
    """
    from commitlogfs.pipeline.jobs.export import ExportRequest, plan_export

    options = _given(
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
    )
    is_stream = follow or available_now
    if interval is not None and (available_now or not follow):
        raise UsageError("export: --interval has no effect without --follow; leave it out")
    if is_stream:
        _check_stream_options(file_size, range_size, ranged=replace or dry_run or wants_json(as_json))
    elif checkpoint is not None:
        raise UsageError("export: --checkpoint has no effect without --follow or --available-now; leave it out")
    common.list_log(log, segment_size)
    if is_stream:
        _stream(request, options, master, checkpoint, interval, available_now=available_now)
        return
    plan = plan_export(request, options)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    result = _run(request, options, master, plan)
    _show(result, as_json=as_json)
    if any((result.damages, result.lost, result.kept, result.not_served)):
        raise typer.Exit(ExitCode.FINDINGS)


def _check_stream_options(file_size: str | None, range_size: str | None, *, ranged: bool) -> None:
    """Raises UsageError if an option of range exports is given for a stream."""
    if file_size is not None or range_size is not None:
        raise UsageError("export: --file-size and --range-size have no effect on a stream; leave them out")
    if ranged:
        raise UsageError("export: a stream does not support --replace, --dry-run and --json; leave them out")


def _given(options: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _partitions(text: str) -> tuple[str, ...]:
    return () if text == "none" else _names(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _run(
    request: "ExportRequest", options: dict[str, str], master: str | None, plan: "ExportPlan"
) -> "ExportResult":
    from commitlogfs.pipeline.jobs.export import export as run
    from commitlogfs.pipeline.jobs.export_directory import ExportDirectory

    ExportDirectory(request.output).open(plan.settings).close()  # refuses before Spark is started
    with (
        common.spark_session("export", master) as spark,
        common.progress_bar("export", plan.todo_bytes) as on_progress,
    ):
        return common.run_job(spark, partial(run, spark, request, options, on_progress=on_progress))


def _show_plan(plan: "ExportPlan", *, as_json: bool) -> None:
    if wants_json(as_json):
        common.show_json(plan.as_json())
        return
    common.say(
        f"{count_of(len(plan.before), 'range')} finished before; {approximate_size(plan.todo_bytes)} of the log to "
        f"export in {count_of(len(plan.todo), 'range')}"
    )
    for start, end in plan.todo:
        common.show(f"{start}-{end}")
    for one in plan.kept:
        common.complain(f"would not be replaced: {_kept(one)}")


def _kept(one: "KeptRange") -> str:
    return f"log offsets {one.start} to {one.end}: {one.reason}"


def _show(result: "ExportResult", *, as_json: bool) -> None:
    if wants_json(as_json):
        common.show_json(result.as_json())
        return
    files = [file for one in result.ranges for file in one.files]
    if result.ranges:
        common.say(
            f"{count_of(result.rows, 'message')} in {count_of(len(files), 'file')}, "
            f"{approximate_size(sum(file.size for file in files))}; the log is exported up to {result.end_offset:,}"
        )
    elif not result.kept:
        common.say(f"Nothing new: the log is exported up to {result.end_offset:,}.")
    for omission in result.not_served:
        common.complain(f"missing: {omission}")
    for start, end in result.lost:
        common.complain(f"lost: log offsets {start} to {end} are not in the log")
    for one in result.kept:
        common.complain(f"not replaced: {_kept(one)}")
    for damage in result.damages:
        common.complain(
            f"damage: segment {damage.segment}, log offset {damage.offset}, {damage.length} bytes skipped: "
            f"{damage.reason}"
        )


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

    if "endingOffsets" in options or "endingTimestamp" in options:
        raise UsageError("export: a stream has no end; leave out --ending-offsets and --ending-timestamp")
    with common.spark_session("export", master, in_workers=False) as spark:
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
