"""A window onto one segment: the part of it that is in memory while its records are walked."""

import numpy as np

from commitlogfs.pipeline.errors import LocationError
from commitlogfs.pipeline.segments import SegmentFile, SegmentReader
from commitlogfs.pipeline.walk import SMALLEST_RECORD, Bytes, Longs, Walk, find, walk

WINDOW_BYTES = 2 << 20
"""Small enough to stay in a core's cache between reading and decoding."""


class Window:
    """Positions are the segment's. The buffer grows only for a record that is larger than it."""

    def __init__(self, segment: SegmentFile, reader: SegmentReader) -> None:
        self._segment, self._reader = segment, reader
        self._buffer: Bytes = np.empty(min(WINDOW_BYTES, segment.size), np.uint8)
        self._positions: Longs = np.empty(len(self._buffer) // SMALLEST_RECORD + 1, np.int64)
        self.data: Bytes = self._buffer[:0]
        self.begin = 0
        """Position of data[0]."""

    def load(self, position: int, at_least: int = 0) -> None:
        """Read what lies at `position` now; `at_least` bytes of it, else LocationError."""
        if at_least > len(self._buffer):
            self._buffer = np.empty(at_least, np.uint8)
            self._positions = np.empty(at_least // SMALLEST_RECORD + 1, np.int64)
        room = self._segment.size - position
        self.data = self._buffer[: self._reader.read_into(self._buffer[:room], position)]
        self.begin = position
        if len(self.data) < min(at_least, room):
            raise LocationError(
                f"segment {self._segment.name} ({self._segment.uri}) ends after {position + len(self.data)} bytes, "
                f"although it had {self._segment.size} when the log was listed"
            )

    def walk(self, position: int, stop: int) -> tuple[Longs, Walk]:
        """Where records begin, counted from data[0], and how the walk ended, as the segment's position."""
        begin = self.begin
        result = walk(self.data, self._offset, position - begin, stop - begin, self._room, self._positions)
        return self._positions[: result.records], result._replace(position=result.position + begin)

    def find(self, start: int, stop: int) -> int | None:
        """The first place in [start, stop) where a record or the blank record lies. Loads what it looks at."""
        needed = 0
        while start < stop:
            self.load(start, needed)
            result = find(self.data, self._offset, 0, stop - start, self._room)
            if result.found:
                return start + result.position
            start, needed = start + result.position, result.needed
        return None

    @property
    def _offset(self) -> int:
        return self._segment.base_offset + self.begin

    @property
    def _room(self) -> int:
        return self._segment.size - self.begin
