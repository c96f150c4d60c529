"""Rows of an aggregation: one for each group of a split, so that hardly anything leaves the worker."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from commitlogfs.pipeline.log.errors import SegmentGoneError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.group_keys import GroupKey, Kind, Value
from commitlogfs.pipeline.source.rows import report_damage, report_loss
from commitlogfs.pipeline.source.selection import RecordFilter
from commitlogfs.pipeline.source.tally import Figures, Tally, tally_splits

_MS: Final = 1000


@dataclass(slots=True)
class AggregateReader:
    """Reads the splits of one query. Picklable; `read` keeps no state."""

    schema: pa.Schema
    """As Spark expects it: the columns of the keys, then messages, bytes, first and last."""
    keys: tuple[GroupKey, ...]
    filter: RecordFilter
    mode: DamageMode
    fail_on_data_loss: bool

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Raises DamagedLogError (FAILFAST), SegmentGoneError, AmbiguousSplitError, LocationError."""
        try:
            tally = tally_splits([split], self.mode, self.keys, self.filter)
        except SegmentGoneError as error:
            report_loss(error, fail=self.fail_on_data_loss)
            return
        for damage in tally.damages:
            report_damage(damage)
        if tally.figures:
            yield self._batch(tally)

    def _batch(self, tally: Tally) -> pa.RecordBatch:
        columns: list[Sequence[Any]] = [
            [_shown(key, values[place]) for values in tally.figures] for place, key in enumerate(self.keys)
        ]
        columns += [[_FIGURES[name](figures) for figures in tally.figures.values()] for name in _FIGURES]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


_FIGURES: Final[dict[str, Callable[[Figures], int]]] = {
    "messages": lambda figures: figures.messages,
    "bytes": lambda figures: figures.stored_bytes,
    "first": lambda figures: figures.first_ms * _MS,
    "last": lambda figures: figures.last_ms * _MS,
}


def _shown(key: GroupKey, value: Value) -> str | int | None:
    """As the column has it: times in microseconds."""
    shown = key.readable(value)
    return shown * _MS if isinstance(shown, int) and key.kind is Kind.TIME else shown
