"""The header fields of many records at once, as arrays. Compiled."""

from typing import NamedTuple, cast

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import i16, i32, i64, u32
from commitlogfs.store.record_layout import (
    BODY_AT,
    BODY_CRC_AT,
    BODY_LENGTH_AT,
    BORN_HOST_AT,
    BORN_HOST_V6_BIT,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    IPV6_EXTRA,
    MAGIC_AT,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_HOST_AT,
    STORE_HOST_V6_BIT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TOTAL_SIZE_AT,
)

# Offsets counted from STORETIMESTAMP.
_STORE_HOST = STORE_HOST_AT - STORE_TIMESTAMP_AT
_STORE_BYTES = RECONSUME_TIMES_AT - STORE_TIMESTAMP_AT
# Offsets counted from RECONSUMETIMES, which follows the hosts.
_PREPARED_OFFSET = PREPARED_OFFSET_AT - RECONSUME_TIMES_AT
_BODY_LENGTH = BODY_LENGTH_AT - RECONSUME_TIMES_AT
_BODY = BODY_AT - RECONSUME_TIMES_AT


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
    """The host's first eight bytes as one number; for IPv4 this is the whole host."""
    store_host_word: Longs

    def of_rows(self, rows: Longs | slice) -> "RecordFields":
        """The fields of these rows, in their order."""
        return RecordFields(*(values[rows] for values in self))


def record_fields(data: Bytes, positions: Longs) -> RecordFields:
    """Fields of the records at `positions`; a walk must have checked that the records lie in `data`."""
    values = np.empty((len(RecordFields._fields), len(positions)), np.int64)
    _fill(data, positions, values)
    return RecordFields(*cast("tuple[Longs, ...]", tuple(values)))


@compiled
def _fill(data: Bytes, positions: Longs, values: Longs) -> None:
    for row in range(positions.size):
        at = positions[row]
        is_v2 = u32(data, at + MAGIC_AT) == MAGIC_V2
        sys_flag = i32(data, at + SYS_FLAG_AT)
        store_at = at + STORE_TIMESTAMP_AT + IPV6_EXTRA * ((sys_flag >> BORN_HOST_V6_BIT) & 1)
        after_hosts = store_at + _STORE_BYTES + IPV6_EXTRA * ((sys_flag >> STORE_HOST_V6_BIT) & 1)
        body_length = i32(data, after_hosts + _BODY_LENGTH)
        topic_at = after_hosts + _BODY + body_length
        if is_v2:
            topic_length: Scalar = i16(data, topic_at)
            topic_at += 2
        else:
            topic_length = np.int64(data[topic_at])
            topic_at += 1
        values[0, row] = i32(data, at + TOTAL_SIZE_AT)
        values[1, row] = 2 if is_v2 else 1
        values[2, row] = u32(data, at + BODY_CRC_AT)
        values[3, row] = i32(data, at + QUEUE_ID_AT)
        values[4, row] = i32(data, at + FLAG_AT)
        values[5, row] = i64(data, at + QUEUE_OFFSET_AT)
        values[6, row] = i64(data, at + PHYSICAL_OFFSET_AT)
        values[7, row] = sys_flag
        values[8, row] = i64(data, at + BORN_TIMESTAMP_AT)
        values[9, row] = at + BORN_HOST_AT
        values[10, row] = i64(data, store_at)
        values[11, row] = store_at + _STORE_HOST
        values[12, row] = i32(data, after_hosts)
        values[13, row] = i64(data, after_hosts + _PREPARED_OFFSET)
        values[14, row] = after_hosts + _BODY
        values[15, row] = body_length
        values[16, row] = topic_at
        values[17, row] = topic_length
        values[18, row] = topic_at + topic_length + PROPERTIES_LENGTH_BYTES
        values[19, row] = i16(data, topic_at + topic_length)
        values[20, row] = i64(data, at + BORN_HOST_AT)
        values[21, row] = i64(data, store_at + _STORE_HOST)
