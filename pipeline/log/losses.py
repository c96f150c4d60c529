"""What of a range of the log is not there any more, or not there just now."""

import logging

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.log.errors import LocationError, PipelineError
from commitlogfs.pipeline.log.segments import LogListing

_logger = logging.getLogger(__name__)


class DataLossError(PipelineError):
    """Records that were to be read are not in the log, and failOnDataLoss is true."""

    exit_status = ExitCode.REFUSED


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


def require_complete(listing: LogListing, start: int, end: int, *, fail: bool, warn: bool = True) -> None:
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


def require_places(listing: LogListing, *, fail: bool) -> None:
    """With `fail` a DataLossError if one of several places holds no segment, else a line in the log: between those
    of the others nothing need be missing, but before and behind them. Where no place holds any, a LocationError."""
    told = missing_log(listing)
    if told is not None:
        if fail:
            raise LocationError(f"{told} failOnDataLoss=false reads a log that has no messages yet")
        _logger.warning("%s", told)
        return
    for place in listing.empty_places:
        told = f"{place} holds no segments: is its disk mounted?"
        if fail:
            raise DataLossError(f"{told} Leave it out, or read with failOnDataLoss=false to go on without it")
        _logger.warning("%s", told)


def require_beginning(listing: LogListing, *, fail: bool) -> None:
    """With `fail` a DataLossError if a degraded mount may leave out what was before the first segment, as no hole
    shows that. Else a line in the log for each disk and segment that such a mount does not serve."""
    if fail and listing.may_lack_beginning:
        raise DataLossError(
            f"{not_served(listing)[0]}; correct that, read with startingOffsets={listing.begin_offset}, or read "
            "with failOnDataLoss=false to go on without it"
        )
    for told in not_served(listing):
        _logger.warning("%s", told)


def not_served(listing: LogListing) -> tuple[str, ...]:
    """What degraded mounts leave out, a line for each; first what may lie before the first segment."""
    begin = listing.begin_offset
    before = [one for one in listing.not_served if one.may_precede(begin)]
    others = [one for one in listing.not_served if one not in before]
    return (
        *(f"{one}; what it holds before log offset {begin} is not read" for one in before),
        *(f"{one}; what it holds is not read" for one in others),
    )


def missing_log(listing: LogListing) -> str | None:
    """What is wrong where no place holds a segment; None for a log, if only one without messages."""
    if listing.segments or not listing.empty_places:
        return None
    return f"{', '.join(listing.empty_places)} holds no segments: is the log mounted there?"


def require_log(listing: LogListing) -> None:
    """LocationError if there is none."""
    told = missing_log(listing)
    if told is not None:
        raise LocationError(told)


def _describe(listing: LogListing, lost_from: int, lost_to: int) -> str:
    if not listing.segments:
        return "it has no segments"
    begin = listing.segments[0].base_offset
    if lost_to <= begin:
        if listing.not_served:
            told = ", ".join(one.fact for one in listing.not_served)
            return f"it begins at {begin}: what was before it has been deleted, or is not served ({told})"
        return f"it begins at {begin}, what was before it has been deleted"
    for segment in listing.segments:
        if segment.end_offset == lost_from and segment.size < listing.segment_size:
            return (
                f"the file of segment {segment.name} has only {segment.size} of {listing.segment_size} bytes: it "
                f"was cut short, or is just being copied ({segment.uri})"
            )
    if lost_from >= listing.segments[-1].end_offset:
        return f"its last segment ends at {listing.segments[-1].end_offset}"
    if listing.not_served:
        return f"a hole between its segments ({', '.join(one.fact for one in listing.not_served)})"
    return "a hole between its segments, maybe a disk that is not mounted"
