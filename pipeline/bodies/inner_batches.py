"""Unfolds batches that a broker stores as one record, as it does for a topic with queue.type=BatchCQ. Compiled.

The body is the messages one after the other, as a producer has sent them (MessageDecoder#encodeMessage):

    TOTALSIZE 4  MAGIC 4  BODYCRC 4  FLAG 4  BODYLEN 4 BODY  PROPLEN 2 PROPERTIES

A consumer gets one message for each, with the queue offset counted on, and all else as in the record
(MessageDecoder#decodeMessage). A batch for any other topic is stored as separate records.
"""

from typing import Final, NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bools, Bytes, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.fields import RecordFields
from commitlogfs.pipeline.arrays.raw_bytes import i16, i32, u32
from commitlogfs.store.record import SysFlag

_BATCH: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
"""Both must be set (PullAPIWrapper#processPullResult)."""

_CRC_AT, _FLAG_AT, _BODY_LENGTH_AT, _BODY_AT = 8, 12, 16, 20
_LEAST_BYTES = _BODY_AT + 2


def is_batch(fields: RecordFields) -> Bools:
    """Whether each record is such a batch."""
    both: Bools = (fields.sys_flag & _BATCH) == _BATCH
    return both


class _Messages(NamedTuple):
    """One value per message in a batch."""

    record: Longs
    """Row of its record."""
    number: Longs
    """Its place in the batch, from 0."""
    size: Longs
    body_crc: Longs
    flag: Longs
    body_start: Longs
    body_length: Longs
    properties_start: Longs
    properties_length: Longs


def malformed(data: Bytes, fields: RecordFields) -> Bools:
    """Whether each record is a batch that is not whole messages one after the other."""
    return _counts(data, fields) < 0


def unfolded(data: Bytes, fields: RecordFields) -> RecordFields:
    """The fields of the messages in the batches, and of all other records, in order; no batch may be `malformed`.
    The size of a message in a batch is that of its part of the body."""
    counts = _counts(data, fields)
    values = np.empty((len(_Messages._fields), int(counts.sum())), np.int64)
    _fill(data, is_batch(fields), fields.body_start, counts, values)
    inner = _Messages(*values)
    outer = fields.of_rows(inner.record)
    of_batch = is_batch(outer)

    def chosen(own: Longs, otherwise: Longs) -> Longs:
        picked: Longs = np.where(of_batch, own, otherwise)
        return picked

    return outer._replace(
        total_size=chosen(inner.size, outer.total_size),
        body_crc=chosen(inner.body_crc, outer.body_crc),
        flag=chosen(inner.flag, outer.flag),
        queue_offset=outer.queue_offset + inner.number,
        body_start=chosen(inner.body_start, outer.body_start),
        body_length=chosen(inner.body_length, outer.body_length),
        properties_start=chosen(inner.properties_start, outer.properties_start),
        properties_length=chosen(inner.properties_length, outer.properties_length),
    )


def _counts(data: Bytes, fields: RecordFields) -> Longs:
    """Number of messages of each record, 1 unless it is a batch; -1: malformed."""
    counts = np.ones(len(fields.total_size), np.int64)
    _count(data, is_batch(fields), fields.body_start, fields.body_length, counts)
    return counts


@compiled
def _count(data: Bytes, batches: Bools, starts: Longs, lengths: Longs, counts: Longs) -> None:
    for row in range(starts.size):
        if not batches[row]:
            continue
        at: Scalar = starts[row]
        end = at + lengths[row]
        count = 0
        while at < end and count >= 0:
            size: Scalar = -1
            if end - at >= _LEAST_BYTES:
                size = i32(data, at)
                body = i32(data, at + _BODY_LENGTH_AT)
                if body < 0 or body > end - at - _LEAST_BYTES:
                    size = -1
                else:
                    properties = i16(data, at + _BODY_AT + body)
                    if properties < 0 or size != _LEAST_BYTES + body + properties or size > end - at:
                        size = -1
            if size < 0:
                count = -1
            else:
                count += 1
                at += size
        counts[row] = count


@compiled
def _fill(data: Bytes, batches: Bools, starts: Longs, counts: Longs, values: Longs) -> None:
    out = 0
    for row in range(starts.size):
        at = starts[row]
        for number in range(counts[row]):
            values[0, out] = row
            values[1, out] = number
            if batches[row]:
                body: Scalar = i32(data, at + _BODY_LENGTH_AT)
                properties: Scalar = i16(data, at + _BODY_AT + body)
                values[2, out] = i32(data, at)
                values[3, out] = u32(data, at + _CRC_AT)
                values[4, out] = i32(data, at + _FLAG_AT)
                values[5, out] = at + _BODY_AT
                values[6, out] = body
                values[7, out] = at + _BODY_AT + body + 2
                values[8, out] = properties
                at += values[2, out]
            out += 1
