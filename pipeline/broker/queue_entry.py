"""Layout of a consume queue's entries. No other module defines their fields and lengths.

The broker writes an entry for each message (ConsumeQueue#putMessagePositionInfo, big-endian): log offset 8, record
size 4, tags code 8. An entry in a queue of inner batches (BatchConsumeQueue) continues with store time 8, base
queue offset 8, count 2, and ends with -1 in 4 bytes and 0 in 4.
"""

import numpy as np

ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
BATCH_ENTRY = np.dtype(
    [
        *(("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("time_ms", ">i8")),
        *(("queue_offset", ">i8"), ("count", ">i2"), ("rest", ">i8")),
    ]
)
BATCH_REST = -1 << 32

ENTRY_BYTES = ENTRY.itemsize
BATCH_ENTRY_BYTES = BATCH_ENTRY.itemsize


def _position(field: str) -> int:
    assert BATCH_ENTRY.fields is not None
    return BATCH_ENTRY.fields[field][1]


SIZE_AT = _position("size")
TAGS_CODE_AT = _position("tags_code")
TIME_MS_AT = _position("time_ms")
QUEUE_OFFSET_AT = _position("queue_offset")
COUNT_AT = _position("count")
REST_AT = _position("rest")

assert ENTRY_BYTES == TIME_MS_AT == 20
assert BATCH_ENTRY_BYTES == REST_AT + 8 == 46
