"""Copies many short ranges of one buffer into another. Compiled."""

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import SLACK, copy_text

_MOST_BYTES = 2**31 - 1


def gather(data: Bytes, starts: Longs, lengths: Longs) -> tuple[Bytes, Ints]:
    """The ranges one after the other, and len + 1 offsets into them, as in Arrow. A length below 0 counts as 0.

    Raises ValueError for 2 GiB or more; no chunk of a segment has so much.
    """
    offsets = np.empty(len(starts) + 1, np.int32)
    total = _offsets(lengths, offsets)
    if total > _MOST_BYTES:
        raise ValueError(f"{total:,} bytes are too many for one Arrow array")
    out = np.empty(total + SLACK, np.uint8)
    _copy_all(data, starts, out, offsets)
    return out[:total], offsets


@compiled
def _offsets(lengths: Longs, offsets: Ints) -> Scalar:
    total = 0
    offsets[0] = 0
    for row in range(lengths.size):
        total += max(lengths[row], 0)
        offsets[row + 1] = total
    return total


@compiled
def _copy_all(data: Bytes, starts: Longs, out: Bytes, offsets: Ints) -> None:
    for row in range(starts.size):
        at: Scalar = np.int64(offsets[row])
        copy_text(out, at, data, starts[row], offsets[row + 1] - at)
