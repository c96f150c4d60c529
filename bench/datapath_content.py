"""Content of the segments and its check: every page holds its own number, so that no two pages are equal."""

import mmap
import os
import random
import struct

from commitlogfs.bench.catalog_figures import WrongResultError

PAGE = mmap.PAGESIZE
CHUNK = 1 << 20
_PAGES = CHUNK // PAGE
_NUMBER = struct.Struct(">Q")
_FIRST_PAGE_OF_SEGMENT = 1 << 32
_FILLER = random.Random(20260101).randbytes(CHUNK)  # noqa: S311 - incompressible, and the same in every run


def page_number(segment: int, position: int) -> int:
    return segment * _FIRST_PAGE_OF_SEGMENT + position // PAGE


def make_chunk(segment: int, position: int) -> bytes:
    """The CHUNK bytes at this position, a multiple of CHUNK, of this segment."""
    chunk = bytearray(_FILLER)
    first = page_number(segment, position)
    for page in range(_PAGES):
        _NUMBER.pack_into(chunk, page * PAGE, first + page)
    return bytes(chunk)


def make_page(segment: int, position: int) -> bytes:
    start = position % CHUNK
    return _NUMBER.pack(page_number(segment, position)) + _FILLER[start + _NUMBER.size : start + PAGE]


def starts_with(buffer: memoryview | bytes | bytearray, segment: int, position: int) -> bool:
    """Whether the buffer begins with this page: a cheap check for timed loops."""
    number: int = _NUMBER.unpack_from(buffer)[0]
    return number == page_number(segment, position)


def write_segment(fd: int, segment: int, size: int) -> None:
    for position in range(0, size, CHUNK):
        chunk = make_chunk(segment, position)
        if os.pwrite(fd, chunk, position) != CHUNK:
            raise WrongResultError(f"segment {segment}: a short write at {position}")
    os.fsync(fd)


def verify_segment(fd: int, segment: int, size: int) -> None:
    """Compare every byte. Raises WrongResultError."""
    buffer = bytearray(CHUNK)
    for position in range(0, size, CHUNK):
        if os.preadv(fd, [buffer], position) != CHUNK or buffer != make_chunk(segment, position):
            raise WrongResultError(f"segment {segment}: other bytes than written from {position} on")
