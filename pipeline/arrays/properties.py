"""Properties of many records: `name 0x01 value 0x02` repeated, by RocketMQ's rules. Compiled.

MessageDecoder#string2messageProperties: a piece without name or value is dropped, the first 0x01 of a piece splits
it, a repeated name keeps its last value, the last 0x02 may be missing. `store.record` has the same for one record.
"""

from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import MARKS, SLACK, copy_text, is_same, lowest_bit, marks

_SHORTEST_PIECE = 4
_FEW = 48
"""With at most so many properties in a record, a name is compared with all names before it; above, a table is
used."""
_BLOCK = 64
"""Properties of so many records are found first and copied then: the positions stay in the nearest cache."""


class Texts(NamedTuple):
    """Texts one after the other as in Arrow: len + 1 offsets into the bytes."""

    data: Bytes
    offsets: Ints


class Properties(NamedTuple):
    """All properties of all records, each name once per record; record i has offsets[i] to offsets[i + 1]. The
    texts are as stored in the log, which may not be UTF-8."""

    offsets: Ints
    names: Texts
    values: Texts


def parse_all(data: Bytes, starts: Longs, lengths: Longs) -> Properties:
    """Every property."""
    total, longest = int(lengths.sum()), int(lengths.max(initial=0))
    most = total // _SHORTEST_PIECE + len(starts)
    longest_pieces = longest // _SHORTEST_PIECE + 1
    spans = np.empty((4, _BLOCK * longest_pieces), np.int64)
    slots = 1 << (2 * longest_pieces).bit_length() if longest_pieces > _FEW else 1
    offsets = np.zeros(len(starts) + 1, np.int32)
    names, values = np.empty(total + SLACK, np.uint8), np.empty(total + SLACK, np.uint8)
    name_offsets, value_offsets = np.empty(most + 1, np.int32), np.empty(most + 1, np.int32)
    name_offsets[0] = value_offsets[0] = 0
    table = np.zeros((2, slots), np.int64)
    _parse_all(data, starts, lengths, offsets, spans, table, names, name_offsets, values, value_offsets)
    count = offsets[-1]
    return Properties(
        offsets,
        Texts(names[: name_offsets[count]], name_offsets[: count + 1]),
        Texts(values[: value_offsets[count]], value_offsets[: count + 1]),
    )


def find_property(data: Bytes, starts: Longs, lengths: Longs, name: bytes) -> tuple[Longs, Longs]:
    """Start and length of the value of `name` in each record; length -1 if the record does not have it."""
    value_starts = np.zeros(len(starts), np.int64)
    value_lengths = np.full(len(starts), -1, np.int64)
    _find(data, starts, lengths, np.frombuffer(name, np.uint8), value_starts, value_lengths)
    return value_starts, value_lengths


@compiled
def _find(
    data: Bytes, starts: Longs, lengths: Longs, name: Bytes, value_starts: Longs, value_lengths: Longs
) -> None:
    size = name.size
    for row in range(starts.size):
        piece = block = base = starts[row]
        end = piece + lengths[row]
        mask: Scalar = np.uint64(0)
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
                    continue
            # Is it `name` 0x01 and something? A name contains no 0x01 or 0x02.
            matches = at > piece + size + 1 and data[piece + size] == 1
            index = 0
            while matches and index < size:
                matches = data[piece + index] == name[index]
                index += 1
            if matches:
                value_starts[row] = piece + size + 1
                value_lengths[row] = at - piece - size - 1
            piece = at + 1


@compiled
def _known_of_many(
    data: Bytes, spans: Longs, begin: Scalar, length: Scalar, count: Scalar, table: Longs, stamp: Scalar
) -> Scalar:
    """Index of this record's property with the name at `begin`; a new name is entered with `count` as its index.

    table[0]: stamps, so that the table needs no clearing between records; table[1]: indices.
    """
    mask = table.shape[1] - 1
    value = np.int64(0)
    for index in range(length):
        value = (value * 1000003 + data[begin + index]) & 0x7FFFFFFF
    slot = (value ^ (value >> 15)) & mask
    while table[0, slot] == stamp:
        other = table[1, slot]
        if spans[1, other] == length and is_same(data, spans[0, other], begin, length):
            return other
        slot = (slot + 1) & mask
    table[0, slot] = stamp
    table[1, slot] = count
    return count


@compiled
def _parse(
    data: Bytes, starts: Longs, lengths: Longs, begin: Scalar, end: Scalar, ends: Ints, spans: Longs, table: Longs
) -> Scalar:
    """Number of properties of the records from `begin` to `end`. Their positions are in `spans`; those of a record
    end at ends[row - begin]."""
    count = 0
    for row in range(begin, end):
        first = count
        piece = block = starts[row]
        behind = piece + lengths[row]
        many = lengths[row] > _FEW * _SHORTEST_PIECE and table.shape[1] > 1
        separator: Scalar = np.int64(-1)
        mask: Scalar = np.uint64(0)
        base = block
        while piece < behind:
            while mask == 0 and block < behind:
                mask = marks(data, block, behind)
                base = block
                block += MARKS
            at = behind
            if mask != 0:
                at = base + lowest_bit(mask)
                mask &= mask - np.uint64(1)
                if data[at] == 1:
                    if separator < 0:
                        separator = at
                    continue
            if separator > piece and at > separator + 1:
                length = separator - piece
                target = first
                if many:
                    target = _known_of_many(data, spans, piece, length, count, table, row + 1)
                else:
                    while target < count and not (
                        spans[1, target] == length
                        and data[spans[0, target]] == data[piece]
                        and is_same(data, spans[0, target], piece, length)
                    ):
                        target += 1
                spans[0, target] = piece
                spans[1, target] = length
                spans[2, target] = separator + 1
                spans[3, target] = at - separator - 1
                count = max(count, target + 1)
            piece = at + 1
            separator = np.int64(-1)
        ends[row - begin] = count
    return count


@compiled
def _append(
    data: Bytes, starts: Longs, lengths: Longs, count: Scalar, out: Bytes, offsets: Ints, first: Scalar
) -> None:
    """Appends texts to `out`, which contains `first` texts. `out` has SLACK bytes more than all texts need."""
    at: Scalar = np.int64(offsets[first])
    for index in range(count):
        copy_text(out, at, data, starts[index], lengths[index])
        at += lengths[index]
        offsets[first + index + 1] = at


@compiled
def _parse_all(
    data: Bytes,
    starts: Longs,
    lengths: Longs,
    offsets: Ints,
    spans: Longs,
    table: Longs,
    names: Bytes,
    name_offsets: Ints,
    values: Bytes,
    value_offsets: Ints,
) -> None:
    ends = np.empty(_BLOCK, np.int32)
    begin = 0
    while begin < starts.size:
        end = min(begin + _BLOCK, starts.size)
        count = _parse(data, starts, lengths, begin, end, ends, spans, table)
        first: Scalar = np.int64(offsets[begin])
        _append(data, spans[0], spans[1], count, names, name_offsets, first)
        _append(data, spans[2], spans[3], count, values, value_offsets, first)
        for row in range(begin, end):
            offsets[row + 1] = first + ends[row - begin]
        begin = end
