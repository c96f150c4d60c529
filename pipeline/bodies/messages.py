"""The messages in a buffer of records as a consumer gets them, in pieces of bounded size."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bools, Bytes, Ints
from commitlogfs.pipeline.arrays.fields import RecordFields
from commitlogfs.pipeline.arrays.gather import gather
from commitlogfs.pipeline.bodies.body_options import BodyOptions
from commitlogfs.pipeline.bodies.compression import BodyError, decompress
from commitlogfs.pipeline.bodies.inner_batches import is_batch, malformed, unfolded
from commitlogfs.store.record import SysFlag
from commitlogfs.store.record_layout import BORN_HOST_AT

PIECE_BYTES: Final = 8 << 20
"""A piece ends with the body that passes this size."""
_MALFORMED: Final = "the body is not a batch of whole messages, as sysFlag says"
_POSITIONS: Final = [name for name in RecordFields._fields if name.endswith("_start")]


class Bodies(NamedTuple):
    """The bodies of consecutive rows, one after the other."""

    values: Bytes
    offsets: Ints
    """One more than rows."""

    @classmethod
    def stored(cls, data: Bytes, fields: RecordFields) -> "Bodies":
        return cls(*gather(data, fields.body_start, fields.body_length))


class Messages(NamedTuple):
    data: Bytes
    fields: RecordFields
    """Positions count from data[0]."""
    bodies: Bodies | None
    """None unless they are decompressed."""


class Unreadable(NamedTuple):
    """A record whose messages cannot be had."""

    offset: int
    length: int
    reason: str


def messages_of(data: Bytes, fields: RecordFields, options: BodyOptions) -> Iterator[Messages | Unreadable]:
    """The records of `fields` in their order, changed as `options` say."""
    for part in _unfolded(data, fields, options.limit) if options.unfold else (Messages(data, fields, None),):
        if isinstance(part, Messages) and options.decompress:
            yield from _decompressed(part.data, part.fields, options.limit)
        else:
            yield part


# --- batches ---------------------------------------------------------------------------------------------


def _unfolded(data: Bytes, fields: RecordFields, limit: int) -> Iterator[Messages | Unreadable]:
    batches = is_batch(fields)
    if not batches.any():
        yield Messages(data, fields, None)
        return
    # No producer compresses a batch. So each such record may be a part by itself, which bounds the memory.
    compressed = batches & ((fields.sys_flag & SysFlag.COMPRESSED) != 0)
    broken = malformed(data, fields) & ~compressed
    for rows in _runs(compressed | broken):
        part = fields.of_rows(rows)
        if broken[rows.start]:
            yield _unreadable(part, 0, _MALFORMED)
        elif compressed[rows.start]:
            yield _unfolded_alone(data, part, limit)
        else:
            yield Messages(data, unfolded(data, part), None)


def _runs(alone: Bools) -> Iterator[slice]:
    """All rows in order: each of `alone` by itself, the others in runs that are as long as possible."""
    begin = 0
    for row in np.flatnonzero(alone).tolist():
        if begin < row:
            yield slice(begin, row)
        yield slice(row, row + 1)
        begin = row + 1
    if begin < len(alone):
        yield slice(begin, len(alone))


def _unfolded_alone(data: Bytes, record: RecordFields, limit: int) -> Messages | Unreadable:
    """The messages of one compressed batch. Their bodies are not compressed, nor does their SYSFLAG say so."""
    try:
        body = _body(data, record, 0, limit)
    except BodyError as error:
        return _unreadable(record, 0, str(error))
    start = int(record.born_host_start[0]) - BORN_HOST_AT
    size = int(record.total_size[0])
    moved = {name: getattr(record, name) - start for name in _POSITIONS}
    moved |= {"body_start": np.array([size]), "body_length": np.array([len(body)])}
    plain = record._replace(**moved, sys_flag=record.sys_flag & ~int(SysFlag.COMPRESSED))
    with_body = np.concatenate([data[start : start + size], np.frombuffer(body, np.uint8)])
    if malformed(with_body, plain)[0]:
        return _unreadable(record, 0, _MALFORMED)
    return Messages(with_body, unfolded(with_body, plain), None)


# --- compression -----------------------------------------------------------------------------------------


def _decompressed(data: Bytes, fields: RecordFields, limit: int) -> Iterator[Messages | Unreadable]:
    count = len(fields.total_size)
    if not (fields.sys_flag & SysFlag.COMPRESSED).any():
        yield Messages(data, fields, Bodies.stored(data, fields))
        return
    bodies: list[bytes] = []
    size = begin = 0
    for row in range(count):
        reason = None
        try:
            bodies.append(_body(data, fields, row, limit))
            size += len(bodies[-1])
        except BodyError as error:
            reason = str(error)
        if bodies and (reason is not None or size > PIECE_BYTES or row + 1 == count):
            yield _piece(data, fields, begin, bodies)
        if reason is not None:
            yield _unreadable(fields, row, reason)
        if reason is not None or size > PIECE_BYTES:
            bodies, size, begin = [], 0, row + 1


def _piece(data: Bytes, fields: RecordFields, begin: int, bodies: list[bytes]) -> Messages:
    offsets = np.zeros(len(bodies) + 1, np.int32)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    rows = slice(begin, begin + len(bodies))
    part = fields.of_rows(rows)
    return Messages(data, part, Bodies(np.frombuffer(b"".join(bodies), np.uint8), offsets))


def _body(data: Bytes, fields: RecordFields, row: int, limit: int) -> bytes:
    """Raises BodyError."""
    start = int(fields.body_start[row])
    stored = data[start : start + int(fields.body_length[row])].tobytes()
    return decompress(stored, int(fields.sys_flag[row]), limit)


def _unreadable(fields: RecordFields, row: int, reason: str) -> Unreadable:
    return Unreadable(int(fields.physical_offset[row]), int(fields.total_size[row]), reason)
