"""An output of `export` as the source of a replay: its finished ranges, each merged from its files.

A range has a file or more for each topic and day, and each file has its rows in the order of the log. All files
that overlap are open at once; a part of each is in memory, less the more files there are.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.pipeline.arrays.array_types import Longs
from commitlogfs.pipeline.bodies.compression import BodyError
from commitlogfs.pipeline.jobs.export_directory import (
    FORMAT,
    ExportDirectory,
    FinishedFile,
    FinishedRange,
    partition_values,
)
from commitlogfs.pipeline.log.errors import DamagedLogError, LocationError, PipelineError, os_reason
from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.pipeline.log.locations import absolute_place, split_places
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.log.scanner import Damage
from commitlogfs.pipeline.replay.frames import COLUMNS, Row, rows_of
from commitlogfs.pipeline.replay.source import Range, first_offset, other_log, past_end
from commitlogfs.pipeline.replay.stored_bodies import messages_in
from commitlogfs.pipeline.source.columns import ALL_COLUMNS
from commitlogfs.pipeline.source.group_keys import DAY_MS
from commitlogfs.pipeline.source.options import Edge, ReadOptions
from commitlogfs.pipeline.source.selection import RecordFilter
from commitlogfs.store.gaps import uncovered

NEEDED: Final = (*COLUMNS, "sysFlag")
_OPTIONAL: Final = "segment"
"""Only reports of damage have it."""
_SCHEMA: Final = pa.schema([ALL_COLUMNS.field(name) for name in (*NEEDED, _OPTIONAL)])
_UNDECIDED: Final = (0b0100, 0b1100)
"""Transaction bits of sysFlag: prepared, rolled back."""
_TRANSACTION_BITS: Final = 0b1100
_HELD_BYTES: Final = 64 << 20
"""Size of the rows of all open files together that are in memory at once, by the average size of a row."""
_MOST_ROWS: Final = 1000
"""Most rows of one file in memory, and of a batch of the merge."""
_READ_BYTES: Final = (16 << 10, 1 << 20)
"""Smallest and largest read of a column."""


@dataclass(frozen=True, slots=True)
class Export:
    """A directory with an export. `settings` are those of all its runs."""

    directory: ExportDirectory
    settings: dict[str, Any]

    @classmethod
    def find(cls, path: str) -> Self | None:
        """The export at this location; None if none is there. Raises LocationError."""
        places = split_places(path)
        if len(places) != 1:
            return None
        directory = ExportDirectory(absolute_place(places[0]))
        settings = directory.settings()
        return None if settings is None else cls(directory, settings)

    @property
    def place(self) -> str:
        return self.directory.place

    def require_usable(self, options: ReadOptions) -> None:
        """Raises RefusedError if the rows have not all that a message has, or not the messages of `options`."""
        if self.settings.get("format") != FORMAT:
            raise RefusedError(f"{self.place}: was exported by another version of commitlogfs; use that version")
        columns = {*self.settings["columns"], *self.settings["partition_by"]}
        self.require_columns([name for name in NEEDED if name not in columns])
        topics = self.settings["topic"]
        for topic in sorted(options.topics or ()):
            if topics is not None and topic not in topics:
                raise UsageError(
                    f"--topic {topic}: was not exported to {self.place}; choose from {', '.join(topics)}"
                )

    def require_columns(self, missing: Sequence[str]) -> None:
        """Raises RefusedError if columns are `missing`."""
        if missing:
            raise RefusedError(
                f"{self.place}: was exported without {', '.join(missing)}, and a replay needs "
                f"{', '.join(NEEDED)}; export these columns to another output, or name the log itself"
            )


@dataclass(slots=True)
class ExportSource:
    """The part of an export that is left to send."""

    export: Export
    options: ReadOptions
    finished: Sequence[FinishedRange]
    ranges: Sequence[Range]
    """The part of each finished range that is left."""
    damages: list[Damage]
    fingerprints: Sequence[Fingerprint]
    """Those of all finished ranges, in ascending order."""

    @classmethod
    def plan(
        cls, export: Export, options: ReadOptions, position: int | None, last: Fingerprint | None = None
    ) -> Self:
        """The finished ranges from `position` on, which earlier runs have reached; `last`: what they found before
        it.

        Raises RefusedError, LocationError, UsageError, DataLossError for a gap between ranges, DamagedLogError for
        damage that the export has skipped (FAILFAST).
        """
        export.require_usable(options)
        finished = export.directory.finished()
        if not finished:
            raise LocationError(f"{export.place}: has no finished range; run the export again")
        fingerprints = _fingerprints(finished)
        if last is not None and last not in fingerprints:
            raise RefusedError(other_log(export.place, position))
        start, end = _bounds(export, finished, options, position)
        for lost_from, lost_to in uncovered(start, end, ((one.start, one.end) for one in finished)):
            raise DataLossError(
                f"log offsets {lost_from} to {lost_to}: not in the export {export.place}; export them, or send "
                f"what lies before them with --ending-offsets {lost_from}"
            )
        damages = [damage for one in finished for damage in one.damages if start <= damage.offset < end]
        if damages and not options.permissive:
            raise DamagedLogError.at(damages[0].segment, damages[0].offset, damages[0].reason)
        left = [one for one in finished if one.start < end and one.end > start]
        ranges = [(max(start, one.start), min(end, one.end)) for one in left]
        return cls(export, options, left, ranges, damages, fingerprints)

    def fingerprint(self, offset: int) -> Fingerprint | None:
        index = bisect_left(self.fingerprints, offset, key=lambda one: one.offset)
        return self.fingerprints[index - 1] if index else None

    def rows(self) -> Iterator[Row]:
        is_decompressed = bool(self.export.settings.get("decompress"))
        for batch in self._batches():
            flags, segments = (batch.column(name).to_pylist() for name in ("sysFlag", _OPTIONAL))
            for row, sys_flag, segment in zip(rows_of(batch), flags, segments, strict=True):
                try:
                    yield from messages_in(
                        row, sys_flag, is_decompressed=is_decompressed, limit=self.options.bodies.limit
                    )
                except BodyError as error:
                    damage = Damage(row.offset, row.size, str(error), segment or "unknown")
                    if not self.options.permissive:
                        raise DamagedLogError.at(damage.segment, damage.offset, damage.reason) from None
                    self.damages.append(damage)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        selection = _Selection(self.options)
        for one, bounds in zip(self.finished, self.ranges, strict=True):
            files = [file for file in one.files if selection.may_be_in(file)]
            share = _HELD_BYTES // max(1, len(files))
            yield from _merged([_File(self.export, file, bounds, selection, share) for file in files])


def _fingerprints(finished: Sequence[FinishedRange]) -> list[Fingerprint]:
    return sorted((fingerprint for one in finished for fingerprint in one.log), key=lambda one: one.offset)


def _bounds(export: Export, finished: Sequence[FinishedRange], options: ReadOptions, position: int | None) -> Range:
    last = finished[-1].end
    end = last if isinstance(options.end, Edge) else min(last, options.end)
    start = first_offset(options, position)
    if isinstance(start, Edge):
        return finished[0].start, end
    if start > last:
        if start == position:
            raise RefusedError(past_end(export.place, position))
        raise LocationError(f"{export.place}: the export ends at {last}, before startingOffsets = {start}")
    return start, end


# --- selection -------------------------------------------------------------------------------------------


class _Selection:
    """The rows that a replay of the log itself would read."""

    def __init__(self, options: ReadOptions) -> None:
        self._filter = RecordFilter.of(options)
        self._start_ms, self._end_ms = options.start_ms, options.end_ms

    def may_be_in(self, file: FinishedFile) -> bool:
        """Whether the names of the directories above a file leave it possible that it has selected rows."""
        values = partition_values(file.path)
        if "topic" in values and not self._filter.selects_topic((values["topic"] or "").encode()):
            return False
        day = values.get("date")
        if day is None:
            return True
        first_ms = (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY_MS
        too_late = self._end_ms is not None and first_ms >= self._end_ms
        return not too_late and (self._start_ms is None or first_ms + DAY_MS > self._start_ms)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        bits = pc.bit_wise_and(batch.column("sysFlag"), _TRANSACTION_BITS)
        selected = pc.invert(pc.is_in(bits, pa.array(_UNDECIDED, pa.int32())))
        topics = [topic for topic in batch.column("topic").unique() if self._selects(topic)]
        selected = pc.and_(selected, pc.is_in(batch.column("topic"), pa.array(topics, pa.string())))
        stored = batch.column("storeTimestamp")
        if self._start_ms is not None:
            selected = pc.and_(selected, pc.greater_equal(stored, _time(self._start_ms)))
        if self._end_ms is not None:
            selected = pc.and_(selected, pc.less(stored, _time(self._end_ms)))
        return batch.filter(selected)

    def _selects(self, topic: pa.Scalar) -> bool:
        return self._filter.selects_topic(topic.as_py().encode())


def _time(milliseconds: int) -> pa.Scalar:
    return pa.scalar(min(milliseconds, (2**63 - 1) // 1000) * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


# --- files -----------------------------------------------------------------------------------------------


class _File:
    """The selected rows of one file, in the order of the log. It is open from `open` to its last row."""

    def __init__(
        self, export: Export, file: FinishedFile, bounds: Range, selection: _Selection, held_bytes: int
    ) -> None:
        self._export, self._file, self._bounds, self._selection = export, file, bounds, selection
        self._held_bytes = held_bytes
        self._batch: pa.RecordBatch | None = None
        self._offsets: Longs = np.empty(0, np.int64)
        with self._errors(), self._opened() as opened:
            self._metadata = opened.metadata
        if self._metadata.num_rows != file.rows:
            raise PipelineError(f"{self._name}: has {self._metadata.num_rows} rows instead of {file.rows}")
        names = self._metadata.schema.to_arrow_schema().names
        values = partition_values(file.path)
        self._topic = None if "topic" in names or "topic" not in values else values["topic"] or ""
        self._columns = [name for name in _SCHEMA.names if name in names]
        absent = {*NEEDED} - {*names} - ({"topic"} if self._topic is not None else set())
        export.require_columns([name for name in NEEDED if name in absent])
        self._groups, first = self._row_groups()
        self.first: float = first
        """Log offset of the first row that is left, or a lower bound of it before the file is open."""
        self.last: float = inf
        """Log offset of the last row that is in memory."""
        self._batches = self._read()

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def _name(self) -> str:
        return f"{self._export.place}: {self.path}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DataLossError(
                f"{self._name}: does not exist, though its range is finished; export the range again"
            ) from None
        except (OSError, pa.ArrowException) as error:
            reason = os_reason(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
            raise LocationError(f"{self._name}: cannot be read ({reason})") from None

    @contextmanager
    def _opened(self, metadata: parquet.FileMetaData | None = None) -> Iterator[parquet.ParquetFile]:
        smallest, largest = _READ_BYTES
        read_bytes = min(max(self._held_bytes // len(_SCHEMA), smallest), largest)
        with (
            self._export.directory.open_file(self._file.path) as stream,
            parquet.ParquetFile(stream, metadata=metadata, buffer_size=read_bytes, pre_buffer=False) as file,
        ):
            yield file

    def _row_groups(self) -> tuple[list[int], float]:
        """The row groups that may have rows inside the bounds, and a lower bound of their log offsets."""
        column = self._metadata.schema.names.index("commitLogOffset")
        groups, first = [], inf
        for number in range(self._metadata.num_row_groups):
            statistics = self._metadata.row_group(number).column(column).statistics
            low, high = (0, inf) if statistics is None else (statistics.min, statistics.max)
            if low < self._bounds[1] and high >= self._bounds[0]:
                groups.append(number)
                first = min(first, low)
        return groups, first

    def open(self) -> None:
        self._next()

    @property
    def is_done(self) -> bool:
        """Whether no row is left; the file is closed then."""
        return self._batch is None

    def take(self, bound: float) -> pa.RecordBatch:
        """The rows in memory up to a log offset, removed. There must be one."""
        assert self._batch is not None
        count = int(np.searchsorted(self._offsets, bound, side="right"))
        part = self._batch.slice(0, count)
        if count < len(self._offsets):
            self._batch, self._offsets = self._batch.slice(count), self._offsets[count:]
            self.first = int(self._offsets[0])
        else:
            self._next()
        return part

    def _next(self) -> None:
        with self._errors():
            self._batch = next(self._batches, None)
        if self._batch is not None:
            self._offsets = _offsets(self._batch)
            self.first, self.last = int(self._offsets[0]), int(self._offsets[-1])

    def _read(self) -> Iterator[pa.RecordBatch]:
        size = sum(self._metadata.row_group(number).total_byte_size for number in self._groups)
        rows = sum(self._metadata.row_group(number).num_rows for number in self._groups)
        count = max(1, min(_MOST_ROWS, self._held_bytes * rows // max(size, 1)))
        with self._opened(self._metadata) as file:
            last = -1
            for batch in file.iter_batches(count, row_groups=self._groups, columns=self._columns):
                offsets = _offsets(batch)
                if (np.diff(offsets, prepend=last) <= 0).any():
                    raise PipelineError(f"{self._name}: is not in the order of the log; export its range again")
                last = int(offsets[-1])
                begin, end = np.searchsorted(offsets, self._bounds).tolist()
                selected = self._selection.of(self._complete(batch.slice(begin, end - begin)))
                if selected.num_rows:
                    yield selected

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with all columns, of which some are not in the file."""
        absent = {
            "topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), batch.num_rows),
            _OPTIONAL: lambda: pa.nulls(batch.num_rows, pa.string()),
        }
        arrays = [batch.column(name) if name in self._columns else absent[name]() for name in _SCHEMA.names]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _offsets(batch: pa.RecordBatch) -> Longs:
    offsets: Longs = batch.column("commitLogOffset").to_numpy(zero_copy_only=False)
    return offsets


def _merged(files: Sequence[_File]) -> Iterator[pa.RecordBatch]:
    """The rows of all files in the order of the log. A file is open only while the merge is inside it."""
    waiting = sorted(files, key=lambda file: file.first, reverse=True)
    by_first: list[tuple[float, str, _File]] = []
    by_last: list[tuple[float, str, _File]] = []
    while waiting or by_first:
        # Files that begin before `bound` are open, and all of their rows up to there are in memory.
        bound = by_last[0][0] if by_last else inf
        while waiting and waiting[-1].first <= bound:
            file = waiting.pop()
            file.open()
            if not file.is_done:
                heappush(by_first, (file.first, file.path, file))
                heappush(by_last, (file.last, file.path, file))
                bound = by_last[0][0]
        parts = []
        while by_first and by_first[0][0] <= bound:
            file = heappop(by_first)[-1]
            parts.append(file.take(bound))
            if not file.is_done:
                heappush(by_first, (file.first, file.path, file))
        while by_last and by_last[0][0] <= bound:
            file = heappop(by_last)[-1]
            if not file.is_done:
                heappush(by_last, (file.last, file.path, file))
        if parts:
            yield from _in_order(parts)


def _in_order(parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    whole = pa.concat_batches(parts)
    if len(parts) > 1:
        whole = whole.take(pc.sort_indices(whole.column("commitLogOffset")))
    return (whole.slice(begin, _MOST_ROWS) for begin in range(0, whole.num_rows, _MOST_ROWS))
