"""Reports data after the end of a log that is not read: a damaged last message, or data that remains from before a
broker truncated its log. A reader cannot always tell these apart."""

import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum

import numpy as np

from commitlogfs.pipeline.arrays.walk import Ended
from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile, SegmentReader, open_segment, read_at
from commitlogfs.pipeline.log.tail import SETTLE_S, begins_here, has_its_end
from commitlogfs.pipeline.log.truncation import crossing_record
from commitlogfs.pipeline.log.window import Window
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

_CHECKED_BYTES = 1 << 20
"""Number of bytes that are checked after the end: damage begins there."""

_logger = logging.getLogger(__name__)
_warned: deque[str] = deque(maxlen=1024)


class Unread(Enum):
    """Kinds of data after the log's last message, as far as they can be distinguished."""

    MESSAGE = "a message begins here that is not whole: its write was interrupted, or it is damaged"
    EARLIER = (
        "older messages follow, probably left from before a broker truncated its log; if messages are missing, run "
        "an audit, because damaged store times look the same"
    )
    BYTES = "they are not a message: they remain from an earlier use, or a message is damaged here"


@dataclass(frozen=True, slots=True)
class UnreadEnd:
    """Data after the log's last message that is not read."""

    segment: str
    offset: int
    """Log offset where the log ends."""
    length: int
    kind: Unread
    uri: str

    def __str__(self) -> str:
        return (
            f"segment {self.segment}, log offset {self.offset}: {self.length} bytes after the last message are not "
            f"read ({self.uri}): {self.kind.value}"
        )


def find_unread(
    listing: LogListing, end_offset: int, *, settle_s: float = SETTLE_S, clock: Clock = SYSTEM_CLOCK
) -> tuple[UnreadEnd, ...]:
    """Data after `end_offset`, where the log ends (`tail.find_end`), that has not changed for `settle_s`: at most
    one item for each segment; empty if the log has grown since.

    Raises SegmentGoneError, LocationError.
    """
    found: list[UnreadEnd] = []
    for segment in listing.segments:
        if segment.end_offset <= end_offset:
            continue
        position = max(0, end_offset - segment.base_offset)
        with open_segment(segment) as reader:
            before = read_at(reader, position, _CHECKED_BYTES)
            if not before.any():
                continue
            kind = _kind(segment, reader, position)
            if kind is None:
                return ()
            clock.sleep(settle_s)
            if settle_s and not np.array_equal(before, read_at(reader, position, _CHECKED_BYTES)):
                return ()
            length = int(np.flatnonzero(before)[-1]) + 1
            found.append(UnreadEnd(segment.name, segment.base_offset + position, length, kind, segment.uri))
    return tuple(found)


def require_messages(listing: LogListing, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Raises LocationError if files hold bytes, but none holds a message: files of a consume queue or of a timer
    log have names like segments. Raises SegmentGoneError."""
    if any(map(_may_hold_messages, listing.segments)):
        return
    if any(unread.kind is Unread.BYTES for unread in find_unread(listing, listing.begin_offset, clock=clock)):
        directories = dict.fromkeys(segment.uri.rpartition("/")[0] for segment in listing.segments)
        raise LocationError(
            f"{', '.join(directories)}: no file holds a message: this is not a commitlog, or all of it is damaged; "
            "name the commitlog directory"
        )


def _may_hold_messages(segment: SegmentFile) -> bool:
    """Whether the segment has a message, or its first one is damaged or, at log offset 0, not written yet."""
    with open_segment(segment) as reader:
        return begins_here(segment, reader, 0, None) or Window(segment, reader).find(0, segment.size) is not None


def _kind(segment: SegmentFile, reader: SegmentReader, position: int) -> Unread | None:
    """Kind of the data at `position`; None if the log continues there by then."""
    window = Window(segment, reader)
    following = window.find(position, min(segment.size, position + _CHECKED_BYTES))
    if following == position:
        window.load(position)
        positions, walked = window.walk(position, position + 1)
        if not len(positions) or has_its_end(window.data[: walked.position - position]):
            return None
        return Unread.MESSAGE
    if begins_here(segment, reader, position, None):
        return Unread.MESSAGE
    if following is None:
        return Unread.BYTES
    window.load(following)
    is_blank = window.walk(following, following + 1)[1].ended is Ended.BLANK
    return Unread.BYTES if is_blank else Unread.EARLIER


def warn_of_unread_end(
    listing: LogListing, end_offset: int, *, bytes_too: bool = True, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Logs a warning for data after the end, once for each place. `bytes_too` includes bytes that show no message:
    a broker with `writeWithoutMmap` leaves some after every message."""
    crossing = crossing_record(listing, end_offset)
    if crossing is not None:
        _warn_once(f"{crossing}; set segmentSize to have the file's size checked")
        return
    new = [
        unread
        for unread in find_unread(listing, end_offset, settle_s=0, clock=clock)
        if str(unread) not in _warned and (bytes_too or unread.kind is not Unread.BYTES)
    ]
    settled = find_unread(listing, end_offset, clock=clock) if new else ()
    for unread in new:
        if unread in settled:
            _warn_once(str(unread))


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.append(text)
        _logger.warning("%s", text)
