"""One body: what a consumer would get of it, and what is damage."""

import zlib

import pyarrow as pa
import pytest
from support.compressed import LZ4, PLAIN, TYPES, ZLIB, ZSTD, compressed

from commitlogfs.pipeline.bodies.compression import BodyError, decompress

LIMIT = 1 << 20
TEXT = b'{"order": 4711, "total": 12.5}' * 100


@pytest.mark.parametrize("sys_flag", TYPES)
@pytest.mark.parametrize("size", [1, len(TEXT), 300_000])
def test_it_comes_back(sys_flag: int, size: int) -> None:
    body = (TEXT * 200)[:size]
    assert decompress(compressed(body, sys_flag), sys_flag, LIMIT) == body


def test_plain_and_empty_bodies_are_as_they_are() -> None:
    assert decompress(TEXT, PLAIN, LIMIT) == TEXT
    assert decompress(TEXT, PLAIN | 7 << 8, LIMIT) == TEXT, "the type has no meaning without bit 0"
    assert decompress(b"", ZSTD, LIMIT) == b""


@pytest.mark.parametrize("sys_flag", TYPES)
def test_a_truncated_one_is_damage_wherever_it_ends(sys_flag: int) -> None:
    whole = compressed(TEXT, sys_flag)
    for length in range(1, len(whole)):
        with pytest.raises(BodyError, match="stream"):
            decompress(whole[:length], sys_flag, LIMIT)


@pytest.mark.parametrize("sys_flag", TYPES)
def test_a_body_of_another_type_is_damage(sys_flag: int) -> None:
    other = compressed(TEXT, LZ4 if sys_flag != LZ4 else ZLIB)
    for body in (TEXT, other, bytes(100)):
        with pytest.raises(BodyError, match="stream"):
            decompress(body, sys_flag, LIMIT)


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_an_unknown_type_is_damage(number: int) -> None:
    with pytest.raises(BodyError, match=f"unknown compression type {number}"):
        decompress(TEXT, 1 | number << 8, LIMIT)


@pytest.mark.parametrize("sys_flag", TYPES)
def test_the_limit_is_the_last_size_that_is_read(sys_flag: int) -> None:
    assert decompress(compressed(bytes(LIMIT), sys_flag), sys_flag, LIMIT) == bytes(LIMIT)
    with pytest.raises(BodyError, match="decompresses to more than 1,048,576 bytes"):
        decompress(compressed(bytes(LIMIT + 1), sys_flag), sys_flag, LIMIT)


@pytest.mark.parametrize("sys_flag", TYPES)
def test_a_bomb_takes_little_memory(sys_flag: int) -> None:
    bomb = compressed(bytes(64 << 20), sys_flag)
    before = pa.total_allocated_bytes()
    with pytest.raises(BodyError, match="more than"):
        decompress(bomb, sys_flag, LIMIT)
    assert pa.total_allocated_bytes() <= before + 16 * LIMIT


def test_bytes_after_a_zlib_stream_are_ignored_as_in_java() -> None:
    assert decompress(zlib.compress(TEXT) + b"rest", ZLIB, LIMIT) == TEXT
