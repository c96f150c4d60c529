"""Reading the log as a batch: which splits there are, and their rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.losses import require_beginning, require_complete, require_places
from commitlogfs.pipeline.log.seek import narrow_by_time, survey
from commitlogfs.pipeline.log.segments import LogListing
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES, Split, plan_splits
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.options import Edge, ReadOptions
from commitlogfs.pipeline.source.pushdown import bounds_of
from commitlogfs.pipeline.source.rows import RowReader
from commitlogfs.pipeline.source.selection import Bounds
from commitlogfs.pipeline.source.worker_task import short_errors, worker_task

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_TASKS = 10_000
"""Above so many, splits grow: a task costs Spark's driver more than a split of the default size costs a core."""


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """One task's part of the log."""

    split: Split


def plan_batch(options: ReadOptions, bounds: Bounds) -> Sequence[Split]:
    """The splits of one query: what cannot hold a row of it is left out, unopened where offsets tell, and after a
    look at few records where times do. Raises what `survey` raises, and DataLossError: also where a place holds no
    segment, a degraded mount may lack the beginning, or the last segment was cut short."""
    listing, log_end = survey(options.path, options.segment_size)
    require_places(listing, fail=options.fail_on_data_loss)
    require_beginning(listing, fail=options.fail_on_data_loss and options.start is Edge.EARLIEST)
    start, end = _offsets(options, listing, log_end)
    require_complete(listing, start, _wanted_end(options, listing, log_end), fail=options.fail_on_data_loss)
    if bounds.start_offset is not None:
        start = max(start, bounds.start_offset)
    if bounds.end_offset is not None:
        end = min(end, bounds.end_offset)
    splits = plan_splits(listing, end, start_offset=start, split_size=split_bytes(options, listing, end - start))
    return narrow_by_time(splits, bounds.start_ms, bounds.end_ms)


def split_bytes(options: ReadOptions, listing: LogListing, wanted: int) -> int:
    """How large the splits of a query over `wanted` bytes are; never larger than a segment."""
    size = options.split_size or max(DEFAULT_SPLIT_BYTES, wanted // _MOST_TASKS)
    if options.min_partitions is not None:
        size = min(size, -(-wanted // options.min_partitions))
    return max(1, min(size, listing.segment_size))


def _offsets(options: ReadOptions, listing: LogListing, log_end: int) -> tuple[int, int]:
    end = log_end if isinstance(options.end, Edge) else min(log_end, options.end)
    match options.start:
        case Edge.LATEST:
            return end, end
        case Edge.EARLIEST:
            return (listing.segments[0].base_offset if listing.segments else 0), end
        case int(start) if start > log_end:
            raise LocationError(f"{options.path}: startingOffsets is {start}, but the log ends at {log_end}")
        case start:
            return start, end


def _wanted_end(options: ReadOptions, listing: LogListing, log_end: int) -> int:
    """Up to where the log ought to be: further than it is if its last segment was cut short."""
    if options.start is Edge.LATEST:
        return log_end
    expected = expected_end(listing, log_end)
    return expected if isinstance(options.end, Edge) else min(expected, options.end)


class CommitlogReader(DataSourceReader):
    """Filters come as options only."""

    def __init__(self, options: ReadOptions, rows: RowReader) -> None:
        self._options, self._rows = options, rows
        self._bounds = Bounds(start_ms=options.start_ms, end_ms=options.end_ms)

    @short_errors()
    def partitions(self) -> Sequence[InputPartition]:
        return [LogPartition(split) for split in plan_batch(self._options, self._bounds)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._rows, partition)


class PushingReader(CommitlogReader):
    """The query's own conditions narrow what is read, too. PySpark refuses such a reader unless
    spark.sql.python.filterPushdown.enabled is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        pushed = bounds_of(filters)
        self._bounds = self._bounds.and_also(pushed)
        self._rows.wanted = self._rows.wanted.narrowed(pushed)
        return filters


@worker_task
def read_partition(rows: RowReader, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """What both kinds of reader do with a partition of theirs. PySpark makes one of its own where there is none."""
    return rows.read(partition.split) if isinstance(partition, LogPartition) else iter(())
