"""What of a range of the log is not there any more, or not there just now."""

import logging

from commitlogfs.pipeline.errors import PipelineError
from commitlogfs.pipeline.segments import LogListing

_logger = logging.getLogger(__name__)


class DataLossError(PipelineError):
    """Records that were to be read are not in the log, and failOnDataLoss is true."""


def missing_ranges(listing: LogListing, start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that lie in no segment."""
    missing, at = [], start
    for segment in listing.segments:
        if segment.end_offset <= at:
            continue
        if segment.base_offset >= end:
            break
        if segment.base_offset > at:
            missing.append((at, segment.base_offset))
        at = segment.end_offset
    if at < end:
        missing.append((at, end))
    return missing


def demand_complete(listing: LogListing, start: int, end: int, *, fail: bool, warn: bool = True) -> None:
    """With `fail` a DataLossError if some of [start, end) lies in no segment, with `warn` a line in the log."""
    for lost_from, lost_to in missing_ranges(listing, start, end):
        where = _describe(listing, lost_from, lost_to)
        if fail:
            raise DataLossError(
                f"log offsets {lost_from} to {lost_to} are not in the log: {where}; "
                "read with failOnDataLoss=false to go on without them"
            )
        if warn:
            _logger.warning(
                "lost: log offsets %d to %d (%d bytes): %s", lost_from, lost_to, lost_to - lost_from, where
            )


def _describe(listing: LogListing, lost_from: int, lost_to: int) -> str:
    if not listing.segments:
        return "it has no segments"
    begin = listing.segments[0].base_offset
    if lost_to <= begin:
        return f"it begins at {begin}, what was before it has been deleted"
    if lost_from >= listing.segments[-1].end_offset:
        return f"its last segment ends at {listing.segments[-1].end_offset}"
    return "a hole between its segments, maybe a disk that is not mounted"
