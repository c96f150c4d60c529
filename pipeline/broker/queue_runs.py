"""Entries of many queues, in the order of the log, sorted into one run of ready bytes for each queue. Compiled."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.arrays.raw_bytes import put
from commitlogfs.pipeline.broker.dispatch import Entries

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Entries of one queue, as ConsumeQueueFiles.feed or BatchConsumeQueueFiles.feed takes them."""

    queue: int
    entries: Bytes
    queue_offsets: int | Longs
    """Of the first, where they follow one another; of each, where not. Of no use for a queue of batches."""


def collect_runs(pieces: Sequence[Entries], batches: npt.NDArray[np.bool_]) -> Iterator[Run]:
    """`pieces` in the order of the log; `batches`: by queue number, whether it is a queue of batches."""
    if not pieces:
        return
    entries = Entries(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    widths = np.where(batches, 46, 20)
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
    batches: npt.NDArray[np.bool_],
    next_row: Longs,
    next_byte: Longs,
    out: Bytes,
    sorted_offsets: Longs,
    follows: npt.NDArray[np.bool_],
    furthest: Longs,
) -> None:
    """`next_row`, `next_byte`: where each queue's rows begin in `sorted_offsets`, its entries in `out`. `follows`
    becomes False where a queue's entries do not follow one another, by queue offset and in the log."""
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
        put(out, at + 8, sizes[i], 4)
        put(out, at + 12, tags_codes[i], 8)
        if batches[queue]:
            put(out, at + 20, times_ms[i], 8)
            put(out, at + 28, queue_offsets[i], 8)
            put(out, at + 36, counts[i], 2)
            put(out, at + 38, -1, 4)
            put(out, at + 42, 0, 4)
            next_byte[queue] = at + 46
        else:
            next_byte[queue] = at + 20
