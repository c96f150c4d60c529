"""The format of the journal: a ring of slots of fixed size. Pure.

A file is a header and SLOTS slots. An entry takes as many consecutive slots as its payload needs, at most
MAX_PARTS. Each slot has a checksum and its sequence number, which grows by one with each slot and says where the
slot lies. So a slot that was torn by a crash, is from a former turn of the ring, or was damaged is recognised, and
its entry is left out.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

SLOT_BYTES: Final = 512
SLOTS: Final = 4096
MAX_PARTS: Final = 16
_SLOT: Final = struct.Struct("<IQBBH")
"""crc32 of all that follows, sequence number, index of the part, number of parts, length of its payload."""
PART_BYTES: Final = SLOT_BYTES - _SLOT.size
MAX_PAYLOAD_BYTES: Final = PART_BYTES * MAX_PARTS
_CHECKSUM_BYTES: Final = 4
_HEADER: Final = struct.Struct("<I8sHHI128s")
"""crc32 of all that follows, magic, version, bytes of a slot, number of slots, id of the pool."""
_MAGIC: Final = b"clfsjrnl"
_VERSION: Final = 1
HEADER_BYTES: Final = SLOT_BYTES
FILE_BYTES: Final = HEADER_BYTES + SLOTS * SLOT_BYTES


class Record(NamedTuple):
    sequence: int
    """Sequence number of its first slot."""
    payload: bytes


class _Head(NamedTuple):
    sequence: int
    part: int


class _Part(NamedTuple):
    number: int
    parts: int
    payload: bytes


def encode_header(pool_id: str) -> bytes:
    body = _HEADER.pack(0, _MAGIC, _VERSION, SLOT_BYTES, SLOTS, pool_id.encode())[_CHECKSUM_BYTES:]
    return _with_checksum(body).ljust(HEADER_BYTES, b"\0")


def is_journal_of(content: bytes, pool_id: str) -> bool:
    """Whether a file with this content is a whole journal of this version and pool."""
    return len(content) == FILE_BYTES and content[:HEADER_BYTES] == encode_header(pool_id)


def is_journal(content: bytes) -> bool:
    """Whether a file with this content is a journal of this version, of any pool; it may be short."""
    if len(content) < HEADER_BYTES:
        return False
    crc, magic, version, slot_bytes, slots, _ = _HEADER.unpack_from(content)
    valid = crc == zlib.crc32(content[_CHECKSUM_BYTES : _HEADER.size])
    return valid and (magic, version, slot_bytes, slots) == (_MAGIC, _VERSION, SLOT_BYTES, SLOTS)


def encode(sequence: int, payload: bytes) -> list[bytes]:
    """The slots of an entry, the first of which gets this sequence number. Raises ValueError for a payload of more
    than MAX_PAYLOAD_BYTES."""
    count = max(1, -(-len(payload) // PART_BYTES))
    if count > MAX_PARTS:
        raise ValueError(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes")
    slots = []
    for index in range(count):
        part = payload[index * PART_BYTES : (index + 1) * PART_BYTES]
        head = _SLOT.pack(0, sequence + index, index, count, len(part))[_CHECKSUM_BYTES:]
        slots.append(_with_checksum((head + part).ljust(SLOT_BYTES - _CHECKSUM_BYTES, b"\0")))
    return slots


def position(sequence: int) -> int:
    """Where the slot with this sequence number lies in the file."""
    return HEADER_BYTES + sequence % SLOTS * SLOT_BYTES


def next_sequence(content: bytes) -> int:
    """The sequence number that follows all that are there; 0 for an empty journal."""
    used = sorted((head.sequence for head in _heads(content)), reverse=True)
    return next((sequence + 1 for sequence in used if _part(content, sequence) is not None), 0)


def newest_first(content: bytes, *, is_reversed: bool = False) -> Iterator[Record]:
    """The whole entries of a journal, or with `is_reversed` the oldest first. What is not taken is not checked."""
    first_parts = (head.sequence for head in _heads(content) if head.part == 0)
    for sequence in sorted(first_parts, reverse=not is_reversed):
        payload = _payload(content, sequence)
        if payload is not None:
            yield Record(sequence, payload)


def _payload(content: bytes, first: int) -> bytes | None:
    """Payload of the entry whose first slot has this sequence number; None if a part of it is not there."""
    part = _part(content, first)
    if part is None:
        return None
    payload, count = part.payload, part.parts
    for index in range(1, count):
        part = _part(content, first + index)
        if part is None or (part.number, part.parts) != (index, count):
            return None
        payload += part.payload
    return payload


def _part(content: bytes, sequence: int) -> _Part | None:
    """The slot with this sequence number; None if it is not there, or its checksum is wrong."""
    slot = content[position(sequence) : position(sequence) + SLOT_BYTES]
    if len(slot) < SLOT_BYTES:
        return None
    crc, found, number, count, length = _SLOT.unpack_from(slot)
    is_used = found == sequence and 0 < count <= MAX_PARTS and length <= PART_BYTES
    if not is_used or crc != zlib.crc32(slot[_CHECKSUM_BYTES:]):
        return None
    return _Part(number, count, slot[_SLOT.size : _SLOT.size + length])


def _heads(content: bytes) -> Iterator[_Head]:
    """The heads of the used slots, unchecked, which is much faster."""
    slots = min(SLOTS, max(0, len(content) - HEADER_BYTES) // SLOT_BYTES)
    for index in range(slots):
        _, sequence, part, count, _ = _SLOT.unpack_from(content, HEADER_BYTES + index * SLOT_BYTES)
        if count and sequence % SLOTS == index:
            yield _Head(sequence, part)


def _with_checksum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body
