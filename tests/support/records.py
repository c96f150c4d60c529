"""RocketMQ records built by hand, field by field, from the documented layout: nothing of ours is used."""

import itertools
import socket
import struct
import zlib
from typing import Any

V1 = 0xDAA320A7
V2 = 0xDAA320AB
BLANK = 0xCBD43194

BORN_V6 = 1 << 4
STORE_V6 = 1 << 5


def make_record(
    offset: int,
    *,
    body: bytes = b"hello",
    topic: bytes = b"TopicTest",
    properties: bytes = b"TAGS\x01A\x02UNIQ_KEY\x017F0001\x02",
    magic: int = V1,
    queue_id: int = 3,
    flag: int = -7,
    queue_offset: int = 42,
    sys_flag: int = 0,
    born: tuple[str, int] = ("10.1.2.3", 50123),
    stored: tuple[str, int] = ("127.0.0.1", 10911),
    crc: int | None = None,
    property_crc: bool = False,
    store_ms: int = 1_700_000_000_456,
) -> bytes:
    """One whole record that lies at log offset `offset`. An address with a colon makes it IPv6."""
    sys_flag |= (BORN_V6 if ":" in born[0] else 0) | (STORE_V6 if ":" in stored[0] else 0)
    full_properties = properties + (b"__CRC32#\x01" + b"?" * 10 + b"\x02" if property_crc else b"")
    record = struct.pack(">I", magic)
    record += struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF if crc is None else crc)
    record += struct.pack(">i", queue_id) + struct.pack(">i", flag)
    record += struct.pack(">q", queue_offset) + struct.pack(">q", offset)
    record += struct.pack(">i", sys_flag)
    record += struct.pack(">q", 1_700_000_000_123) + _host(born)
    record += struct.pack(">q", store_ms) + _host(stored)
    record += struct.pack(">i", 2) + struct.pack(">q", 99)
    record += struct.pack(">i", len(body)) + body
    record += struct.pack(">b" if magic == V1 else ">h", len(topic)) + topic
    record += struct.pack(">h", len(full_properties)) + full_properties
    record = struct.pack(">I", len(record) + 4) + record
    if property_crc:
        digits = f"{zlib.crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1]
        record = record[:-11] + digits.encode() + b"\x02"
    return record


def make_blank(size: int) -> bytes:
    """The blank record, which fills the rest of a segment: only its first 8 bytes are defined."""
    return struct.pack(">II", size, BLANK)


def make_sealed(base_offset: int, size: int, **fields: Any) -> bytes:
    """The content of a whole sealed segment, with bodies of different lengths. `fields`: as for make_record."""
    content = bytearray()
    for number in itertools.count():
        body = bytes([number % 251]) * (100 + 37 * (number % 100))
        record = make_record(base_offset + len(content), body=body, queue_offset=number, **fields)
        if len(content) + len(record) + 8 > size:
            break
        content += record
    return bytes(content + make_blank(size - len(content))).ljust(size, b"\0")


def _host(host: tuple[str, int]) -> bytes:
    family = socket.AF_INET6 if ":" in host[0] else socket.AF_INET
    return socket.inet_pton(family, host[0]) + struct.pack(">i", host[1])
