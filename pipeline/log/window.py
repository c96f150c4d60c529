"""A window onto one segment: the part of it that is in memory while its records are walked."""

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
"""Small beside a core's share of the last cache, and what numpy gives huge pages."""


class WayTo(NamedTuple):
    """What a walk to a place came to."""

    first: int | None
    """Where the first record from the place on begins; None where the segment's records end before it, or where
    none is found behind damage."""
    damage: tuple[int, str] | None
    """Begin of the damage in which the place lies, and what is wrong there; it ends at `first`."""


class Window:
    """Positions are the segment's. The buffer grows only for a record that is larger than it."""

    def __init__(self, segment: SegmentFile, reader: SegmentReader) -> None:
        self._segment, self._reader = segment, reader
        self._buffer: Bytes = np.empty(min(WINDOW_BYTES, segment.size), np.uint8)
        self._positions: Longs = np.empty(len(self._buffer) // SMALLEST_RECORD_BYTES + 1, np.int64)
        self.data: Bytes = self._buffer[:0]
        self.begin = 0
        """Position of data[0]."""

    def load(self, position: int, at_least: int = 0) -> None:
        """Read what lies at `position` now; `at_least` bytes of it, else LocationError."""
        if at_least > len(self._buffer):
            self._buffer = np.empty(at_least, np.uint8)
            self._positions = np.empty(at_least // SMALLEST_RECORD_BYTES + 1, np.int64)
        room = self._segment.size - position
        self.data = self._buffer[: self._reader.read_into(self._buffer[:room], position)]
        self.begin = position
        if len(self.data) < min(at_least, room):
            raise LocationError(
                f"segment {self._segment.name} ({self._segment.uri}) ends after {position + len(self.data)} bytes, "
                f"although it had {self._segment.size} when the log was listed"
            )

    def walk(self, position: int, stop: int) -> tuple[Longs, Walk]:
        """Where records begin, counted from data[0], and how the walk ended, as the segment's position.

        MORE is never said of bytes that only claim to be a record larger than the window: see `find`.
        """
        begin = self.begin
        result = walk(self.data, self._offset, position - begin, stop - begin, self._room, self._positions)
        at = result.position + begin
        if result.ended is Ended.MORE and result.needed > len(self._buffer) and not self._is_record(at):
            result = result._replace(ended=Ended.BROKEN, needed=0)
        return self._positions[: result.records], result._replace(position=at)

    def find(self, start: int, stop: int) -> int | None:
        """The first place in [start, stop) where a record or the blank record lies. Loads what it looks at.

        What claims to be large is proven by its few lengths, not read: bytes that only look like records must
        cost neither memory nor time in proportion to what they claim.
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

    def walk_to(self, stop: int, limit: int) -> WayTo:
        """From the segment's begin over all that lies before `stop`; after damage none is looked for from `limit`
        on."""
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
                return WayTo(None, None)
            if walked.ended in REASONS:
                damage = (at, REASONS[walked.ended])
                at, needed = self.find(at, limit), 0
        reaches = damage is not None and (at is None or (at > stop and newest < damage[0]))
        return WayTo(at, damage if reaches else None)

    def _is_record(self, at: int) -> bool:
        """Whether the lengths of the record at `at`, whose own header claims it, add up to its size."""
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
