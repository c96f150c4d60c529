"""Reads single records of a log by their log offset."""

from bisect import bisect_right
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from commitlogfs.pipeline.log.segments import LogListing, SegmentReader, open_segment, read_at
from commitlogfs.store import record
from commitlogfs.store.record import Record, RecordError
from commitlogfs.store.record_layout import SIZE_AND_MAGIC_BYTES


class LogLookup:
    """Opens each segment at its first use and keeps it open. A context manager."""

    def __init__(self, listing: LogListing) -> None:
        self._segments = listing.segments
        self._bases = [segment.base_offset for segment in listing.segments]
        self._readers: dict[int, SegmentReader] = {}
        self._stack = ExitStack()

    def record_at(self, offset: int) -> Record | None:
        """The whole record that begins at `offset`; None if none begins there. Raises SegmentGoneError,
        LocationError."""
        index = bisect_right(self._bases, offset) - 1
        if index < 0 or offset >= self._segments[index].end_offset:
            return None
        segment = self._segments[index]
        if index not in self._readers:
            self._readers[index] = self._stack.enter_context(open_segment(segment))
        reader, position = self._readers[index], offset - segment.base_offset
        try:
            size = record.peek(read_at(reader, position, SIZE_AND_MAGIC_BYTES).tobytes())
            if size > segment.size - position:
                return None
            return record.decode(read_at(reader, position, size).tobytes(), offset)
        except RecordError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
