"""Bodies as producers compress them, and the SYSFLAG that says so."""

import struct
import zlib

import pyarrow as pa

PLAIN = 0
ZLIB_OF_OLD_CLIENTS = 1
LZ4, ZSTD, ZLIB = 1 | 1 << 8, 1 | 2 << 8, 1 | 3 << 8
TYPES = [ZLIB_OF_OLD_CLIENTS, LZ4, ZSTD, ZLIB]
BATCH = 1 << 6 | 1 << 7
"""NEED_UNWRAP and INNER_BATCH."""
_CODECS = {LZ4: "lz4", ZSTD: "zstd"}


def compressed(body: bytes, sys_flag: int) -> bytes:
    """As sysFlag says."""
    if not sys_flag & 1:
        return body
    codec = _CODECS.get(sys_flag & (1 | 7 << 8))
    if codec is None:
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue().to_pybytes())


def batch_body(*messages: tuple[bytes, int, bytes]) -> bytes:
    """(body, flag, properties) of each message, as MessageDecoder#encodeMessage writes them."""
    encoded = b""
    for body, flag, properties in messages:
        rest = struct.pack(">IIii", 0, 0, flag, len(body)) + body + struct.pack(">h", len(properties)) + properties
        encoded += struct.pack(">i", len(rest) + 4) + rest
    return encoded
