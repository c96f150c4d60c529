"""Offsets as a stream of a log has them in its checkpoint."""

from pathlib import Path

from support.written_logs import WrittenLog

from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.source.stream_reader import Offset, Position


def offset_at(log: WrittenLog | Path | str, offset: int) -> Offset:
    """The offset of a query that has read this log up to `offset`."""
    place = log.directory if isinstance(log, WrittenLog) else log
    return Position.at(list_segments(str(place)), offset).as_offset()
