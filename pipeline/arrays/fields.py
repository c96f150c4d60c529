"""The header fields of many records at once, as arrays. Compiled."""

from typing import NamedTuple, cast

import numpy as np

from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import Bytes, i16, i32, i64, u32
from commitlogfs.pipeline.arrays.walk import Longs


class RecordFields(NamedTuple):
    """One 64-bit value per record and field; `..._start` counts from the buffer's first byte."""

    total_size: Longs
    version: Longs
    body_crc: Longs
    queue_id: Longs
    flag: Longs
    queue_offset: Longs
    physical_offset: Longs
    sys_flag: Longs
    born_ms: Longs
    born_host_start: Longs
    store_ms: Longs
    store_host_start: Longs
    reconsume_times: Longs
    prepared_offset: Longs
    body_start: Longs
    body_length: Longs
    topic_start: Longs
    topic_length: Longs
    properties_start: Longs
    properties_length: Longs
    born_host_word: Longs
    """Its first eight bytes as one number: all of an IPv4 host."""
    store_host_word: Longs


def record_fields(data: Bytes, positions: Longs) -> RecordFields:
    """The fields of the records at `positions`, which a walk has proven to lie in `data`."""
    values = np.empty((len(RecordFields._fields), len(positions)), np.int64)
    _fill(data, positions, values)
    return RecordFields(*cast("tuple[Longs, ...]", tuple(values)))


@compiled
def _fill(data: Bytes, positions: Longs, values: Longs) -> None:
    for row in range(positions.size):
        at = positions[row]
        is_v2 = data[at + 7] == 0xAB
        sys_flag = i32(data, at + 36)
        store_at = at + 56 + 12 * ((sys_flag >> 4) & 1)
        after_hosts = store_at + 16 + 12 * ((sys_flag >> 5) & 1)
        body_length = i32(data, after_hosts + 12)
        topic_at = after_hosts + 16 + body_length
        if is_v2:
            topic_length: Scalar = i16(data, topic_at)
            topic_at += 2
        else:
            topic_length = np.int64(data[topic_at])
            topic_at += 1
        values[0, row] = i32(data, at)
        values[1, row] = 2 if is_v2 else 1
        values[2, row] = u32(data, at + 8)
        values[3, row] = i32(data, at + 12)
        values[4, row] = i32(data, at + 16)
        values[5, row] = i64(data, at + 20)
        values[6, row] = i64(data, at + 28)
        values[7, row] = sys_flag
        values[8, row] = i64(data, at + 40)
        values[9, row] = at + 48
        values[10, row] = i64(data, store_at)
        values[11, row] = store_at + 8
        values[12, row] = i32(data, after_hosts)
        values[13, row] = i64(data, after_hosts + 4)
        values[14, row] = after_hosts + 16
        values[15, row] = body_length
        values[16, row] = topic_at
        values[17, row] = topic_length
        values[18, row] = topic_at + topic_length + 2
        values[19, row] = i16(data, topic_at + topic_length)
        values[20, row] = i64(data, at + 48)
        values[21, row] = i64(data, store_at + 8)
