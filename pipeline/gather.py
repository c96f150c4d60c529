"""Copying many short ranges out of one buffer into another. Compiled."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from commitlogfs.pipeline.compiled import Scalar, compiled
from commitlogfs.pipeline.walk import Bytes, Longs

Ints = npt.NDArray[np.int32]

_MOST_BYTES = 2**31 - 1


def gather(data: Bytes, starts: Longs, lengths: Longs) -> tuple[Bytes, Ints]:
    """The ranges one after the other, and len + 1 offsets into that, as Arrow has them. Below 0 counts as 0.

    Raises ValueError for 2 GiB and more, which no chunk of a segment has.
    """
    offsets = np.empty(len(starts) + 1, np.int32)
    total = _offsets(lengths, offsets)
    if total > _MOST_BYTES:
        raise ValueError(f"{total:,} bytes are too many for one Arrow array")
    out = np.empty(total, np.uint8)
    _copy_all(data, starts, out, offsets)
    return out, offsets


def _memcpy(typingctx: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, length = arguments
        to = context.make_array(signature.args[0])(context, builder, target).data
        of = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(builder, builder.gep(to, [target_at]), builder.gep(of, [source_at]), length, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


_copy = cast("Callable[[Bytes, int, Bytes, int, int], None]", intrinsic(_memcpy))
"""A loop over a few dozen bytes costs several times as much."""


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
        _copy(out, at, data, starts[row], offsets[row + 1] - at)
