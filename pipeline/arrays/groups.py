"""Groups records by a text (their topic, their queue), as numbers instead of texts. Compiled."""

from collections.abc import Sequence

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import is_same


def group_spans(data: Bytes, starts: Longs, lengths: Longs, also: Longs | None = None) -> tuple[Longs, Longs]:
    """A group number for each row, counted in order of appearance, and the first row of each group.

    Rows belong to one group if their texts are equal and, if given, their values in `also`.
    """
    rows = len(starts)
    groups = np.empty(rows, np.int64)
    firsts = np.empty(rows, np.int64)
    slots = np.full(1 << (2 * rows + 1).bit_length(), -1, np.int64)
    count = _group(data, starts, lengths, np.zeros(rows, np.int64) if also is None else also, groups, firsts, slots)
    return groups, firsts[:count]


def group_rows(
    data: Bytes, rows: int, texts: Sequence[tuple[Longs, Longs]], numbers: Sequence[Longs]
) -> tuple[Longs, Longs]:
    """As `group_spans`, by any number of texts (starts and lengths; a length below 0 is a group of its own) and
    numbers."""
    nothing = np.zeros(rows, np.int64)
    also: Longs | None = None
    for values in numbers:
        also = values if also is None else _paired(data, also, values)
    groups, firsts = nothing, nothing
    for starts, lengths in texts or [(nothing, nothing)]:
        groups, firsts = group_spans(data, starts, lengths, also)
        also = groups
    return groups, firsts


def _paired(data: Bytes, one: Longs, other: Longs) -> Longs:
    """A number for each row, equal where both are."""
    nothing = np.zeros(len(one), np.int64)
    (left, _), (right, rights) = (group_spans(data, nothing, nothing, values) for values in (one, other))
    return left * max(1, len(rights)) + right


def all_alike(numbers: Longs, flags: Longs, excluded: int) -> bool:
    """Whether all rows (at least one) have the same number, and no row has one of the `excluded` flags."""
    return bool(_all_alike(numbers, flags, int(excluded)))  # numba is slow at typing an IntFlag


@compiled
def _all_alike(numbers: Longs, flags: Longs, excluded: Scalar) -> Scalar:
    differs: Scalar = np.int64(0)
    for row in range(numbers.size):
        differs |= (numbers[row] ^ numbers[0]) | (flags[row] & excluded)
    return differs == 0


@compiled
def _group(
    data: Bytes, starts: Longs, lengths: Longs, also: Longs, groups: Longs, firsts: Longs, slots: Longs
) -> Scalar:
    count = 0
    mask = slots.size - 1
    for row in range(starts.size):
        start, length, number = starts[row], lengths[row], also[row]
        repeats = row > 0 and lengths[row - 1] == length and also[row - 1] == number
        if repeats and is_same(data, starts[row - 1], start, length):
            groups[row] = groups[row - 1]
            continue
        value = number & 0x7FFFFFFF
        for index in range(length):
            value = (value * 1000003 + data[start + index]) & 0x7FFFFFFF
        slot = (value ^ (value >> 15)) & mask
        while slots[slot] >= 0:
            first = firsts[slots[slot]]
            if lengths[first] == length and also[first] == number and is_same(data, starts[first], start, length):
                break
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            firsts[count] = row
            count += 1
        groups[row] = slots[slot]
    return count
