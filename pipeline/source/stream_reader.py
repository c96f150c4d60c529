"""Reads the log as a stream: the range of each trigger, and its splits.

An offset is {"offset": log offset of the next record, "last": fingerprint of the record before it, or null}. It is
always where a record begins, or where the log ended: the broker begins its next record there. The fingerprint shows
whether it is still the same log, so the same range gives the same rows whenever it is read.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.log.identity import Fingerprint, fingerprint_before, is_same
from commitlogfs.pipeline.log.losses import DataLossError, require_beginning, require_complete, require_places
from commitlogfs.pipeline.log.mount_status import NotServed
from commitlogfs.pipeline.log.seek import advance, first_place, offset_of_time, survey
from commitlogfs.pipeline.log.segments import LogListing, list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.options import Edge, ReadOptions
from commitlogfs.pipeline.source.reader import LogPartition, read_partition, split_bytes
from commitlogfs.pipeline.source.rows import RowReader
from commitlogfs.pipeline.source.worker_task import short_errors
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    import pyarrow as pa

_KEY: Final = "offset"
_LAST: Final = "last"
_SEARCH_BYTES: Final = 1 << 20
"""Limit of each trigger's search for records after damage at the end. Records after a longer damaged range are
found and reported when a later segment exists."""

Offset = dict[str, Any]
"""A position as Spark keeps it in its checkpoint."""

_logger = logging.getLogger(__name__)


class Position(NamedTuple):
    """A log offset, and the record before it, which identifies the log; None if there was none."""

    offset: int
    last: Fingerprint | None

    @classmethod
    def at(cls, listing: LogListing, offset: int) -> Self:
        return cls(offset, fingerprint_before(listing, offset))

    @classmethod
    def of_offset(cls, given: Mapping[str, Any]) -> Self:
        """Raises CheckpointError."""
        try:
            offset, last = given[_KEY], given[_LAST]
            if isinstance(offset, int):
                return cls(offset, None if last is None else Fingerprint.of_json(last))
        except (KeyError, TypeError, ValueError):
            pass
        raise CheckpointError(
            f'the checkpoint has {json.dumps(dict(given))}, not {{"{_KEY}": N, "{_LAST}": ...}}: it belongs to '
            "another source or version, or is damaged; use the right one, or start with an empty one"
        )

    def as_offset(self) -> Offset:
        return {_KEY: self.offset, _LAST: None if self.last is None else asdict(self.last)}

    def is_in(self, listing: LogListing) -> bool:
        """Whether nothing shows that the log is another one."""
        return self.last is None or is_same(listing, self.last) is not False


class CommitlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exists on the driver as long as its query; only `read` runs elsewhere, on a copy."""

    def __init__(self, options: ReadOptions, rows: RowReader, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._rows, self._clock = options, rows, clock
        self._known_end = 0
        """End of the log at the last survey."""
        self._reported: tuple[tuple[str, ...], int | None] = ((), None)
        """Data reported as missing: locations, and the end of the last segment."""
        self._reported_not_served: tuple[NotServed, ...] = ()
        self._reported_other: Position | None = None
        """Position that was reported as one in another log."""
        self._target: int | None = None
        """Trigger.AvailableNow: end of this run; later messages are for the next run."""

    @short_errors()
    def initialOffset(self) -> Offset:  # noqa: N802
        options = self._options
        listing, end = survey(options.path, options.segment_size, clock=self._clock)
        self._require_whole(listing, end, from_beginning=options.start is Edge.EARLIEST)
        return Position.at(listing, self._initial(listing, end)).as_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadAllAvailable()

    @short_errors()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        position = Position.of_offset(start)
        begin = position.offset
        listing, end = self._survey(position)
        self._require_whole(listing, end)
        if self._target is not None:
            end = min(end, self._target)
        if end <= begin:
            return start
        require_complete(listing, begin, end, fail=self._options.fail_on_data_loss, warn=False)
        place = max(self._place(listing, position, end), _begin(listing))
        reached = max(begin, advance(listing, place, end, **self._limits(limit)))
        return start if reached == begin else Position.at(listing, reached).as_offset()

    @short_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        options = self._options
        _, self._target = survey(options.path, options.segment_size, self._known_end, clock=self._clock)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        return {_KEY: self._known_end} if self._known_end else None

    @short_errors()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, last = Position.of_offset(start), Position.of_offset(end)
        if first.offset >= last.offset:
            return []
        listing = list_segments(self._options.path, self._options.segment_size)
        same = last.last is None or is_same(listing, last.last)
        if same and not self._known_end:
            # A query that has just begun repeats a batch of the process before it. The bytes of records that were
            # cut off may still be there, so the log's end has to be known.
            self._known_end = find_end(listing, clock=self._clock)
        if same is False or (same and self._known_end < last.offset):
            self._report_other(last, self._known_end if same else None)
            return []
        require_complete(listing, first.offset, last.offset, fail=self._options.fail_on_data_loss)
        begin, stop = self._place(listing, first, last.offset), last.offset
        size = split_bytes(self._options, listing, stop - begin)
        splits = plan_splits(listing, stop, start_offset=begin, exact_start=True, split_size=size)
        return [LogPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._rows, partition)

    # --- places --------------------------------------------------------------------------------------

    def _initial(self, listing: LogListing, end: int) -> int:
        options = self._options
        match options.start:
            case Edge.LATEST:
                return end
            case int(start) if start > end:
                raise DataLossError(f"{options.path}: the log ends at {end}, before startingOffsets = {start}")
            case int(start):
                require_complete(listing, start, end, fail=options.fail_on_data_loss)
                return first_place(listing, start, end)
        if options.start_ms is not None:
            return offset_of_time(listing, _begin(listing), end, options.start_ms)
        return _begin(listing)

    def _survey(self, position: Position) -> tuple[LogListing, int]:
        """The log from `position` on, and its end, which is before `position` if the log is another one."""
        options = self._options
        search = _SEARCH_BYTES if self._target is None else None
        size, clock = options.segment_size, self._clock
        listing, end = survey(
            options.path, size, self._known_end or position.offset, search_bytes=search, clock=clock
        )
        if position != self._reported_other:
            # `survey` starts from a known offset and reads nothing before it, so its end cannot be before that. A
            # query that has just begun knows no end of its own yet, only that in its checkpoint.
            is_new = position.offset and not self._known_end
            written = listing.segments[-1].end_offset if listing.segments else 0
            found = find_end(listing, clock=clock) if is_new else min(end, written)
            if found < position.offset or not position.is_in(listing):
                end = find_end(listing, clock=clock)
                self._report_other(position, end)
        self._known_end = end
        return listing, end

    def _report_other(self, position: Position, log_end: int | None = None) -> None:
        """Raises DataLossError, or warns once for each position."""
        is_short = log_end is not None and log_end < position.offset
        fact = f"the log ends at {log_end}" if is_short else "the log has other records now"
        text = (
            f"{self._options.path}: {fact}, but this query has read up to log offset {position.offset}: it is "
            "another log, or a broker has truncated it"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; correct the path, or start with an empty checkpoint")
        if position != self._reported_other:
            _logger.warning("%s; waiting until it is longer, its messages before that offset are not read", text)
        self._reported_other = position

    def _place(self, listing: LogListing, position: Position, end: int) -> int:
        """Where reading begins: at `position`, or if the log is another one, with the first record after it."""
        if self._options.fail_on_data_loss or position.is_in(listing):
            return position.offset
        return first_place(listing, position.offset, end)

    def _require_whole(self, listing: LogListing, end: int, *, from_beginning: bool = False) -> None:
        """Checks for locations without segments, parts that a degraded mount leaves out, and a truncated last
        segment. Raises, or warns once. From a given offset on, parts that a mount leaves out show as gaps."""
        if listing.not_served != self._reported_not_served:
            require_beginning(listing, fail=self._options.fail_on_data_loss and from_beginning)
            self._reported_not_served = listing.not_served
        expected = expected_end(listing, end)
        missing = (listing.empty_places, expected if expected > end else None)
        if missing != self._reported:
            require_places(listing, fail=self._options.fail_on_data_loss)
            require_complete(listing, end, expected, fail=self._options.fail_on_data_loss)
            self._reported = missing

    def _limits(self, limit: ReadLimit) -> dict[str, Any]:
        """The limits of this trigger. Both options apply; Spark passes only one of them."""
        options = self._options
        match limit:
            case ReadMaxBytes():
                return {"max_bytes": limit.max_bytes, "max_records": options.max_offsets_per_trigger}
            case ReadMaxRows():
                return {"max_records": limit.max_rows, "max_bytes": options.max_bytes_per_trigger}
        return {}


class RefusedStreamReader(DataSourceStreamReader):
    """Raises `error` at the first call.

    PySpark 4.3.0 stops a stream's reader even if its creation failed, and reports that failure instead.
    """

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    @short_errors()
    def initialOffset(self) -> Offset:  # noqa: N802
        raise self._error

    @short_errors()
    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        raise self._error

    @short_errors()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        raise self._error

    @short_errors()
    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        raise self._error


class CheckpointError(PipelineError):
    """A checkpoint whose content is not an offset of this source."""


def _begin(listing: LogListing) -> int:
    return listing.segments[0].base_offset if listing.segments else 0
