"""Whether the segment in which a log ends was cut short. A broker gives each its full size before it writes, so a
file that is smaller has lost what was behind its end, and nothing in it says how much."""

from commitlogfs.pipeline.log.segments import LogListing, SegmentFile, open_segment, read_at
from commitlogfs.pipeline.log.tail import is_begun
from commitlogfs.store.record_layout import (
    END_BLANK_BYTES,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    SIZE_AND_MAGIC_BYTES,
)

_HEADER_BYTES = PHYSICAL_OFFSET_AT + 8
"""With PHYSICALOFFSET, by which a record is known to belong where it lies."""


def expected_end(listing: LogListing, end_offset: int) -> int:
    """`end_offset`, where the log ends (`find_end`), or where its last segment ought to end if that was cut short.

    A segment that is not begun may be one that is just being made. Raises SegmentGoneError, LocationError.
    """
    if all(segment.size == listing.segment_size for segment in listing.segments):
        return end_offset
    last = _last_segment(listing, end_offset)
    if last is None or last.size == listing.segment_size:
        return end_offset
    return last.base_offset + listing.segment_size


def crossing_record(listing: LogListing, end_offset: int) -> str | None:
    """What is wrong with the file that ends in the middle of a record at `end_offset`, where the log ends; None if
    it does not. It tells what sizes cannot where there is one segment, or all were cut alike.

    Raises SegmentGoneError, LocationError.
    """
    last = _last_segment(listing, end_offset)
    if last is None or end_offset == last.end_offset:
        return None
    position = end_offset - last.base_offset
    left = last.size - position
    with open_segment(last) as reader:
        header = read_at(reader, position, _HEADER_BYTES).tobytes()
    size = int.from_bytes(header[:MAGIC_AT], "big", signed=True)
    magic = int.from_bytes(header[MAGIC_AT:SIZE_AND_MAGIC_BYTES], "big")
    if left >= END_BLANK_BYTES:
        if magic not in (MAGIC_V1, MAGIC_V2) or size <= left - END_BLANK_BYTES:
            return None
        if left >= _HEADER_BYTES and int.from_bytes(header[PHYSICAL_OFFSET_AT:], "big") != end_offset:
            return None
    elif not any(header):
        return None
    return (
        f"segment {last.name}, log offset {end_offset}: what begins here goes beyond the end of the file "
        f"({last.uri}, {last.size} bytes): it was cut short, or this record is damaged"
    )


def _last_segment(listing: LogListing, end_offset: int) -> SegmentFile | None:
    """The one in which the log ends."""
    for segment in reversed(listing.segments):
        if segment.base_offset < end_offset or (segment.base_offset == end_offset and is_begun(segment)):
            return segment if end_offset <= segment.end_offset else None
    return None
