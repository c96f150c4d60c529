"""The rows of one split as Spark requires them: Arrow batches with exactly the given schema."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.arrays.java_text import malformed_rows
from commitlogfs.pipeline.arrays.record_crcs import wrong_body_crcs
from commitlogfs.pipeline.bodies.body_options import AS_STORED, BodyOptions
from commitlogfs.pipeline.bodies.messages import Messages, Unreadable, messages_of
from commitlogfs.pipeline.log.errors import DamagedLogError, SegmentGoneError
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.columns import TEXT, Projection
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
    bodies: BodyOptions = AS_STORED

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Raises DamagedLogError (FAILFAST), SegmentGoneError, AmbiguousSplitError, LocationError."""
        return self._gathered(self._guarded(split))

    def _guarded(self, split: Split) -> Iterator[pa.RecordBatch]:
        malformed = _MalformedTexts(split.segment.name)
        try:
            for part in scan_split(split, self.mode):
                yield from self._skipped(part) if isinstance(part, Damage) else self._rows(part, malformed)
        except SegmentGoneError as error:
            report_loss(error, fail=self.fail_on_data_loss)
        finally:
            malformed.report()

    def _rows(self, chunk: Chunk, malformed: "_MalformedTexts") -> Iterator[pa.RecordBatch]:
        fields = record_fields(chunk.data, chunk.positions)
        selection = self.filter.select(chunk.data, fields)
        if selection is not None:
            fields = fields.of_rows(selection)
        if self.check_crc and self._needs_bodies:
            wrong = wrong_body_crcs(chunk.data, fields)
            if len(wrong):
                for row in wrong.tolist():
                    damaged = Unreadable(int(fields.physical_offset[row]), int(fields.total_size[row]), _CRC_REASON)
                    yield from self._unreadable(damaged, chunk)
                fields = fields.of_rows(np.setdiff1d(np.arange(len(fields.total_size)), wrong))
        if not len(fields.total_size):
            return
        projection = Projection(self._names, decompressed=self.bodies.decompress)
        for part in messages_of(chunk.data, fields, self._what_to_do):
            if isinstance(part, Unreadable):
                yield from self._unreadable(part, chunk)
            else:
                if TEXT in self.schema.names:
                    malformed.note(part)
                yield self._complete(projection.batch_of(part, chunk.segment))

    @property
    def _names(self) -> list[str]:
        return [name for name in self.schema.names if name != DAMAGE_COLUMN]

    @property
    def _needs_bodies(self) -> bool:
        return "body" in self.schema.names or TEXT in self.schema.names

    @property
    def _what_to_do(self) -> BodyOptions:
        wants = TEXT in self.schema.names or (self.bodies.decompress and "body" in self.schema.names)
        return replace(self.bodies, decompress=wants)

    def _unreadable(self, record: Unreadable, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if self.mode is DamageMode.FAILFAST:
            raise DamagedLogError.at(chunk.segment.name, record.offset, record.reason)
        yield from self._skipped(Damage(record.offset, record.length, record.reason, chunk.segment.name))

    def _skipped(self, damage: Damage) -> Iterator[pa.RecordBatch]:
        if DAMAGE_COLUMN not in self.schema.names:
            report_damage(damage)
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


class _MalformedTexts:
    """The bodies of a split that are not UTF-8: one warning for all, as most bodies of a topic may be no text."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self._first: int | None = None
        self._bad = self._all = 0

    def note(self, messages: Messages) -> None:
        """`messages` have decompressed bodies."""
        assert messages.bodies is not None
        rows = malformed_rows(*messages.bodies)
        self._all += len(messages.fields.total_size)
        self._bad += len(rows)
        if len(rows) and self._first is None:
            self._first = int(messages.fields.physical_offset[rows[0]])

    def report(self) -> None:
        if self._first is not None:
            _logger.warning(
                "segment %s, log offset %d: the body is not UTF-8, as %d of %d bodies here; text has U+FFFD there",
                *(self._segment, self._first, self._bad, self._all),
            )


def report_damage(damage: Damage) -> None:
    """In the log, where no row can show it."""
    _logger.warning(
        "segment %s, log offset %d: %d bytes skipped: %s",
        *(damage.segment, damage.offset, damage.length, damage.reason),
    )


def report_loss(error: SegmentGoneError, *, fail: bool) -> None:
    """In the log. Raises SegmentGoneError if it is to `fail`."""
    if fail:
        raise SegmentGoneError(f"{error}; failOnDataLoss=false reads the rest") from None
    _logger.warning("lost: %s", error)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
