"""Which parts of a range of the log are missing, permanently or at the moment."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import count_of
from commitlogfs.pipeline.log.errors import LocationError, PipelineError
from commitlogfs.pipeline.log.segments import LogListing
from commitlogfs.store.gaps import uncovered

_logger = logging.getLogger(__name__)

_SHOWN: Final = 5
"""Accepted losses that are named one by one."""


class DataLossError(PipelineError):
    """Records of the requested range are not in the log, and failOnDataLoss is true."""

    exit_code = ExitCode.REFUSED


def missing_ranges(listing: LogListing, start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that no segment covers."""
    return uncovered(start, end, ((one.base_offset, one.end_offset) for one in listing.segments))


@dataclass(frozen=True, slots=True)
class Missing:
    """Missing ranges [start, end), in ascending order."""

    lost: tuple[tuple[int, int], ...]
    """Nobody knows why, or the log's beginning was deleted."""
    accepted: tuple[tuple[int, int], ...]
    """Their disk was given up: an operator has accepted that."""


def sort_missing(listing: LogListing, ranges: Iterable[tuple[int, int]]) -> Missing:
    """Says which parts of these `missing_ranges` are accepted losses."""
    lost: list[tuple[int, int]] = []
    accepted: list[tuple[int, int]] = []
    known, gaps = listing.accepted, list(ranges)
    if known is None or not gaps:
        return Missing(tuple(gaps), ())
    size, present = known.segment_size, {one.base_offset for one in listing.segments}
    for start, end in gaps:
        bases = (
            base for base in range(start // size * size, end, size) if base not in present and known.covers(base)
        )
        covered = [(max(start, base), min(end, base + size)) for base in bases]
        left = uncovered(start, end, covered)
        lost += left
        accepted += uncovered(start, end, left)
    return Missing(tuple(lost), tuple(accepted))


def accepted_lines(accepted: Sequence[tuple[int, int]]) -> list[str]:
    """A line for each accepted loss, few in all."""
    lines = [f"log offsets {start} to {end} (their disk was given up)" for start, end in accepted[:_SHOWN]]
    rest = accepted[_SHOWN:]
    if rest:
        lines.append(f"{count_of(len(rest), 'more range')} up to log offset {rest[-1][1]}")
    return [f"accepted loss: {line}" for line in lines]


def require_complete(listing: LogListing, start: int, end: int, *, fail: bool, warn: bool = True) -> None:
    """Checks that segments cover [start, end). `fail`: raise DataLossError if not; `warn`: else log a warning.
    Accepted losses are only logged."""
    missing = sort_missing(listing, missing_ranges(listing, start, end))
    for lost_from, lost_to in missing.lost:
        where = _describe(listing, lost_from, lost_to)
        if fail:
            raise DataLossError(
                f"log offsets {lost_from} to {lost_to}: not in the log ({where}); "
                "failOnDataLoss=false reads the rest"
            )
        if warn:
            _logger.warning(
                "lost: log offsets %d to %d (%d bytes): %s", lost_from, lost_to, lost_to - lost_from, where
            )
    for line in accepted_lines(missing.accepted) if warn else ():
        _logger.warning("%s", line)


def require_places(listing: LogListing, *, fail: bool, tolerant: str = "failOnDataLoss=false") -> None:
    """Checks that each of several locations holds a segment. `fail`: raise DataLossError if not, else log a
    warning. A location without segments need not leave a gap: it may have held the first or the last segments.
    `tolerant`: the caller's option that reads such a log, for the message. Raises LocationError if no location
    holds a segment."""
    problem = missing_log(listing)
    if problem is not None:
        if fail:
            raise LocationError(f"{problem} ({tolerant} reads a log that has no messages yet)")
        _logger.warning("%s", problem)
        return
    for place in listing.empty_places:
        problem = f"{place}: holds no segments"
        if fail:
            raise DataLossError(f"{problem}; mount its disk, or leave it out; {tolerant} reads the rest")
        _logger.warning("%s; check that its disk is mounted", problem)


def require_beginning(listing: LogListing, *, fail: bool) -> None:
    """Checks that no degraded mount leaves out the log's beginning, which does not show as a gap. `fail`: raise
    DataLossError; else log a warning for each disk and segment that such a mount does not serve."""
    if fail and listing.may_lack_beginning:
        raise DataLossError(
            f"{not_served(listing)[0]}; correct that, or use startingOffsets={listing.begin_offset}, or "
            "failOnDataLoss=false, which reads the rest"
        )
    for omission in not_served(listing):
        _logger.warning("%s", omission)


def not_served(listing: LogListing) -> tuple[str, ...]:
    """One line for each disk and segment that degraded mounts do not serve; those that may precede the first
    segment come first."""
    begin = listing.begin_offset
    before = [one for one in listing.not_served if one.may_precede(begin)]
    others = [one for one in listing.not_served if one not in before]
    return (
        *(f"{one}; its messages before log offset {begin} are not read" for one in before),
        *(f"{one}; its messages are not read" for one in others),
    )


def missing_log(listing: LogListing) -> str | None:
    """The problem in one line if no location holds a segment; None for a log, even one without messages."""
    if listing.segments or not listing.empty_places:
        return None
    return f"{', '.join(listing.empty_places)}: holds no segments; check that the log is mounted there"


def require_log(listing: LogListing) -> None:
    """Raises LocationError if there is no log."""
    problem = missing_log(listing)
    if problem is not None:
        raise LocationError(problem)


def _describe(listing: LogListing, lost_from: int, lost_to: int) -> str:
    if not listing.segments:
        return "the log has no segments"
    begin = listing.segments[0].base_offset
    if lost_to <= begin:
        if listing.not_served:
            omitted = ", ".join(one.fact for one in listing.not_served)
            return f"the log begins at {begin}; earlier messages are deleted or not served: {omitted}"
        return f"the log begins at {begin}; earlier messages are deleted"
    for segment in listing.segments:
        if segment.end_offset == lost_from and segment.size < listing.segment_size:
            return (
                f"the file of segment {segment.name} has only {segment.size} of {listing.segment_size} bytes; it "
                f"is truncated, or still being copied ({segment.uri})"
            )
    if lost_from >= listing.segments[-1].end_offset:
        return f"the last segment ends at {listing.segments[-1].end_offset}"
    if listing.not_served:
        return f"a gap between segments ({', '.join(one.fact for one in listing.not_served)})"
    return "a gap between segments; a disk may not be mounted"
