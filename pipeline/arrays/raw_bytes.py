"""Reads raw bytes as numbers, one machine load each. Compiled, and inlined into callers: see `compiled`.

`at` is neither checked nor wrapped: the caller has checked that the bytes exist.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from commitlogfs.pipeline.arrays.array_types import Bytes
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled


def _loader(bits: int, *, swapped: bool, signed: bool) -> Callable[[Bytes, int], int]:
    """load(data, at) -> the `bits`-bit number at `at`: int64, read as big-endian if `swapped`; else uint64."""

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
"""Eight bytes, the first one lowest."""


def _lowest_bit(typingctx: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


lowest_bit = cast("Callable[[Any], int]", intrinsic(_lowest_bit))
"""Index of the lowest set bit of a number other than 0."""


MARKS = 32
"""Number of bytes that `marks` checks."""


def _all_marks(typingctx: Any, data: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector = ir.VectorType(ir.IntType(8), MARKS)
        place = builder.bitcast(builder.gep(base, [arguments[1]]), vector.as_pointer())
        value = builder.load(place, align=1)
        ones, twos = (ir.Constant(vector, [ir.IntType(8)(number)] * MARKS) for number in (1, 2))
        found = builder.icmp_unsigned("<", builder.sub(value, ones), twos)
        return builder.zext(builder.bitcast(found, ir.IntType(MARKS)), ir.IntType(64))

    return types.uint64(data, types.int64), generate


_marks = cast("Callable[[Bytes, int], Any]", intrinsic(_all_marks))


@compiled
def marks(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    """Bit i is set if data[at + i] is 1 or 2, the separators of properties. Covers MARKS bytes from `at` on; bits
    from `end` (after `at`) on are clear."""
    left = end - at
    mask: Scalar = np.uint64(0)
    if at <= data.size - MARKS:
        mask = _marks(data, at)
        if left < MARKS:
            mask &= (np.uint64(1) << np.uint64(left)) - np.uint64(1)
        return mask
    for index in range(min(left, MARKS)):
        if data[at + index] == 1 or data[at + index] == 2:
            mask |= np.uint64(1) << np.uint64(index)
    return mask


SLACK = 32
"""Number of bytes after a text that `copy_text` may overwrite."""


def _copier(length: int | None) -> Callable[..., None]:
    """copy(target, target_at, source, source_at[, length]): copies bytes by machine code without a loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        of = context.make_array(signature.args[2])(context, builder, arguments[2]).data
        size = ir.Constant(ir.IntType(64), length) if length is not None else arguments[4]
        cgutils.raw_memcpy(builder, builder.gep(to, [arguments[1]]), builder.gep(of, [arguments[3]]), size, 1)
        return context.get_dummy_value()

    if length is not None:

        def fixed(typingctx: Any, target: Any, target_at: Any, source: Any, source_at: Any) -> Any:
            return types.void(target, types.int64, source, types.int64), generate

        return cast("Callable[..., None]", intrinsic(fixed))

    def counted(typingctx: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
        return types.void(target, types.int64, source, types.int64, types.int64), generate

    return cast("Callable[..., None]", intrinsic(counted))


_copy = _copier(None)
"""Longer texts are copied by memcpy: for a few dozen bytes a loop costs several times as much."""
_copy_16 = _copier(16)


@compiled
def copy_text(target: Bytes, target_at: Scalar, source: Bytes, source_at: Scalar, length: Scalar) -> None:
    """Copies one text. Texts are copied one after the other: up to SLACK bytes of `target` after it are
    overwritten."""
    if length > SLACK or source_at > source.size - SLACK:
        _copy(target, target_at, source, source_at, length)
        return
    # Most texts are short: one or two moves.
    _copy_16(target, target_at, source, source_at)
    if length > 16:
        _copy_16(target, target_at + 16, source, source_at + 16)


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
    """Store the lowest `width` bytes of `value` in big-endian order."""
    for index in range(width):
        data[at + index] = (value >> (8 * (width - 1 - index))) & 0xFF
