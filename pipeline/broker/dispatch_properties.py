"""Finds the few properties that the dispatch of a record depends on, in one pass. Compiled.

Rules of MessageDecoder#string2messageProperties: `name 0x01 value 0x02` repeated, the first 0x01 of a piece
splits it, a piece without name or value is dropped, a repeated name keeps its last value.
"""

from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bools, Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.java_text import well_formed_text
from commitlogfs.pipeline.arrays.raw_bytes import MARKS, lowest_bit, marks

NAMES = (
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"DELAY",
    b"INNER_MULTI_DISPATCH",
    b"INNER_MULTI_QUEUE_OFFSET",
    b"INNER_BASE",
    b"INNER_NUM",
)
UNIQ_KEY, KEYS, TAGS, DELAY, MULTI_DISPATCH, MULTI_OFFSETS, INNER_BASE, INNER_NUM = range(len(NAMES))

_TABLE = np.zeros((len(NAMES), max(map(len, NAMES))), np.uint8)
for _row, _name in enumerate(NAMES):
    _TABLE[_row, : len(_name)] = np.frombuffer(_name, np.uint8)
_LENGTHS = np.array([len(name) for name in NAMES], np.int64)


class Spans:
    """Position of the value of each property in each record: `start[NAME]`, `length[NAME]`; length -1: absent."""

    def __init__(self, start: Longs, length: Longs) -> None:
        self.start, self.length = start, length

    def text(self, data: Bytes, name: int, row: int) -> str:
        """The value in one row, as a Java broker decodes it; empty if it is absent."""
        start, length = self.start[name, row], max(0, self.length[name, row])
        return well_formed_text(data[start : start + length].tobytes())


def find_dispatch_properties(data: Bytes, starts: Longs, lengths: Longs) -> Spans:
    """`starts`, `lengths`: position of each record's properties, checked to be inside `data`."""
    start = np.zeros((len(NAMES), starts.size), np.int64)
    length = np.full((len(NAMES), starts.size), -1, np.int64)
    _find(data, starts, lengths, start, length)
    return Spans(start, length)


def parse_longs(data: Bytes, starts: Longs, lengths: Longs) -> tuple[Longs, Bools]:
    """Decimal numbers (Long#parseLong) of at most 18 digits, and which of the texts are such numbers."""
    values = np.zeros(starts.size, np.int64)
    valid = np.zeros(starts.size, np.bool_)
    _parse(data, starts, lengths, values, valid)
    return values, valid


class KeyTexts(NamedTuple):
    """For each index key: row of its record, position of its own text, and hash of the prefix before it."""

    rows: Longs
    starts: Longs
    lengths: Longs
    prefixes: Ints


def key_texts(
    data: Bytes,
    found: Spans,
    selected: Bools,
    groups: Longs,
    key_prefixes: Ints,
    tag_prefixes: Ints,
    *,
    with_tags: bool,
) -> KeyTexts:
    """The keys of the selected rows, in the broker's order; prefixes are given by group."""
    starts, lengths = found.start[: TAGS + 1], found.length[: TAGS + 1]
    count = _count_keys(data, starts, lengths, selected, with_tags)
    spans = np.empty((3, count), np.int64)
    prefixes = np.empty(count, np.int32)
    _list_keys(data, starts, lengths, selected, with_tags, groups, key_prefixes, tag_prefixes, spans, prefixes)
    return KeyTexts(spans[0], spans[1], spans[2], prefixes)


@compiled
def _which(data: Bytes, at: int, length: int) -> int:
    for row in range(_LENGTHS.size):
        if _LENGTHS[row] == length and _TABLE[row, 0] == data[at]:
            same = True
            for i in range(1, length):
                if _TABLE[row, i] != data[at + i]:
                    same = False
                    break
            if same:
                return row
    return -1


@compiled
def _find(data: Bytes, starts: Longs, lengths: Longs, start: Longs, length: Longs) -> None:
    for row in range(starts.size):
        piece = block = base = starts[row]
        end = piece + lengths[row]
        separator: Scalar = np.int64(-1)
        mask: Scalar = np.uint64(0)
        # The same loop over marks as in `properties`: a shared function would take twice the time (`compiled`).
        while piece < end:
            while mask == 0 and block < end:
                mask = marks(data, block, end)
                base = block
                block += MARKS
            at = end
            if mask != 0:
                at = base + lowest_bit(mask)
                mask &= mask - np.uint64(1)
                if data[at] == 1:
                    if separator < 0:
                        separator = at
                    continue
            if separator > piece and at > separator + 1:
                name = _which(data, piece, separator - piece)
                if name >= 0:
                    start[name, row] = separator + 1
                    length[name, row] = at - separator - 1
            piece = at + 1
            separator = np.int64(-1)


@compiled
def _parse(data: Bytes, starts: Longs, lengths: Longs, values: Longs, valid: Bools) -> None:
    for row in range(starts.size):
        at = starts[row]
        end = at + lengths[row]
        if end <= at:
            continue
        negative = data[at] == 45
        if negative or data[at] == 43:
            at += 1
        if end == at or end - at > 18:
            continue
        value = np.int64(0)
        good = True
        for i in range(at, end):
            digit = np.int64(data[i]) - 48
            if digit < 0 or digit > 9:
                good = False
                break
            value = value * 10 + digit
        if good:
            values[row] = -value if negative else value
            valid[row] = True


@compiled
def _count_keys(data: Bytes, starts: Longs, lengths: Longs, selected: Bools, with_tags: bool) -> int:
    count = 0
    for row in range(selected.size):
        if not selected[row]:
            continue
        if lengths[0, row] >= 0:
            count += 1
        inside = False
        for i in range(starts[1, row], starts[1, row] + lengths[1, row]):
            if data[i] == 32:
                inside = False
            elif not inside:
                inside = True
                count += 1
        if with_tags and lengths[2, row] >= 0:
            count += 1
    return count


@compiled
def _list_keys(
    data: Bytes,
    starts: Longs,
    lengths: Longs,
    selected: Bools,
    with_tags: bool,
    groups: Longs,
    key_prefixes: Ints,
    tag_prefixes: Ints,
    spans: Longs,
    prefixes: Ints,
) -> None:
    count = 0
    for row in range(selected.size):
        if not selected[row]:
            continue
        prefix = key_prefixes[groups[row]]
        if lengths[0, row] >= 0:
            spans[0, count] = row
            spans[1, count] = starts[0, row]
            spans[2, count] = lengths[0, row]
            prefixes[count] = prefix
            count += 1
        at = starts[1, row]
        end = at + lengths[1, row]
        while at < end:
            if data[at] == 32:
                at += 1
                continue
            stop = at
            while stop < end and data[stop] != 32:
                stop += 1
            spans[0, count] = row
            spans[1, count] = at
            spans[2, count] = stop - at
            prefixes[count] = prefix
            count += 1
            at = stop
        if with_tags and lengths[2, row] >= 0:
            spans[0, count] = row
            spans[1, count] = starts[2, row]
            spans[2, count] = lengths[2, row]
            prefixes[count] = tag_prefixes[groups[row]]
            count += 1
