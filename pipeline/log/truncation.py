"""Detects a truncated last segment. A broker gives each segment its full size before it writes, so a smaller file
has lost its end, and nothing in the file says how much was written there."""

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
"""Header up to and including PHYSICALOFFSET, which shows that a record belongs to its place."""


def expected_end(listing: LogListing, end_offset: int) -> int:
    """`end_offset`, where the log ends (`find_end`), or where its last segment should end if that is truncated.

    A segment without data may just be in creation. Raises SegmentGoneError, LocationError.
    """
    if all(segment.size == listing.segment_size for segment in listing.segments):
        return end_offset
    last = _last_segment(listing, end_offset)
    if last is None or last.size == listing.segment_size:
        return end_offset
    return last.base_offset + listing.segment_size


def crossing_record(listing: LogListing, end_offset: int) -> str | None:
    """The problem in one line if the file ends in the middle of a record at `end_offset`, where the log ends; else
    None. It shows a truncation that sizes do not show: with one segment, or if all are truncated alike.

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
        f"segment {last.name}, log offset {end_offset}: the record that begins here does not fit into the file "
        f"({last.uri}, {last.size} bytes): the file is truncated, or this record is damaged"
    )


def _last_segment(listing: LogListing, end_offset: int) -> SegmentFile | None:
    """The segment in which the log ends; None if no segment contains its end."""
    for segment in reversed(listing.segments):
        if segment.base_offset < end_offset or (segment.base_offset == end_offset and is_begun(segment)):
            return segment if end_offset <= segment.end_offset else None
    return None
