"""`commitlogfs-pipeline stats`: counts the messages of a log by topic."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of, moment, rate, shortened
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common
from commitlogfs.store.printable import printable

if TYPE_CHECKING:
    from commitlogfs.pipeline.jobs.stats import LogStats, TopicStats

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
    master: common.Master = None,
    as_json: common.Json = False,
) -> None:
    """Count the messages of a log by topic: bytes, times, rates, queues, largest message.

    All messages count, including those of system topics and of transactions.

    EXIT STATUS: 0 ok; 1 damage or a missing part of the log; 2 bad options; 3 no log at LOG, or Spark does not
    start; 4 Spark is not installed.
    """
    from commitlogfs.pipeline.jobs.stats import stats as count

    damage_mode, split_bytes = common.parse_mode(mode), common.parse_size("--split-size", split_size)
    listing = common.list_log(log, segment_size, damage_mode)
    size = None if segment_size is None else listing.segment_size
    log_bytes = sum(segment.size for segment in listing.segments)
    with common.spark_session("stats", master) as spark, common.progress_bar("stats", log_bytes) as on_progress:
        job = partial(count, segment_size=size, mode=damage_mode, split_size=split_bytes, on_progress=on_progress)
        found = common.run_job(spark, partial(job, spark, log))
    if wants_json(as_json):
        common.show_json(found.as_json())
    else:
        _show(found)
    if found.damages or found.missing or found.not_served:
        raise typer.Exit(ExitCode.FINDINGS)


def _show(found: "LogStats") -> None:
    _show_table(found, common.data_console())
    common.say(
        f"{count_of(found.segments, 'segment')}, log offsets {found.start_offset:,} to {found.end_offset:,}, "
        f"{count_of(len(found.topics), 'topic')}"
    )
    for omission in found.not_served:
        common.complain(f"missing: {omission}")
    for start, end in found.missing:
        common.complain(f"missing: log offsets {start} to {end} (no segment holds them)")
    for damage in found.damages:
        common.complain(
            f"damage: segment {damage.segment}, log offset {damage.offset}, {damage.length} bytes skipped: "
            f"{damage.reason}"
        )


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
