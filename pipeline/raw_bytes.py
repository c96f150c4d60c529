"""Raw bytes as numbers, one machine load each. Compiled, and inlined wherever records are read: see `compiled`.

`at` is neither checked nor wrapped: the caller has proven that the bytes are there.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from commitlogfs.pipeline.compiled import Scalar, compiled

Bytes = npt.NDArray[np.uint8]


def _loader(bits: int, *, swapped: bool, signed: bool) -> Callable[[Bytes, int], int]:
    """load(data, at) -> the number of `bits` there: int64 and big-endian where `swapped`, else uint64."""

    def load(typingctx: Any, data: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            place = builder.bitcast(builder.gep(base, [arguments[1]]), ir.IntType(bits).as_pointer())
            value = builder.load(place, align=1)
            if swapped:
                value = builder.bswap(value)
            if bits < 64:
                value = (builder.sext if signed else builder.zext)(value, ir.IntType(64))
            return value

        return (types.int64 if swapped else types.uint64)(data, types.int64), generate

    return cast("Callable[[Bytes, int], int]", intrinsic(load))


i16 = _loader(16, swapped=True, signed=True)
i32 = _loader(32, swapped=True, signed=True)
i64 = _loader(64, swapped=True, signed=True)
u32 = _loader(32, swapped=True, signed=False)
word = _loader(64, swapped=False, signed=False)
"""Eight bytes as they lie, the first one lowest."""


def _lowest_bit(typingctx: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


lowest_bit = cast("Callable[[Any], int]", intrinsic(_lowest_bit))
"""Index of the lowest bit that is set in a number other than 0."""


@compiled
def is_same(data: Bytes, one: Scalar, other: Scalar, length: Scalar) -> bool:
    """Whether the `length` bytes at `one` and at `other` are equal."""
    done = 0
    while length - done >= 8:
        if word(data, one + done) != word(data, other + done):
            return False
        done += 8
    while done < length:
        if data[one + done] != data[other + done]:
            return False
        done += 1
    return True


@compiled
def put(data: Bytes, at: Scalar, value: Scalar, width: Scalar) -> None:
    """The lowest `width` bytes of `value`, big-endian."""
    for index in range(width):
        data[at + index] = (value >> (8 * (width - 1 - index))) & 0xFF
