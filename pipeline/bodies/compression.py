"""Decompresses one body, as RocketMQ's consumers do (MessageDecoder#decode)."""

import zlib
from typing import Final

import pyarrow as pa

from commitlogfs.store.record import Compression, compression_of

_FIRST_READ: Final = 64 << 10
_CODECS: Final = {Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


class BodyError(ValueError):
    """A body that cannot be decompressed; the text is the reason."""


def decompress(body: bytes, sys_flag: int, limit: int) -> bytes:
    """The body of a message with this SYSFLAG; an empty one, or one that is not compressed, as it is.

    Raises BodyError for an unknown type, for a stream that is malformed or truncated, and for one that yields more
    than `limit` bytes; little more than that is ever in memory.
    """
    try:
        kind = compression_of(sys_flag)
    except ValueError as error:
        raise BodyError(f"the body has an {error}") from None
    if kind is None or not body:
        return body
    codec = _CODECS.get(kind)
    found = _inflated(body, limit) if codec is None else _decoded(body, codec, limit)
    if len(found) > limit:
        raise BodyError(f"the body decompresses to more than {limit:,} bytes")
    return found


def _inflated(body: bytes, limit: int) -> bytes:
    """At most `limit` + 1 bytes. Bytes after the stream's end are ignored, as by Java's InflaterInputStream."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(body, limit + 1)
    except zlib.error:
        raise BodyError("the body is not a zlib stream") from None
    if not stream.eof and len(found) <= limit:
        raise BodyError("the body is a truncated zlib stream")
    return found


def _decoded(body: bytes, codec: str, limit: int) -> bytes:
    """At most `limit` + 1 bytes, read in steps: a step is allocated before it is known to be needed."""
    parts: list[bytes] = []
    size, step = 0, max(_FIRST_READ, 4 * len(body))
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while size <= limit and (part := stream.read(min(step, limit + 1 - size))):
                parts.append(part)
                size += len(part)
                step = size
    except OSError:
        raise BodyError(f"the body is not a complete {codec} stream") from None
    return b"".join(parts)
