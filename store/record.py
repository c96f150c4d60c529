"""One record of the log: RocketMQ's message format V1 and V2, decoded. Pure: bytes in, values out.

The layout is that of `store.record_layout`.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag
from ipaddress import IPv4Address, IPv6Address

from commitlogfs.store.errors import StoreError
from commitlogfs.store.record_layout import (
    BODY_AT,
    BORN_HOST_AT,
    BORN_HOST_V6_BIT,
    IPV6_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECONSUME_TIMES_AT,
    SIZE_AND_MAGIC_BYTES,
    SMALLEST_RECORD_BYTES,
    STORE_HOST_V6_BIT,
    STORE_TIMESTAMP_AT,
)

PEEKED_BYTES = STORE_TIMESTAMP_AT + IPV6_EXTRA + 8
"""Bytes from a record's beginning that `peek_store_time_ms` needs."""

PROPERTY_CRC_BYTES = 20
"""Length of the record's own checksum, which some brokers add as the last property, `__CRC32#`."""

_HEADER = struct.Struct(">II")
_BEFORE_BORN_HOST = struct.Struct(">IIIiiqqiq")
_PORT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BEFORE_BODY = struct.Struct(">iqi")
_SHORT = struct.Struct(">h")
assert _HEADER.size == SIZE_AND_MAGIC_BYTES
assert _BEFORE_BORN_HOST.size == BORN_HOST_AT
assert _BEFORE_BODY.size == BODY_AT - RECONSUME_TIMES_AT
_PROPERTY_CRC_NAME = b"__CRC32#\x01"
_CRC_MASK = 0x7FFFFFFF
_GROUP = "group of fields"


class SysFlag(IntFlag):
    """RocketMQ's MessageSysFlag. Transaction state and compression are not here: they have several bits each."""

    COMPRESSED = 1 << 0
    MULTI_TAGS = 1 << 1
    BORN_HOST_V6 = 1 << BORN_HOST_V6_BIT
    STORE_HOST_V6 = 1 << STORE_HOST_V6_BIT
    NEED_UNWRAP = 1 << 6
    INNER_BATCH = 1 << 7


class Transaction(Enum):
    NONE = 0
    PREPARED = 4
    COMMIT = 8
    ROLLBACK = 12


class Compression(Enum):
    ZLIB_OF_OLD_CLIENTS = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


_TRANSACTION_BITS = 0b1100
_COMPRESSION_SHIFT, _COMPRESSION_BITS = 8, 0b111


# --- what can be wrong -----------------------------------------------------------------------------------


class RecordError(StoreError):
    """No record could be decoded; the message says why."""


class BlankRecordError(RecordError):
    """The blank record at the end of a segment begins here. It has `size` bytes; then the next segment begins."""

    def __init__(self, size: int) -> None:
        super().__init__("a blank record, which fills the rest of a segment; the log continues in the next segment")
        self.size = size


class NotARecordError(RecordError):
    """No record begins here."""


class TruncatedRecordError(RecordError):
    """A record begins here, but only a part of its `needed` bytes was given."""

    def __init__(self, needed: int, given: int) -> None:
        super().__init__(f"an incomplete record: {given} of its {needed} bytes are there")
        self.needed = needed


class WrongOffsetError(RecordError):
    """A whole record is here, but it belongs to `physical_offset`: it remains from an earlier use of these
    bytes."""

    def __init__(self, physical_offset: int) -> None:
        super().__init__(f"an old record, which belongs to log offset {physical_offset}")
        self.physical_offset = physical_offset


class DamagedRecordError(RecordError):
    """The fields of a record contradict each other."""


# --- the record ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Host:
    address: IPv4Address | IPv6Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Record:
    """One message as it is stored in the log.

    Times are milliseconds since the epoch. `body` is as stored, so it may be compressed.
    """

    total_size: int
    version: int
    """Version of the message format: 1 or 2."""
    body_crc: int
    queue_id: int
    flag: int
    """Flag that the producer chose; RocketMQ does not use it."""
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic_bytes: bytes
    properties_bytes: bytes
    property_crc_ok: bool | None
    """Whether the checksum of the whole record is right; None if the broker did not add one."""

    @property
    def topic(self) -> str:
        return self.topic_bytes.decode(errors="replace")

    @property
    def properties(self) -> dict[str, str]:
        return parse_properties(self.properties_bytes)

    @property
    def body_crc_ok(self) -> bool:
        return body_crc(self.body) == self.body_crc

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.sys_flag & _TRANSACTION_BITS)

    @property
    def compression(self) -> Compression | None:
        """Compression of the body; None if it is not compressed. Raises ValueError for a number that RocketMQ does
        not define."""
        return compression_of(self.sys_flag)


def compression_of(sys_flag: int) -> Compression | None:
    """Compression of the body of a message with this SYSFLAG. Raises ValueError for a number that RocketMQ does
    not define (CompressionType#findByValue)."""
    if not sys_flag & SysFlag.COMPRESSED:
        return None
    number = sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_BITS
    try:
        return Compression(number)
    except ValueError:
        raise ValueError(f"unknown compression type {number}") from None


def body_crc(body: bytes) -> int:
    """CRC-32 without its top bit (UtilAll#crc32)."""
    return zlib.crc32(body) & _CRC_MASK


def parse_properties(raw: bytes) -> dict[str, str]:
    """Properties in `raw`, which is `name 0x01 value 0x02` repeated.

    RocketMQ's rules (MessageDecoder#string2messageProperties): the first 0x01 separates name and value, an item
    without name or value is dropped, and of several values of one name the last counts.
    """
    properties = {}
    for piece in raw.decode(errors="replace").split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def peek(data: bytes) -> int:
    """Size of the record that begins with `data`, of which at least SIZE_AND_MAGIC_BYTES are needed.

    Raises BlankRecordError, NotARecordError, TruncatedRecordError.
    """
    if len(data) < SIZE_AND_MAGIC_BYTES:
        raise TruncatedRecordError(SIZE_AND_MAGIC_BYTES, len(data))
    total_size: int
    magic: int
    total_size, magic = _HEADER.unpack_from(data)
    if magic == MAGIC_BLANK:
        raise BlankRecordError(total_size)
    if not any(data[:SIZE_AND_MAGIC_BYTES]):
        raise NotARecordError("nothing is written here yet")
    if magic not in (MAGIC_V1, MAGIC_V2) or total_size < SMALLEST_RECORD_BYTES:
        raise NotARecordError("no record begins here")
    return total_size


def peek_store_time_ms(data: bytes, physical_offset: int) -> int | None:
    """Store time of the record at log offset `physical_offset`, which begins with `data`; None if there is none.

    Only the header counts: `data` has PEEKED_BYTES, or fewer.
    """
    try:
        peek(data)
        reader = _Reader(data.__getitem__, len(data))
        *_, own_offset, sys_flag, _ = reader.unpack(_BEFORE_BORN_HOST)
        if own_offset != physical_offset:
            return None
        reader.host(v6=bool(sys_flag & SysFlag.BORN_HOST_V6))
        store_ms: int = reader.unpack(_LONG)[0]
    except RecordError:
        return None
    return store_ms


def decode(data: bytes, physical_offset: int) -> Record:
    """The record at log offset `physical_offset`, with which `data` begins; `data` may be longer.

    A wrong checksum is no error: see `body_crc_ok` and `property_crc_ok`. Raises BlankRecordError, NotARecordError,
    TruncatedRecordError, WrongOffsetError, DamagedRecordError.
    """
    total_size = peek(data)
    if len(data) < total_size:
        raise TruncatedRecordError(total_size, len(data))
    reader = _Reader(data.__getitem__, total_size)
    (_, magic, crc, queue_id, flag, queue_offset, own_offset, sys_flag, born_ms) = reader.unpack(_BEFORE_BORN_HOST)
    if own_offset != physical_offset:
        raise WrongOffsetError(own_offset)
    born_host = reader.host(v6=bool(sys_flag & SysFlag.BORN_HOST_V6))
    (store_ms,) = reader.unpack(_LONG)
    store_host = reader.host(v6=bool(sys_flag & SysFlag.STORE_HOST_V6))
    reconsume_times, prepared_offset, body_length = reader.unpack(_BEFORE_BODY)
    body, topic, properties = map(data.__getitem__, reader.parts(magic, body_length))
    return Record(
        total_size=total_size,
        version=1 if magic == MAGIC_V1 else 2,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=own_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_host=born_host,
        store_timestamp_ms=store_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body=body,
        topic_bytes=topic,
        properties_bytes=properties,
        property_crc_ok=_check_property_crc(data[:total_size], properties),
    )


def locate_parts(
    read: Callable[[slice], bytes], total_size: int, magic: int, body_at: int, body_length: int
) -> tuple[slice, slice, slice]:
    """Places of body, topic and properties in a record. Of it, only the lengths of topic and properties are read.

    Raises DamagedRecordError if the parts do not add up to the record's size, or if `read` returns fewer bytes.
    """
    return _Reader(read, total_size, body_at).parts(magic, body_length)


class _Reader:
    """Reads the fields of one record one after the other. Raises DamagedRecordError if one does not fit into it, or
    if not all of its bytes are there."""

    def __init__(self, read: Callable[[slice], bytes], size: int, position: int = 0) -> None:
        self._read = read
        self._size = size
        self._position = position

    def skip(self, length: int, what: str) -> slice:
        """The place of the next field, which is not read."""
        begin = self._position
        end = begin + length
        if not begin <= end <= self._size:
            raise DamagedRecordError(f"a damaged record: a {what} of {length} bytes does not fit into it")
        self._position = end
        return slice(begin, end)

    def take(self, length: int, what: str) -> bytes:
        taken = self._read(self.skip(length, what))
        if len(taken) < length:
            raise DamagedRecordError(f"a damaged record: {len(taken)} of the {length} bytes of a {what} are there")
        return taken

    def parts(self, magic: int, body_length: int) -> tuple[slice, slice, slice]:
        """Places of body, topic and properties, with which the record ends."""
        body = self.skip(body_length, "body")
        topic_length = self.take(1, "topic length") if magic == MAGIC_V1 else self.take(_SHORT.size, _GROUP)
        topic = self.skip(int.from_bytes(topic_length, "big", signed=True), "topic")
        (properties_length,) = self.unpack(_SHORT)
        properties = self.skip(properties_length, "properties")
        if self._position != self._size:
            left = self._size - self._position
            raise DamagedRecordError(f"a damaged record: {left} bytes are left after its last field")
        return body, topic, properties

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        return fields.unpack(self.take(fields.size, _GROUP))

    def host(self, *, v6: bool) -> Host:
        raw = self.take(16 if v6 else 4, "host address")
        (port,) = self.unpack(_PORT)
        return Host(IPv6Address(raw) if v6 else IPv4Address(raw), port)


def _check_property_crc(record: bytes, properties: bytes) -> bool | None:
    """Whether the record's own checksum is right; None if it has none.

    The record's last bytes are `__CRC32#`, 0x01, ten decimal digits with the least significant first, and 0x02. The
    checksum covers all bytes before them (CommitLog.CRC32_RESERVED_LEN, MessageDecoder#createCrc32).
    """
    tail = properties[-PROPERTY_CRC_BYTES:]
    if len(tail) < PROPERTY_CRC_BYTES or not tail.startswith(_PROPERTY_CRC_NAME) or tail[-1:] != b"\x02":
        return None
    return property_crc_of(record) == zlib.crc32(record[:-PROPERTY_CRC_BYTES]) & _CRC_MASK


def property_crc_of(record: bytes) -> int | None:
    """The checksum in the last bytes of a record that has one; None if these are not digits."""
    digits = record[len(_PROPERTY_CRC_NAME) - PROPERTY_CRC_BYTES : -1]
    return int(digits[::-1]) if digits.isdigit() else None
