"""Properties of many records: `name 0x01 value 0x02` repeated, by RocketMQ's rules. Compiled.

MessageDecoder#string2messageProperties: a piece without name or value is dropped, the first 0x01 of a piece splits
it, a repeated name keeps its last value, the last 0x02 may be missing. `store.record` has the same for one record.
"""

from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.compiled import Scalar, compiled
from commitlogfs.pipeline.raw_bytes import is_same, lowest_bit, word
from commitlogfs.pipeline.walk import Bytes, Longs

_SHORTEST_PIECE = 4
_THREES = np.uint64(0x0303030303030303)
_HIGH_BITS = np.uint64(0x8080808080808080)
_FEW = 48
"""Up to so many properties, a name is simply compared with those before it."""


class Properties(NamedTuple):
    """All properties of all records; record i has those from offsets[i] to offsets[i + 1]."""

    offsets: Longs
    name_start: Longs
    name_length: Longs
    value_start: Longs
    value_length: Longs


def parse_all(data: Bytes, starts: Longs, lengths: Longs) -> Properties:
    """Every property, each name once per record."""
    most = int(lengths.sum()) // _SHORTEST_PIECE + len(starts)
    spans = np.empty((4, most), np.int64)
    offsets = np.zeros(len(starts) + 1, np.int64)
    longest = int(lengths.max(initial=0)) // _SHORTEST_PIECE + 1
    slots = 1 << (2 * longest).bit_length()
    _parse(data, starts, lengths, offsets, spans, np.zeros((2, slots if longest > _FEW else 1), np.int64))
    used = spans[:, : offsets[-1]]
    return Properties(offsets, used[0], used[1], used[2], used[3])


def find_property(data: Bytes, starts: Longs, lengths: Longs, name: bytes) -> tuple[Longs, Longs]:
    """Start and length of each record's value of `name`; length -1 where it has none."""
    value_starts = np.zeros(len(starts), np.int64)
    value_lengths = np.full(len(starts), -1, np.int64)
    _find(data, starts, lengths, np.frombuffer(name, np.uint8), value_starts, value_lengths)
    return value_starts, value_lengths


@compiled
def _next_mark(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    """Where the next 0x01 or 0x02 is, from `at` on; `end` if there is none."""
    while at + 8 <= end:
        eight = word(data, at)
        # The high bit of each byte below 3; above the lowest of them there may be false ones.
        low = (eight - _THREES) & ~eight & _HIGH_BITS
        if low == 0:
            at += 8
            continue
        at += lowest_bit(low) >> 3
        if data[at] != 0:
            return at
        at += 1
    while at < end and data[at] != 1 and data[at] != 2:
        at += 1
    return at


@compiled
def _end_of_piece(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    """Where the next 0x02 is, from `at` on; `end` if there is none."""
    at = _next_mark(data, at, end)
    while at < end and data[at] == 1:
        at = _next_mark(data, at + 1, end)
    return at


@compiled
def _find(
    data: Bytes, starts: Longs, lengths: Longs, name: Bytes, value_starts: Longs, value_lengths: Longs
) -> None:
    size = name.size
    for row in range(starts.size):
        at = starts[row]
        end = at + lengths[row]
        while at < end:
            # The piece begins at `at`: is it `name` 0x01 and something?
            matches = end - at > size + 1 and data[at + size] == 1
            index = 0
            while matches and index < size:
                matches = data[at + index] == name[index]
                index += 1
            value = at + size + 1
            at = _end_of_piece(data, at, end)
            if matches and at > value:
                value_starts[row] = value
                value_lengths[row] = at - value
            at += 1


@compiled
def _known_of_many(
    data: Bytes, spans: Longs, begin: Scalar, length: Scalar, count: Scalar, table: Longs, stamp: Scalar
) -> Scalar:
    """Which property of this record has the name at `begin`; `count`, entered as such, where it is new.

    table[0]: stamps, so that nothing has to be cleared between records; table[1]: indices.
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
def _parse(data: Bytes, starts: Longs, lengths: Longs, offsets: Longs, spans: Longs, table: Longs) -> None:
    count = 0
    for row in range(starts.size):
        first = count
        at = starts[row]
        end = at + lengths[row]
        many = lengths[row] > _FEW * _SHORTEST_PIECE and table.shape[1] > 1
        while at < end:
            begin = at
            separator = _next_mark(data, at, end)
            at = separator
            if at < end and data[at] == 1:
                at = _end_of_piece(data, at + 1, end)
            if separator > begin and at > separator + 1:
                length = separator - begin
                target = first
                if many:
                    target = _known_of_many(data, spans, begin, length, count, table, row + 1)
                else:
                    while target < count and not (
                        spans[1, target] == length and is_same(data, spans[0, target], begin, length)
                    ):
                        target += 1
                spans[0, target] = begin
                spans[1, target] = length
                spans[2, target] = separator + 1
                spans[3, target] = at - separator - 1
                count = max(count, target + 1)
            at += 1
        offsets[row + 1] = count
