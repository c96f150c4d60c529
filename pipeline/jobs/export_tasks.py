"""Tasks of Spark workers in an export: pack the rows of a split by file, and write files from packed rows.

A row becomes neither a Python nor a JVM object: the tasks exchange Arrow batches as bytes, some 100 KiB each.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from commitlogfs.pipeline.arrays.array_types import Longs
from commitlogfs.pipeline.bodies.body_options import BodyOptions
from commitlogfs.pipeline.jobs.export_directory import ExportDirectory
from commitlogfs.pipeline.log.errors import output_errors
from commitlogfs.pipeline.log.scanner import Damage, DamageMode
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.columns import ALL_COLUMNS
from commitlogfs.pipeline.source.group_keys import DAY_MS
from commitlogfs.pipeline.source.rows import DAMAGE_COLUMN, RowReader
from commitlogfs.pipeline.source.selection import RecordFilter
from commitlogfs.pipeline.source.worker_task import worker_task

PARTITION_SOURCES: Final = {"topic": "topic", "date": "storeTimestamp"}
"""The column from which the value of each partition comes."""
PARTITION_COLUMNS: Final = tuple(PARTITION_SOURCES)
_PACKED_BYTES: Final = 256 << 10
"""Size of the largest item: Spark and its sort hold some hundreds of items at a time."""
_HELD_BYTES: Final = 32 << 20
"""Number of rows of a split that are gathered before they are packed and sent on."""
_ROW_GROUP_BYTES: Final = 64 << 20
_NO_FILE: Final = -1
_REPEATING: Final = (
    *("topic", "queueId", "tags", "flag", "sysFlag", "bornHost", "storeHost", "reconsumeTimes"),
    *("preparedTransactionOffset", "magicCode", "segment"),
)
"""Columns that are dictionary-encoded: for bodies and keys the attempt only costs time."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Partition = tuple[str | None, int | None]
"""Topic and day since 1970; None if files are not partitioned by it, or if the time is invalid."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns and partitions of the files. Picklable."""

    columns: tuple[str, ...]
    """As requested; columns of `partition_by` are in the names of directories, not in the files."""
    partition_by: tuple[str, ...]
    compression: str
    whole_files: bool = False
    """Whether the files have the columns of `partition_by`, too, as tables of other formats need it."""

    @property
    def file_schema(self) -> pa.Schema:
        left_out = () if self.whole_files else self.partition_by
        return pa.schema([ALL_COLUMNS.field(name) for name in self.columns if name not in left_out])

    def read_schema(self, mode: DamageMode) -> pa.Schema:
        """The columns to decode, including those that locate a damaged range in PERMISSIVE mode."""
        needed = [PARTITION_SOURCES[by] for by in PARTITION_COLUMNS if by in self.partition_by]
        if mode is DamageMode.PERMISSIVE:
            needed += ["commitLogOffset", "storeSize", "segment"]
        names = self.file_schema.names
        names += [name for name in needed if name not in names]
        damage = [pa.field(DAMAGE_COLUMN, pa.string())] if mode is DamageMode.PERMISSIVE else []
        return pa.schema([*(ALL_COLUMNS.field(name) for name in names), *damage])

    def partition_of(self, topic: str, day: int) -> Partition:
        return (
            topic if "topic" in self.partition_by else None,
            day if "date" in self.partition_by and date_text(day) is not None else None,
        )

    def directory_parts(self, partition: Partition) -> list[tuple[str, str | None]]:
        values = {"topic": partition[0], "date": date_text(partition[1])}
        return [(column, values[column]) for column in self.partition_by]


def date_text(day: int | None) -> str | None:
    """ISO date; None for a day outside the calendar, which only damaged records have."""
    try:
        return None if day is None else (_EPOCH + timedelta(days=day)).date().isoformat()
    except OverflowError:
        return None


class FilePlan(NamedTuple):
    """A file to write: the rows of a partition from the splits `first_split` up to the next file's."""

    partition: Partition
    first_split: int
    number: int
    writer: int


class RowsKey(NamedTuple):
    """Sort key for the items of one writer: by file, then in the order of the log."""

    writer: int
    file: int
    split: int
    piece: int


Pair = tuple[RowsKey, "bytes | Damage"]


def writer_of(key: RowsKey) -> int:
    return key.writer


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads the splits of one export. Picklable."""

    layout: Layout
    filter: RecordFilter
    mode: DamageMode
    check_crc: bool
    bodies: BodyOptions

    def rows_of(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Raises SegmentGoneError even with failOnDataLoss=false: the driver handles it."""
        schema = self.layout.read_schema(self.mode)
        rows = RowReader(schema, self.filter, self.mode, self.check_crc, fail_on_data_loss=True, bodies=self.bodies)
        return rows.read(split)


# --- decoding --------------------------------------------------------------------------------------------


@worker_task
def pack_splits(
    numbers: Iterable[int], *, splits: Sequence[Split], reading: Reading, plans: Sequence[FilePlan]
) -> Iterator[Pair]:
    """The rows of these splits, each with its writer and file."""
    routes: dict[Partition, list[FilePlan]] = {}
    for plan in plans:
        routes.setdefault(plan.partition, []).append(plan)
    for number in numbers:
        yield from _Packer(number, reading, routes).pack(splits[number])


class _Packer:
    def __init__(self, number: int, reading: Reading, routes: Mapping[Partition, Sequence[FilePlan]]) -> None:
        self._number, self._reading, self._routes = number, reading, routes
        self._layout = reading.layout
        self._file_names = self._layout.file_schema.names
        self._held: dict[Partition, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._pieces = 0

    def pack(self, split: Split) -> Iterator[Pair]:
        for batch in self._reading.rows_of(split):
            damages, rows = _parted(batch)
            for damage in damages:
                yield RowsKey(0, _NO_FILE, self._number, self._next_piece()), damage
            self._hold(rows)
            if self._held_bytes >= _HELD_BYTES:
                yield from self._flush()
        yield from self._flush()

    def _hold(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        groups, partitions = self._partitions(batch)
        of_file = batch.select(self._file_names)
        self._held_bytes += of_file.nbytes
        if len(partitions) == 1:
            self._held.setdefault(partitions[0], []).append(of_file)
            return
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=len(partitions)))
        of_file = of_file.take(pa.array(order))
        for partition, start, end in zip(partitions, (0, *ends[:-1].tolist()), ends.tolist(), strict=True):
            self._held.setdefault(partition, []).append(of_file.slice(start, end - start))

    def _partitions(self, batch: pa.RecordBatch) -> tuple[Longs, list[Partition]]:
        """The group of each row, and the groups' partitions."""
        topics: list[str | None] = [None]
        codes = np.zeros(batch.num_rows, np.int64)
        if "topic" in self._layout.partition_by:
            encoded = batch.column("topic").dictionary_encode()
            topics, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
        days: list[int | None] = [None]
        if "date" in self._layout.partition_by:
            numbers, day_codes = np.unique(_days(batch.column("storeTimestamp")), return_inverse=True)
            days = numbers.tolist()
            codes = codes * len(days) + day_codes
        used, groups = np.unique(codes, return_inverse=True)
        pairs = [(topics[code // len(days)], days[code % len(days)]) for code in used.tolist()]
        return groups, [(topic, day if date_text(day) is not None else None) for topic, day in pairs]

    def _flush(self) -> Iterator[Pair]:
        for partition, batches in self._held.items():
            whole = pa.concat_batches(batches)
            rows = max(1, whole.num_rows * _PACKED_BYTES // max(whole.nbytes, 1))
            plan = self._plan_of(partition)
            for start in range(0, whole.num_rows, rows):
                key = RowsKey(plan.writer, plan.number, self._number, self._next_piece())
                yield key, whole.slice(start, rows).serialize().to_pybytes()
        self._held, self._held_bytes = {}, 0

    def _plan_of(self, partition: Partition) -> FilePlan:
        plans = self._routes[partition]
        return plans[bisect_right(plans, self._number, key=lambda plan: plan.first_split) - 1]

    def _next_piece(self) -> int:
        self._pieces += 1
        return self._pieces


def _days(times: pa.Array) -> Longs:
    """Days since 1970; an impossible day for a null."""
    # A timestamp is stored in microseconds.
    microseconds = times.cast(pa.int64()).fill_null(np.iinfo(np.int64).max)
    days: Longs = microseconds.to_numpy(zero_copy_only=False) // (DAY_MS * 1000)
    return days


def _parted(batch: pa.RecordBatch) -> tuple[list[Damage], pa.RecordBatch]:
    """The damaged ranges, and the rows of messages."""
    if DAMAGE_COLUMN not in batch.schema.names or batch.column(DAMAGE_COLUMN).null_count == batch.num_rows:
        return [], batch
    damage = batch.column(DAMAGE_COLUMN)
    skipped = batch.filter(damage.is_valid()).to_pylist()
    found = [
        Damage(row["commitLogOffset"], row["storeSize"], row[DAMAGE_COLUMN], row["segment"]) for row in skipped
    ]
    return found, batch.filter(damage.is_null())


# --- writing ---------------------------------------------------------------------------------------------


class FileWritten(NamedTuple):
    number: int
    path: str
    """Path of the unfinished file, below the output directory."""
    rows: int
    size: int


Written = FileWritten | Damage


@worker_task
def write_files(pairs: Iterable[Pair], *, output: str, layout: Layout) -> Iterator[Written]:
    """Writes the files of one writer from its sorted items; each is complete and on the disk, but not visible yet.

    Two attempts of a task write two files: the driver uses the one whose result it gets. Raises OutputError.
    """
    for number, of_file in groupby(pairs, lambda pair: pair[0].file):
        if number == _NO_FILE:
            yield from (item for _, item in of_file if isinstance(item, Damage))
        else:
            packed = (item for _, item in of_file if isinstance(item, bytes))
            directory = ExportDirectory(output)
            with output_errors(directory.place):
                written = _write_file(number, packed, directory, layout)
            yield written


def _write_file(number: int, packed: Iterable[bytes], directory: ExportDirectory, layout: Layout) -> FileWritten:
    schema = layout.file_schema
    path, stream = directory.new_file(str(number))
    rows = size = 0
    waiting: list[pa.RecordBatch] = []
    repeating = [name for name in schema.names if name in _REPEATING]
    with (
        stream,
        parquet.ParquetWriter(stream, schema, compression=layout.compression, use_dictionary=repeating) as writer,
    ):
        for data in packed:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if size >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, size = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    return FileWritten(number, path, rows, directory.finish_file(path))
