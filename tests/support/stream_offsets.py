"""Streams of a log without a query, and offsets as they have them in their checkpoints."""

from pathlib import Path

import pyarrow as pa
from support.clocks import SHORT_WAITS
from support.written_logs import WrittenLog

from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.source.columns import COLUMNS
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.rows import RowReader
from commitlogfs.pipeline.source.selection import RecordFilter
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader, Offset, Position


def offset_at(log: WrittenLog | Path | str, offset: int) -> Offset:
    """The offset of a query that has read this log up to `offset`."""
    place = log.directory if isinstance(log, WrittenLog) else log
    return Position.at(list_segments(str(place)), offset).as_offset()


def stream(log: WrittenLog, **options: str) -> CommitlogStreamReader:
    parsed = parse_options({"path": str(log.directory), "startingOffsets": "earliest", **options}, streaming=True)
    rows = RowReader(
        schema=pa.schema([COLUMNS.field("commitLogOffset")]),
        filter=RecordFilter.of(parsed),
        mode=DamageMode.FAILFAST,
        check_crc=True,
        fail_on_data_loss=parsed.fail_on_data_loss,
    )
    return CommitlogStreamReader(parsed, rows, clock=SHORT_WAITS)


def offsets_between(reader: CommitlogStreamReader, start: Offset, end: Offset) -> list[int]:
    found: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch.column(0).to_pylist()
    return found
