"""Counts the records of a split by topic and a second number, over whole buffers and without making rows.

The second number is a queue id or a day. A compiled loop adds up; only distinct topics become Python texts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Longs
from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.arrays.fields import RecordFields, record_fields
from commitlogfs.pipeline.arrays.groups import group_spans
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.selection import RecordFilter

DAY_MS: Final = 86_400_000

Second = Callable[[RecordFields], Longs]
"""Computes the second number of each record."""


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


Key = tuple[bytes, int]
"""Topic as stored, and the second number."""


@dataclass(slots=True)
class Tally:
    """Picklable."""

    figures: dict[Key, Figures] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)

    def add(self, key: Key, figures: Figures) -> None:
        known = self.figures.get(key)
        self.figures[key] = figures if known is None else known | figures

    def merge(self, other: "Tally") -> None:
        for key, figures in other.figures.items():
            self.add(key, figures)
        self.damages += other.damages


def queue_ids(fields: RecordFields) -> Longs:
    return fields.queue_id


def store_days(fields: RecordFields) -> Longs:
    """Days since 1970 (UTC) of the store times."""
    return fields.store_ms // DAY_MS


def tally_splits(splits: Iterable[Split], mode: DamageMode, second: Second, only: RecordFilter | None) -> Tally:
    """Counts all records of `splits`, or `only` some of them. Raises the errors of `scan_split`."""
    tally = Tally()
    for split in splits:
        for part in scan_split(split, mode):
            if isinstance(part, Damage):
                tally.damages.append(part)
            else:
                _count(part, second, only, tally)
    return tally


def _count(chunk: Chunk, second: Second, only: RecordFilter | None, tally: Tally) -> None:
    fields = record_fields(chunk.data, chunk.positions)
    selection = None if only is None else only.select(chunk.data, fields)
    if selection is not None:
        if not len(selection):
            return
        fields = RecordFields(*(values[selection] for values in fields))
    also = second(fields)
    groups, firsts = group_spans(chunk.data, fields.topic_start, fields.topic_length, also)
    sums = np.zeros((len(firsts), len(Figures._fields)), np.int64)
    _add_up(groups, fields.total_size, fields.body_length, fields.store_ms, sums)
    starts, lengths = fields.topic_start[firsts].tolist(), fields.topic_length[firsts].tolist()
    for start, length, number, row in zip(starts, lengths, also[firsts].tolist(), sums.tolist(), strict=True):
        tally.add((chunk.data[start : start + length].tobytes(), number), Figures(*row))


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
