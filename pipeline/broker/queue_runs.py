"""Sorts entries of many queues, in the order of the log, into one run of ready bytes for each queue. Compiled."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bools, Bytes, Longs
from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.arrays.raw_bytes import put
from commitlogfs.pipeline.broker.dispatch import Entries
from commitlogfs.pipeline.broker.queue_entry import (
    BATCH_ENTRY_BYTES,
    BATCH_REST,
    COUNT_AT,
    ENTRY_BYTES,
    QUEUE_OFFSET_AT,
    REST_AT,
    SIZE_AT,
    TAGS_CODE_AT,
    TIME_MS_AT,
)


class Run(NamedTuple):
    """Entries of one queue, as required by ConsumeQueueFiles.feed or BatchConsumeQueueFiles.feed."""

    queue: int
    entries: Bytes
    queue_offsets: int | Longs
    """Queue offset of the first entry if they follow one another, otherwise of each; unused for a queue of
    batches."""


def collect_runs(pieces: Sequence[Entries], batches: Bools) -> Iterator[Run]:
    """`pieces` in the order of the log; `batches`: by queue number, whether it is a queue of batches."""
    if not pieces:
        return
    entries = Entries(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    widths = np.where(batches, BATCH_ENTRY_BYTES, ENTRY_BYTES)
    counts = np.bincount(entries.queues, minlength=batches.size)
    ends = np.cumsum(counts)
    byte_ends = np.cumsum(counts * widths)
    out = np.empty(int(byte_ends[-1]) if byte_ends.size else 0, np.uint8)
    queue_offsets = np.empty(entries.queues.size, np.int64)
    follows = np.ones(batches.size, np.bool_)
    _sort(
        entries.queues,
        entries.queue_offsets,
        entries.offsets,
        entries.sizes,
        entries.tags_codes,
        entries.times_ms,
        entries.counts,
        batches,
        ends - counts,
        byte_ends - counts * widths,
        out,
        queue_offsets,
        follows,
        np.full(batches.size, -1, np.int64),
    )
    for queue in np.flatnonzero(counts):
        chosen = queue_offsets[ends[queue] - counts[queue] : ends[queue]]
        data = out[byte_ends[queue] - counts[queue] * widths[queue] : byte_ends[queue]]
        yield Run(int(queue), data, int(chosen[0]) if follows[queue] else chosen)


@compiled
def _sort(
    queues: Longs,
    queue_offsets: Longs,
    offsets: Longs,
    sizes: Longs,
    tags_codes: Longs,
    times_ms: Longs,
    counts: Longs,
    batches: Bools,
    next_row: Longs,
    next_byte: Longs,
    out: Bytes,
    sorted_offsets: Longs,
    follows: Bools,
    furthest: Longs,
) -> None:
    """`next_row`, `next_byte`: where each queue's rows begin in `sorted_offsets`, its entries in `out`. Sets
    `follows` to False for a queue whose entries do not follow one another, by queue offset and in the log."""
    begun = np.zeros(batches.size, np.bool_)
    for i in range(queues.size):
        queue = queues[i]
        row = next_row[queue]
        at = next_byte[queue]
        next_row[queue] = row + 1
        end = offsets[i] + sizes[i]
        if begun[queue] and (queue_offsets[i] != sorted_offsets[row - 1] + 1 or end <= furthest[queue]):
            follows[queue] = False
        begun[queue] = True
        furthest[queue] = max(furthest[queue], end)
        sorted_offsets[row] = queue_offsets[i]
        put(out, at, offsets[i], 8)
        put(out, at + SIZE_AT, sizes[i], 4)
        put(out, at + TAGS_CODE_AT, tags_codes[i], 8)
        if batches[queue]:
            put(out, at + TIME_MS_AT, times_ms[i], 8)
            put(out, at + QUEUE_OFFSET_AT, queue_offsets[i], 8)
            put(out, at + COUNT_AT, counts[i], 2)
            put(out, at + REST_AT, BATCH_REST, 8)
            next_byte[queue] = at + BATCH_ENTRY_BYTES
        else:
            next_byte[queue] = at + ENTRY_BYTES
