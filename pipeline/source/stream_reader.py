"""Reads the log as a stream: the range of each trigger, and its splits.

An offset is {"offset": log offset of the next record}. It is always where a record begins, or where the log ended:
the broker begins its next record there. So the same range gives the same rows whenever it is read.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.log.losses import DataLossError, require_beginning, require_complete, require_places
from commitlogfs.pipeline.log.mount_status import NotServed
from commitlogfs.pipeline.log.seek import advance, first_place, offset_of_time, survey
from commitlogfs.pipeline.log.segments import LogListing, list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.options import Edge, ReadOptions
from commitlogfs.pipeline.source.reader import LogPartition, read_partition, split_bytes
from commitlogfs.pipeline.source.rows import RowReader
from commitlogfs.pipeline.source.worker_task import short_errors
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    import pyarrow as pa

_KEY: Final = "offset"
_SEARCH_BYTES: Final = 1 << 20
"""Limit of each trigger's search for records after damage at the end. Records after a longer damaged range are
found and reported when a later segment exists."""

_logger = logging.getLogger(__name__)


class CommitlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exists on the driver as long as its query; only `read` runs elsewhere, on a copy."""

    def __init__(self, options: ReadOptions, rows: RowReader, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._rows, self._clock = options, rows, clock
        self._known_end = 0
        """End of the log at the last survey."""
        self._reported: tuple[tuple[str, ...], int | None] = ((), None)
        """Data reported as missing: locations, and the end of the last segment."""
        self._reported_not_served: tuple[NotServed, ...] = ()
        self._target: int | None = None
        """Trigger.AvailableNow: end of this run; later messages are for the next run."""

    @short_errors()
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {_KEY: self._initial()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadAllAvailable()

    @short_errors()
    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        begin = _offset_in(start)
        listing, end = self._survey(begin)
        self._require_whole(listing, end)
        if self._target is not None:
            end = min(end, self._target)
        if end <= begin:
            return {_KEY: begin}
        require_complete(listing, begin, end, fail=self._options.fail_on_data_loss, warn=False)
        reached = advance(listing, max(begin, _begin(listing)), end, **self._limits(limit))
        return {_KEY: max(begin, reached)}

    @short_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        options = self._options
        _, self._target = survey(options.path, options.segment_size, self._known_end, clock=self._clock)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        return {_KEY: self._known_end} if self._known_end else None

    @short_errors()
    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        begin, stop = _offset_in(start), _offset_in(end)
        if begin >= stop:
            return []
        listing = list_segments(self._options.path, self._options.segment_size)
        require_complete(listing, begin, stop, fail=self._options.fail_on_data_loss)
        size = split_bytes(self._options, listing, stop - begin)
        splits = plan_splits(listing, stop, start_offset=begin, exact_start=True, split_size=size)
        return [LogPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._rows, partition)

    # --- places --------------------------------------------------------------------------------------

    def _initial(self) -> int:
        options = self._options
        listing, end = survey(options.path, options.segment_size, clock=self._clock)
        self._require_whole(listing, end, from_beginning=options.start is Edge.EARLIEST)
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

    def _survey(self, begin: int) -> tuple[LogListing, int]:
        """The log from `begin` on. A log that ends before `begin` is not the log that this query has read."""
        options = self._options
        known = max(begin, self._known_end)
        search = _SEARCH_BYTES if self._target is None else None
        size, clock = options.segment_size, self._clock
        listing, end = survey(options.path, size, known, search_bytes=search, clock=clock)
        written = listing.segments[-1].end_offset if listing.segments else 0
        if begin > written:
            text = (
                f"{options.path}: the log ends at {written}, but this query has read up to log offset {begin}: it "
                "is another log, or a broker has truncated it"
            )
            if options.fail_on_data_loss:
                raise DataLossError(f"{text}; correct the path, or start with an empty checkpoint")
            if end != self._known_end:
                _logger.warning("%s; waiting until it is longer", text)
            end = begin
        self._known_end = end
        return listing, end

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
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        raise self._error

    @short_errors()
    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        raise self._error

    @short_errors()
    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        raise self._error

    @short_errors()
    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        raise self._error


class CheckpointError(PipelineError):
    """A checkpoint whose content is not an offset of this source."""


def _offset_in(position: Mapping[str, int]) -> int:
    offset = position.get(_KEY)
    if not isinstance(offset, int):
        raise CheckpointError(
            f'the checkpoint has {json.dumps(dict(position))}, not {{"{_KEY}": N}}: it belongs to another source, '
            "or is damaged; use the right one, or start with an empty one"
        )
    return offset


def _begin(listing: LogListing) -> int:
    return listing.segments[0].base_offset if listing.segments else 0
