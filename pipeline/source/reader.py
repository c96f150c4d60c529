"""Reads the log as a batch: its splits, and their rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from commitlogfs.pipeline.log.errors import StartPastEndError
from commitlogfs.pipeline.log.losses import require_beginning, require_complete, require_places
from commitlogfs.pipeline.log.seek import narrow_by_time, survey
from commitlogfs.pipeline.log.segments import LogListing
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES, Split, plan_splits
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.options import Edge, ReadOptions
from commitlogfs.pipeline.source.pushdown import bounds_of
from commitlogfs.pipeline.source.selection import Bounds
from commitlogfs.pipeline.source.worker_task import short_errors, worker_task
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlogfs.pipeline.source.aggregation import AggregateReader
    from commitlogfs.pipeline.source.rows import RowReader

_MOST_TASKS = 10_000
"""Above this number of tasks, splits grow: a task costs Spark's driver more than a split of default size costs a
core."""


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The part of the log that one task reads."""

    split: Split


def plan_batch(options: ReadOptions, bounds: Bounds, *, clock: Clock = SYSTEM_CLOCK) -> Sequence[Split]:
    """The splits of one query: `plan_surveyed` for the log as it is now. Raises the errors of `survey`, too."""
    listing, log_end = survey(options.path, options.segment_size, clock=clock)
    return plan_surveyed(options, bounds, listing, log_end)


def plan_surveyed(options: ReadOptions, bounds: Bounds, listing: LogListing, log_end: int) -> Sequence[Split]:
    """The splits of one query, without those that cannot hold a row of it: offsets exclude splits without opening
    them, store times after reading a few records.

    `listing`, `log_end`: as from `survey`. Raises StartPastEndError, and DataLossError: also if a location holds no
    segment, a degraded mount may leave out the beginning, or the last segment is truncated.
    """
    require_places(listing, fail=options.fail_on_data_loss)
    require_beginning(listing, fail=options.fail_on_data_loss and options.start is Edge.EARLIEST)
    start, end = _offsets(options, listing, log_end)
    require_complete(listing, start, _expected_end(options, listing, log_end), fail=options.fail_on_data_loss)
    if bounds.start_offset is not None:
        start = max(start, bounds.start_offset)
    if bounds.end_offset is not None:
        end = min(end, bounds.end_offset)
    splits = plan_splits(listing, end, start_offset=start, split_size=split_bytes(options, listing, end - start))
    return narrow_by_time(splits, bounds.start_ms, bounds.end_ms)


def split_bytes(options: ReadOptions, listing: LogListing, range_bytes: int) -> int:
    """Size of the splits of a query over `range_bytes`; at most a segment's size."""
    size = options.split_size or max(DEFAULT_SPLIT_BYTES, range_bytes // _MOST_TASKS)
    if options.min_partitions is not None:
        size = min(size, -(-range_bytes // options.min_partitions))
    return max(1, min(size, listing.segment_size))


def _offsets(options: ReadOptions, listing: LogListing, log_end: int) -> tuple[int, int]:
    end = log_end if isinstance(options.end, Edge) else min(log_end, options.end)
    match options.start:
        case Edge.LATEST:
            return end, end
        case Edge.EARLIEST:
            return (listing.segments[0].base_offset if listing.segments else 0), end
        case int(start) if start > log_end:
            raise StartPastEndError(f"{options.path}: the log ends at {log_end}, before startingOffsets = {start}")
        case start:
            return start, end


def _expected_end(options: ReadOptions, listing: LogListing, log_end: int) -> int:
    """Where the requested range should end: after `log_end` if the last segment is truncated."""
    if options.start is Edge.LATEST:
        return log_end
    expected = expected_end(listing, log_end)
    return expected if isinstance(options.end, Edge) else min(expected, options.end)


class CommitlogReader(DataSourceReader):
    """Reader for queries whose filters are given as options only."""

    def __init__(self, options: ReadOptions, rows: "RowReader | AggregateReader") -> None:
        self._options, self._rows = options, rows
        self._bounds = Bounds(start_ms=options.start_ms, end_ms=options.end_ms)

    @short_errors()
    def partitions(self) -> Sequence[InputPartition]:
        return [LogPartition(split) for split in plan_batch(self._options, self._bounds)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._rows, partition)


class PushingReader(CommitlogReader):
    """Reader for queries whose own conditions restrict what is read, too. PySpark refuses such a reader unless
    spark.sql.python.filterPushdown.enabled is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        pushed = bounds_of(filters)
        self._bounds = self._bounds.and_also(pushed)
        self._rows.filter = self._rows.filter.narrowed(pushed)
        return filters


@worker_task
def read_partition(rows: "RowReader | AggregateReader", partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The rows of one partition. PySpark passes a partition of its own class if none was planned: it has no
    rows."""
    return rows.read(partition.split) if isinstance(partition, LogPartition) else iter(())
