"""Counts the records of splits by some keys, over whole buffers and without making rows.

A compiled loop adds up; only the keys of distinct groups become Python values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Longs
from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.group_keys import GroupKey, Value, grouped
from commitlogfs.pipeline.source.selection import RecordFilter


class Figures(NamedTuple):
    """Figures of at least one message."""

    messages: int
    stored_bytes: int
    body_bytes: int
    largest_bytes: int
    """Size of the largest message, as stored."""
    first_ms: int
    """Earliest store time."""
    last_ms: int

    def __or__(self, other: "Figures") -> "Figures":
        """The sum of both."""
        return Figures(
            self.messages + other.messages,
            self.stored_bytes + other.stored_bytes,
            self.body_bytes + other.body_bytes,
            max(self.largest_bytes, other.largest_bytes),
            min(self.first_ms, other.first_ms),
            max(self.last_ms, other.last_ms),
        )


Values = tuple[Value, ...]
"""Those of the keys, in their order."""


@dataclass(slots=True)
class Tally:
    """Picklable."""

    figures: dict[Values, Figures] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)

    def add(self, key: Values, figures: Figures) -> None:
        known = self.figures.get(key)
        self.figures[key] = figures if known is None else known | figures

    def merge(self, other: "Tally") -> None:
        for key, figures in other.figures.items():
            self.add(key, figures)
        self.damages += other.damages


def tally_splits(
    splits: Iterable[Split], mode: DamageMode, keys: Sequence[GroupKey], only: RecordFilter | None
) -> Tally:
    """Counts all records of `splits`, or `only` some of them. Raises the errors of `scan_split`."""
    tally = Tally()
    for split in splits:
        for part in scan_split(split, mode):
            if isinstance(part, Damage):
                tally.damages.append(part)
            else:
                _count(part, keys, only, tally)
    return tally


def _count(chunk: Chunk, keys: Sequence[GroupKey], only: RecordFilter | None, tally: Tally) -> None:
    fields = record_fields(chunk.data, chunk.positions)
    selection = None if only is None else only.select(chunk.data, fields)
    if selection is not None:
        if not len(selection):
            return
        fields = fields.of_rows(selection)
    groups, found = grouped(keys, chunk.data, fields)
    sums = np.zeros((len(found), len(Figures._fields)), np.int64)
    _add_up(groups, fields.total_size, fields.body_length, fields.store_ms, sums)
    for values, row in zip(found, sums.tolist(), strict=True):
        tally.add(values, Figures(*row))


@compiled
def _add_up(groups: Longs, sizes: Longs, bodies: Longs, stored_ms: Longs, sums: Longs) -> None:
    """Adds up rows; `groups` are the row numbers of `sums`."""
    for row in range(groups.size):
        group = groups[row]
        time = stored_ms[row]
        if sums[group, 0] == 0:
            sums[group, 4] = time
            sums[group, 5] = time
        sums[group, 0] += 1
        sums[group, 1] += sizes[row]
        sums[group, 2] += bodies[row]
        sums[group, 3] = max(sums[group, 3], sizes[row])
        sums[group, 4] = min(sums[group, 4], time)
        sums[group, 5] = max(sums[group, 5], time)
