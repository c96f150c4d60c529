"""Messages of a record whose body is as stored: compressed, or a batch of several messages. Pure.

For a log, `bodies` does this with many records at once; an export has columns instead of records.
"""

import struct
from collections.abc import Iterator
from typing import Final

from commitlogfs.pipeline.bodies.compression import BodyError, decompress
from commitlogfs.pipeline.replay.frames import Row
from commitlogfs.store.record import SysFlag, parse_properties

_BATCH: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
_CHANGED: Final = int(SysFlag.COMPRESSED) | _BATCH
_HEAD: Final = struct.Struct(">i8xii")
"""Size, flag and size of the body of a message in a batch (`bodies.inner_batches`)."""
_SHORT: Final = struct.Struct(">h")


def messages_in(row: Row, sys_flag: int, *, is_decompressed: bool, limit: int) -> Iterator[Row]:
    """The messages as consumers get them. `is_decompressed`: whether the body already is. Raises BodyError for a
    body that is not what `sys_flag` says, or has more than `limit` bytes."""
    if not sys_flag & _CHANGED:
        yield row
        return
    body = row.body if is_decompressed else decompress(row.body, sys_flag, limit)
    if sys_flag & _BATCH == _BATCH:
        yield from _unfolded(row, body)
    else:
        yield row._replace(body=body)


def _unfolded(row: Row, body: bytes) -> list[Row]:
    messages = []
    at = 0
    while at < len(body):
        try:
            size, flag, length = _HEAD.unpack_from(body, at)
            begin = at + _HEAD.size
            (properties_length,) = _SHORT.unpack_from(body, begin + length) if length >= 0 else (-1,)
        except struct.error:
            raise _malformed() from None
        end = begin + length + _SHORT.size + properties_length
        if length < 0 or properties_length < 0 or end > len(body) or size != end - at:
            raise _malformed()
        properties = parse_properties(body[end - properties_length : end])
        content = body[begin : begin + length]
        messages.append(row._replace(flag=flag, body=content, properties=list(properties.items())))
        at = end
    return messages


def _malformed() -> BodyError:
    return BodyError("the body is not a batch of whole messages, as sysFlag says")
