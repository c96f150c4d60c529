"""The log as Arrow columns. Only requested columns are gathered.

Names and meanings are those of RocketMQ's MessageExt, values are as stored. `text` is the
decompressed body as UTF-8.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import numpy as np
import pyarrow as pa

from commitlogfs.pipeline.arrays.array_types import Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.arrays.gather import gather
from commitlogfs.pipeline.arrays.groups import all_alike, group_spans
from commitlogfs.pipeline.arrays.java_text import is_ascii, well_formed
from commitlogfs.pipeline.arrays.properties import find_property, parse_all
from commitlogfs.pipeline.bodies.messages import Bodies, Messages
from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.log.scanner import Chunk
from commitlogfs.pipeline.log.segments import SegmentFile
from commitlogfs.store.record import Host, SysFlag
from commitlogfs.store.record_layout import MAGIC_V1, MAGIC_V2

_TIME = pa.timestamp("us", tz="UTC")

COLUMNS: pa.Schema = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitLogOffset", pa.int64()),
        ("storeSize", pa.int32()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("uniqKey", pa.string()),
        ("transactionId", pa.string()),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bornTimestamp", _TIME),
        ("storeTimestamp", _TIME),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("bodyCRC", pa.int32()),
        ("magicCode", pa.int32()),
        ("segment", pa.string()),
    ]
)
"""The columns of a table without a given schema, in their order."""
TEXT: Final = "text"
"""A column that must be asked for: with bodies that are no text it would make rows larger for nothing."""
ALL_COLUMNS: pa.Schema = COLUMNS.append(pa.field(TEXT, pa.string()))

_MAGIC = np.array([0, MAGIC_V1, MAGIC_V2], np.uint32).view(np.int32)
_V4_HOST_BYTES, _V6_HOST_BYTES = 8, 20
_LARGEST_MS = (2**63 - 1) // 1000


class Projection:
    """Columns by name, in the requested order; `body` as stored unless it is to be `decompressed`, too. Raises
    PipelineError for an unknown name."""

    def __init__(self, names: Sequence[str], *, decompressed: bool = False) -> None:
        unknown = [name for name in names if name not in ALL_COLUMNS.names]
        if unknown:
            names = ", ".join(ALL_COLUMNS.names)
            raise PipelineError(f"column {', '.join(unknown)} is unknown; the columns are {names}")
        self.names = tuple(names)
        self._decompressed = decompressed
        self.schema: pa.Schema = pa.schema([ALL_COLUMNS.field(name) for name in names])

    def to_batch(self, chunk: Chunk, selection: Longs | None = None) -> pa.RecordBatch:
        """The records of `chunk`, or those of the rows in `selection`, ascending, with bodies as stored."""
        positions = chunk.positions if selection is None else chunk.positions[selection]
        return self.batch_of(Messages(chunk.data, record_fields(chunk.data, positions), None), chunk.segment)

    def batch_of(self, messages: Messages, segment: SegmentFile) -> pa.RecordBatch:
        """These messages of `segment`; `text` and a decompressed `body` need decompressed bodies. The batch does
        not refer to the buffer of the messages."""
        rows = _Rows(messages, segment, stored=not self._decompressed)
        return pa.RecordBatch.from_arrays([_BUILDERS[name](rows) for name in self.names], schema=self.schema)


class _Rows:
    """The source of the columns of one batch."""

    def __init__(self, messages: Messages, segment: SegmentFile, *, stored: bool) -> None:
        self.data, self.fields = messages.data, messages.fields
        self.segment = segment
        self.count = len(messages.fields.total_size)
        self._given, self._stored = messages.bodies, stored

    @cached_property
    def texts(self) -> Bodies:
        return self._given or Bodies.stored(self.data, self.fields)

    @property
    def bodies(self) -> Bodies:
        return Bodies.stored(self.data, self.fields) if self._stored else self.texts

    def value_of(self, name: bytes) -> pa.Array:
        starts, lengths = find_property(
            self.data, self.fields.properties_start, self.fields.properties_length, name
        )
        return _texts(self.data, starts, lengths, some_absent=True)


def _int32(field: str) -> Callable[[_Rows], pa.Array]:
    # CRC and magic are unsigned in the log and signed in Java: the bits stay the same.
    return lambda rows: pa.array(getattr(rows.fields, field).astype(np.int32))


def _int64(field: str) -> Callable[[_Rows], pa.Array]:
    # The column is a copy: as a view it would keep the table of all fields in memory.
    return lambda rows: pa.array(getattr(rows.fields, field).copy())


def _time(field: str) -> Callable[[_Rows], pa.Array]:
    def build(rows: _Rows) -> pa.Array:
        milliseconds: Longs = getattr(rows.fields, field)
        if milliseconds.max(initial=0) <= _LARGEST_MS and milliseconds.min(initial=0) >= -_LARGEST_MS:
            return pa.Array.from_buffers(_TIME, rows.count, [None, pa.py_buffer(milliseconds * 1000)])
        # Only damaged records have such times; a time outside the range of the type is null.
        beyond = (milliseconds > _LARGEST_MS) | (milliseconds < -_LARGEST_MS)
        return pa.array(np.where(beyond, 0, milliseconds) * 1000, mask=beyond, type=pa.int64()).cast(_TIME)

    return build


def _property(name: bytes) -> Callable[[_Rows], pa.Array]:
    return lambda rows: rows.value_of(name)


def _texts(data: Bytes, starts: Longs, lengths: Longs, *, some_absent: bool = False) -> pa.Array:
    """Strings; with `some_absent`, null where the length is below 0."""
    values, offsets = gather(data, starts, lengths)
    validity, nulls = None, 0
    if some_absent:
        absent = lengths < 0
        nulls = int(np.count_nonzero(absent))
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little")) if nulls else None
    return _strings(values, offsets, validity, nulls)


def _strings(values: Bytes, offsets: Ints, validity: pa.Buffer | None = None, nulls: int = 0) -> pa.Array:
    """Consecutive texts, decoded as in Java."""
    if not is_ascii(values):
        values, long_offsets = well_formed(values, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64))
        offsets = long_offsets.astype(np.int32)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers, nulls)


def _topic(rows: _Rows) -> pa.Array:
    return _texts(rows.data, rows.fields.topic_start, rows.fields.topic_length)


def _body(rows: _Rows) -> pa.Array:
    values, offsets = rows.bodies
    return pa.Array.from_buffers(pa.binary(), rows.count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def _text(rows: _Rows) -> pa.Array:
    return _strings(*rows.texts)


def _properties(rows: _Rows) -> pa.Array:
    parsed = parse_all(rows.data, rows.fields.properties_start, rows.fields.properties_length)
    return pa.MapArray.from_arrays(pa.array(parsed.offsets), _strings(*parsed.names), _strings(*parsed.values))


def _host(start_field: str, word_field: str, v6_flag: int) -> Callable[[_Rows], pa.Array]:
    """ADDRESS:PORT. A few clients write most messages, so each distinct host is formatted once."""

    def build(rows: _Rows) -> pa.Array:
        starts: Longs = getattr(rows.fields, start_field)
        words: Longs = getattr(rows.fields, word_field)
        if rows.count and all_alike(words, rows.fields.sys_flag, v6_flag):
            text = _host_text(rows.data[starts[0] : starts[0] + _V4_HOST_BYTES].tobytes())
            return _repeated(text, rows.count)
        lengths = np.where(rows.fields.sys_flag & v6_flag, _V6_HOST_BYTES, _V4_HOST_BYTES)
        groups, firsts = group_spans(rows.data, starts, lengths)
        texts = [_host_text(rows.data[starts[row] : starts[row] + lengths[row]].tobytes()) for row in firsts]
        return pa.array(texts, pa.string()).take(pa.array(groups))

    return build


@lru_cache(maxsize=64)
def _host_text(raw: bytes) -> str:
    address = IPv4Address(raw[:4]) if len(raw) == _V4_HOST_BYTES else IPv6Address(raw[:16])
    return str(Host(address, int.from_bytes(raw[-4:], "big", signed=True)))


def _magic(rows: _Rows) -> pa.Array:
    return pa.array(_MAGIC[rows.fields.version])


def _segment(rows: _Rows) -> pa.Array:
    return _repeated(rows.segment.name, rows.count)


def _repeated(text: str, count: int) -> pa.Array:
    """A column with the same text in all rows, as a slice of one cached array: most chunks need the same text."""
    return _many(text, 1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=8)
def _many(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


_BUILDERS: dict[str, Callable[[_Rows], Any]] = {
    "topic": _topic,
    "queueId": _int32("queue_id"),
    "queueOffset": _int64("queue_offset"),
    "commitLogOffset": _int64("physical_offset"),
    "storeSize": _int32("total_size"),
    "body": _body,
    "properties": _properties,
    "tags": _property(b"TAGS"),
    "keys": _property(b"KEYS"),
    "uniqKey": _property(b"UNIQ_KEY"),
    "transactionId": _property(b"__transactionId__"),
    "flag": _int32("flag"),
    "sysFlag": _int32("sys_flag"),
    "bornTimestamp": _time("born_ms"),
    "storeTimestamp": _time("store_ms"),
    "bornHost": _host("born_host_start", "born_host_word", SysFlag.BORN_HOST_V6),
    "storeHost": _host("store_host_start", "store_host_word", SysFlag.STORE_HOST_V6),
    "reconsumeTimes": _int32("reconsume_times"),
    "preparedTransactionOffset": _int64("prepared_offset"),
    "bodyCRC": _int32("body_crc"),
    "magicCode": _magic,
    "segment": _segment,
    TEXT: _text,
}
