"""A window of one segment: the part that is in memory while its records are walked."""

from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.walk import REASONS, Ended, Walk, find, walk
from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.segments import SegmentFile, SegmentReader, read_at
from commitlogfs.store.record_layout import (
    BODY_AT,
    BORN_HOST_V6_BIT,
    IPV6_EXTRA,
    LARGEST_HEADER_BYTES,
    MAGIC_AT,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
    SIZE_AND_MAGIC_BYTES,
    SMALLEST_RECORD_BYTES,
    STORE_HOST_V6_BIT,
    SYS_FLAG_AT,
    TOTAL_SIZE_AT,
)

WINDOW_BYTES = 4 << 20
"""Small compared with a core's share of the last-level cache; a size for which numpy uses huge pages."""


class Arrival(NamedTuple):
    """Result of a walk to a position."""

    first: int | None
    """Position of the first record from there on; None if the segment's records end before it, or if no record was
    found after damage."""
    damage: tuple[int, str] | None
    """Position and reason of the damaged range around that position; the range ends at `first`."""


class Window:
    """The window. Positions count from the segment's first byte. The buffer grows only for a record larger than
    it."""

    def __init__(self, segment: SegmentFile, reader: SegmentReader) -> None:
        self._segment, self._reader = segment, reader
        self._buffer: Bytes = np.empty(min(WINDOW_BYTES, segment.size), np.uint8)
        self._positions: Longs = np.empty(len(self._buffer) // SMALLEST_RECORD_BYTES + 1, np.int64)
        self.data: Bytes = self._buffer[:0]
        self.begin = 0
        """Position of data[0]."""

    def load(self, position: int, at_least: int = 0) -> None:
        """Read from `position` on. Raises LocationError for fewer than `at_least` bytes."""
        if at_least > len(self._buffer):
            self._buffer = np.empty(at_least, np.uint8)
            self._positions = np.empty(at_least // SMALLEST_RECORD_BYTES + 1, np.int64)
        room = self._segment.size - position
        self.data = self._buffer[: self._reader.read_into(self._buffer[:room], position)]
        self.begin = position
        if len(self.data) < min(at_least, room):
            raise LocationError(
                f"segment {self._segment.name}: ends after {position + len(self.data)} bytes, but had "
                f"{self._segment.size} when the log was listed ({self._segment.uri})"
            )

    def walk(self, position: int, stop: int) -> tuple[Longs, Walk]:
        """Where records begin, counted from data[0], and how the walk ended, as the segment's position.

        The walk ends with MORE only before a record whose lengths `find` has checked: see there.
        """
        begin = self.begin
        result = walk(self.data, self._offset, position - begin, stop - begin, self._room, self._positions)
        at = result.position + begin
        if result.ended is Ended.MORE and result.needed > len(self._buffer) and not self._is_record(at):
            result = result._replace(ended=Ended.BROKEN, needed=0)
        return self._positions[: result.records], result._replace(position=at)

    def find(self, start: int, stop: int) -> int | None:
        """The first position in [start, stop) of a record or the blank record. Loads the bytes that it needs.

        A large record is checked by reading its few lengths, not its content: bytes that only look like a record
        must cost neither memory nor time in proportion to their alleged size.
        """
        self.load(start)
        at = start
        while at < stop:
            result = find(self.data, self._offset, at - self.begin, stop - self.begin, self._room)
            at = self.begin + result.position
            if result.found:
                return at
            if at >= stop:
                return None
            if result.needed <= len(self._buffer):
                at = max(at, self._reader.next_data(at) - SIZE_AND_MAGIC_BYTES)
                if at >= stop:
                    return None
                self.load(at, result.needed)
            elif self._is_record(at):
                return at
            else:
                at += 1
        return None

    def walk_to(self, stop: int, limit: int) -> Arrival:
        """Walk from the segment's beginning over all records before `stop`; after damage, search the next record
        only before `limit`."""
        at: int | None = 0
        needed, newest = 0, -1
        damage: tuple[int, str] | None = None
        while at is not None and at < stop:
            self.load(at, needed)
            positions, walked = self.walk(at, stop)
            if len(positions):
                newest = self.begin + int(positions[-1])
            at, needed = walked.position, walked.needed
            if walked.ended is Ended.BLANK:
                return Arrival(None, None)
            if walked.ended in REASONS:
                damage = (at, REASONS[walked.ended])
                at, needed = self.find(at, limit), 0
        reaches = damage is not None and (at is None or (at > stop and newest < damage[0]))
        return Arrival(at, damage if reaches else None)

    def _is_record(self, at: int) -> bool:
        """Whether the lengths of the record at `at`, according to its header, add up to its size."""
        header = read_at(self._reader, at, LARGEST_HEADER_BYTES).tobytes()
        if len(header) < LARGEST_HEADER_BYTES:
            return False
        places = (TOTAL_SIZE_AT, MAGIC_AT, SYS_FLAG_AT)
        size, magic, flags = (int.from_bytes(header[place : place + 4], "big") for place in places)
        ipv6_hosts = (flags >> BORN_HOST_V6_BIT & 1) + (flags >> STORE_HOST_V6_BIT & 1)
        before_body = BODY_AT + IPV6_EXTRA * ipv6_hosts
        body = int.from_bytes(header[before_body - 4 : before_body], "big", signed=True)
        topic_bytes = 1 if magic == MAGIC_V1 else 2
        topic_at = before_body + body
        if body < 0 or topic_at + topic_bytes > size:
            return False
        topic = self._signed(at + topic_at, topic_bytes)
        properties_at = topic_at + topic_bytes + topic
        if topic < 0 or properties_at + PROPERTIES_LENGTH_BYTES > size:
            return False
        properties = self._signed(at + properties_at, PROPERTIES_LENGTH_BYTES)
        return properties >= 0 and properties_at + PROPERTIES_LENGTH_BYTES + properties == size

    def _signed(self, at: int, size: int) -> int:
        return int.from_bytes(read_at(self._reader, at, size).tobytes(), "big", signed=True)

    @property
    def _offset(self) -> int:
        return self._segment.base_offset + self.begin

    @property
    def _room(self) -> int:
        return self._segment.size - self.begin
