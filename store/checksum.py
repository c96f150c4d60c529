"""Checksum of a sealed segment, and its form in an extended attribute of the segment's file. Pure.

The attribute has 45 bytes, in little-endian order, so that ext4 keeps it inside an inode of 256 bytes:

    position   bytes
    0          1       version of this format: 1
    1          16      xxh3_128 of the whole content, in canonical (big-endian) order
    17         8       inode number, signed as this program keeps it
    25         8       size in bytes, signed
    33         8       mtime in ns since the epoch, signed
    41         4       CRC-32 of the 41 bytes before it

Inode, size and mtime are the key. A checksum counts only while they are those of the file: a program that writes to
the segment changes the mtime, and a copy has another inode. For a damaged segment it remains the checksum of the
right content (Kind.keeps_checksum in store/scrub/verdict.py).
"""

import struct
import zlib
from typing import Final, NamedTuple

FORMAT_VERSION: Final = 1
DIGEST_BYTES: Final = 16
_BODY: Final = struct.Struct("<B16sqqq")
_CRC: Final = struct.Struct("<I")


class Key(NamedTuple):
    """The state of a file for which its checksum counts."""

    ino: int
    size: int
    mtime_ns: int


class Checksum(NamedTuple):
    digest: bytes
    """xxh3_128 of the whole content, DIGEST_BYTES long."""
    key: Key


def format_checksum(checksum: Checksum) -> bytes:
    body = _BODY.pack(FORMAT_VERSION, checksum.digest, *checksum.key)
    return body + _CRC.pack(zlib.crc32(body))


def parse_checksum(raw: bytes) -> Checksum | None:
    """None for a damaged value, and for one of another version."""
    if len(raw) != _BODY.size + _CRC.size:
        return None
    body, crc = raw[: _BODY.size], raw[_BODY.size :]
    version, digest, *key = _BODY.unpack(body)
    if version != FORMAT_VERSION or crc != _CRC.pack(zlib.crc32(body)):
        return None
    return Checksum(digest, Key(*key))
