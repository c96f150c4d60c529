"""The rows of one split as Spark requires them: Arrow batches with exactly the given schema."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from commitlogfs.pipeline.arrays.array_types import Longs
from commitlogfs.pipeline.arrays.fields import RecordFields, record_fields
from commitlogfs.pipeline.arrays.record_crcs import wrong_body_crcs
from commitlogfs.pipeline.log.errors import DamagedLogError, SegmentGoneError
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.columns import Projection
from commitlogfs.pipeline.source.selection import RecordFilter

DAMAGE_COLUMN: Final = "damage"
"""A column besides those of the log: the reason why a range was skipped. Its row has only the place besides it."""

BATCH_ROWS: Final = 10_000
"""Spark's own size of a batch (spark.sql.execution.arrow.maxRecordsPerBatch): by measurement, the JVM reads smaller
ones more slowly and larger ones no faster."""
_BATCH_BYTES: Final = 8 << 20

_CRC_REASON: Final = "the body does not match its CRC"

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RowReader:
    """Reads the splits of one query. Picklable; `read` keeps no state."""

    schema: pa.Schema
    """The schema that Spark expects: the requested columns, and possibly DAMAGE_COLUMN."""
    filter: RecordFilter
    mode: DamageMode
    check_crc: bool
    fail_on_data_loss: bool

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Raises DamagedLogError (FAILFAST), SegmentGoneError, AmbiguousSplitError, LocationError."""
        return self._gathered(self._guarded(split))

    def _guarded(self, split: Split) -> Iterator[pa.RecordBatch]:
        try:
            for part in scan_split(split, self.mode):
                yield from self._skipped(part) if isinstance(part, Damage) else self._rows(part)
        except SegmentGoneError as error:
            if self.fail_on_data_loss:
                raise SegmentGoneError(f"{error}; failOnDataLoss=false reads the rest") from None
            _logger.warning("lost: %s", error)

    def _rows(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        fields = record_fields(chunk.data, chunk.positions)
        selection = self.filter.select(chunk.data, fields)
        if self.check_crc and "body" in self.schema.names:
            wrong = _wrong_bodies(chunk, fields, selection)
            if len(wrong):
                selection = np.setdiff1d(np.arange(len(chunk.positions)) if selection is None else selection, wrong)
                yield from self._wrong(chunk, fields, wrong)
        if selection is None or len(selection):
            names = [name for name in self.schema.names if name != DAMAGE_COLUMN]
            yield self._complete(Projection(names).to_batch(chunk, fields, selection))

    def _wrong(self, chunk: Chunk, fields: RecordFields, rows: Longs) -> Iterator[pa.RecordBatch]:
        for row in rows.tolist():
            offset, length = chunk.offset + int(chunk.positions[row]), int(fields.total_size[row])
            if self.mode is DamageMode.FAILFAST:
                raise DamagedLogError.at(chunk.segment.name, offset, _CRC_REASON)
            yield from self._skipped(Damage(offset, length, _CRC_REASON, chunk.segment.name))

    def _skipped(self, damage: Damage) -> Iterator[pa.RecordBatch]:
        if DAMAGE_COLUMN not in self.schema.names:
            _logger.warning(
                "segment %s, log offset %d: %d bytes skipped: %s",
                *(damage.segment, damage.offset, damage.length, damage.reason),
            )
            return
        values: dict[str, Any] = {
            "commitLogOffset": damage.offset,
            "storeSize": min(damage.length, 2**31 - 1),
            "segment": damage.segment,
            DAMAGE_COLUMN: damage.reason,
        }
        arrays = [pa.array([values.get(field.name)], field.type) for field in self.schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            pa.nulls(batch.num_rows, field.type) if field.name == DAMAGE_COLUMN else batch.column(field.name)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Small batches merged, up to a size that fits the JVM's caches."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if waiting and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > _BATCH_BYTES):
                yield _concatenated(waiting)
                waiting, rows, size = [], 0, 0
            if batch.num_rows > BATCH_ROWS:
                yield from (batch.slice(begin, BATCH_ROWS) for begin in range(0, batch.num_rows, BATCH_ROWS))
                continue
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if waiting:
            yield _concatenated(waiting)


def _wrong_bodies(chunk: Chunk, fields: RecordFields, selection: Longs | None) -> Longs:
    if selection is None:
        return wrong_body_crcs(chunk.data, fields)
    return selection[wrong_body_crcs(chunk.data, RecordFields(*(values[selection] for values in fields)))]


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
