"""`commitlogfs-pipeline stats`: counts the messages of a log by topic."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of, moment, rate, shortened
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common
from commitlogfs.pipeline.source.group_keys import GroupKey, Kind, parse_keys
from commitlogfs.store.printable import printable

if TYPE_CHECKING:
    from commitlogfs.pipeline.jobs.stats import GroupedStats, LogStats, TopicStats

_HEADINGS: Final = (
    *("messages", "stored", "bodies", "largest", "queues", "messages", "bytes"),
    *("first (UTC)", "last (UTC)"),
)
_LEAST_NAME: Final = 20
"""Minimum width of the column with a topic's name."""
_GAP: Final = 2
"""Spaces between two columns."""


def register(app: typer.Typer) -> None:
    app.command()(stats)


def stats(
    log: common.Log,
    mode: common.Mode = "FAILFAST",
    segment_size: common.SegmentSize = None,
    split_size: common.SplitSize = common.DEFAULT_SPLIT,
    by: Annotated[
        str,
        typer.Option(
            metavar="KEY,KEY,...",
            help="Count by these: topic, tags, queueId, and minute, hour or day of storeTimestamp or "
            "bornTimestamp, such as hour(storeTimestamp).",
            show_default="topic, with rates",
        ),
    ] = "",
    master: common.Master = None,
    as_json: common.Json = False,
) -> None:
    """Count the messages of a log by topic: bytes, times, rates, queues, largest message. Or --by other keys.

    All messages count, including those of system topics and of transactions.

    EXIT STATUS: 0 ok; 1 damage or a missing part of the log; 2 bad options; 3 no log at LOG, or Spark does not
    start; 4 Spark is not installed.
    """
    from commitlogfs.pipeline.jobs.stats import grouped_stats
    from commitlogfs.pipeline.jobs.stats import stats as count

    keys = _parse_keys(by) if by else ()
    damage_mode, split_bytes = common.parse_mode(mode), common.parse_size("--split-size", split_size)
    listing = common.list_log(log, segment_size, damage_mode)
    log_bytes = sum(segment.size for segment in listing.segments)
    with common.spark_for_jobs("stats", master) as spark, common.progress_bar("stats", log_bytes) as on_progress:
        how = {
            "segment_size": None if segment_size is None else listing.segment_size,
            "mode": damage_mode,
            "split_size": split_bytes,
            "on_progress": on_progress,
        }
        found: LogStats | GroupedStats
        if keys:
            found = common.run_job(spark, partial(grouped_stats, spark, log, keys, **how))
        else:
            found = common.run_job(spark, partial(count, spark, log, **how))
    if wants_json(as_json):
        common.show_json(found.as_json())
    else:
        _show(found)
    if found.damages or found.missing or found.not_served:
        raise typer.Exit(ExitCode.FINDINGS)


def _parse_keys(text: str) -> tuple[GroupKey, ...]:
    try:
        return parse_keys(text)
    except ValueError as error:
        raise UsageError(f"--by {text}: {error}") from None


def _show(found: "LogStats | GroupedStats") -> None:
    from commitlogfs.pipeline.jobs.stats import LogStats
    from commitlogfs.pipeline.log.losses import accepted_lines

    if isinstance(found, LogStats):
        _show_table(found, common.data_console())
        counted = count_of(len(found.topics), "topic")
    else:
        _show_groups(found, common.data_console())
        counted = count_of(len(found.groups), "group")
    common.say(
        f"{count_of(found.segments, 'segment')}, log offsets {found.start_offset:,} to {found.end_offset:,}, "
        f"{counted}"
    )
    for omission in found.not_served:
        common.complain(f"missing: {omission}")
    for start, end in found.missing:
        common.complain(f"missing: log offsets {start} to {end} (no segment holds them)")
    for line in accepted_lines(found.accepted):
        common.say(line)
    common.complain_of(found.damages)


def _show_table(found: "LogStats", console: Console) -> None:
    """Prints the table. Figures are never shortened: columns that do not fit beside a name of `_LEAST_NAME` columns
    follow in another table, and names are shortened to the remaining width. A narrower terminal wraps the lines."""
    rows = [(printable(topic), _cells(of_topic)) for topic, of_topic in found.topics.items()]
    total = _cells(found.total) if found.total is not None and len(found.topics) > 1 else None
    cells = [*(row for _, row in rows), *([] if total is None else [total])]
    widths = [
        max(map(cell_len, (heading, *(row[column] for row in cells)))) + _GAP
        for column, heading in enumerate(_HEADINGS)
    ]
    width = console.width
    for columns in _blocks(widths, width - _LEAST_NAME):
        name_width = max(_LEAST_NAME, width - sum(widths[column] for column in columns))
        console.width = name_width + sum(widths[column] for column in columns)
        console.print(_table(columns, name_width, rows, total))


def _show_groups(found: "GroupedStats", console: Console) -> None:
    """One line for each group; a terminal that is too narrow wraps them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in found.keys:
        table.add_column(key.text, justify="left" if key.kind is Kind.TEXT else "right", no_wrap=True)
    for heading in ("messages", "stored", "bodies", "largest", "first (UTC)", "last (UTC)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in found.groups:
        figures = group.figures
        table.add_row(
            *(Text(_shown(key, value)) for key, value in zip(found.keys, group.values, strict=True)),
            f"{figures.messages:,}",
            *(approximate_size(size) for size in (figures.stored_bytes, figures.body_bytes, figures.largest_bytes)),
            *(moment(time_ms) for time_ms in (figures.first_ms, figures.last_ms)),
        )
    console.width = max(console.width, console.measure(table).maximum)
    console.print(table)


def _shown(key: GroupKey, value: str | int | None) -> str:
    if value is None:
        return "-"
    return moment(int(value)) if key.kind is Kind.TIME else printable(str(value))


def _table(
    columns: Sequence[int], name_width: int, rows: Sequence[tuple[str, list[str]]], total: list[str] | None
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic", no_wrap=True)
    for column in columns:
        table.add_column(_HEADINGS[column], justify="right", no_wrap=True)
    for name, row in rows:
        table.add_row(Text(shortened(name, name_width)), *(row[column] for column in columns))
    if total is not None:
        table.add_section()
        table.add_row("total", *(total[column] for column in columns), style="bold")
    return table


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each table, at least one, in as few tables as their order allows."""
    blocks: list[list[int]] = [[]]
    for column, width in enumerate(widths):
        if blocks[-1] and sum(widths[one] for one in blocks[-1]) + width > room:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _cells(of_topic: "TopicStats") -> list[str]:
    per_second = of_topic.bytes_per_s
    return [
        f"{of_topic.messages:,}",
        approximate_size(of_topic.stored_bytes),
        approximate_size(of_topic.body_bytes),
        approximate_size(of_topic.largest_bytes),
        f"{of_topic.queues:,}",
        rate(of_topic.messages_per_s),
        "-" if per_second is None else f"{approximate_size(per_second)}/s",
        moment(of_topic.first_ms),
        moment(of_topic.last_ms),
    ]
