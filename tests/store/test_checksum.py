"""The value of the checksum attribute: its form, and that nothing damaged is taken for one."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.checksum import Checksum, Key, format_checksum, parse_checksum

SIGNED = st.integers(-(2**63), 2**63 - 1)
KNOWN = Checksum(bytes(range(16)), Key(12, 1 << 30, 1_600_000_000_123_456_789))


@given(st.binary(min_size=16, max_size=16), SIGNED, SIGNED, SIGNED)
def test_a_formatted_checksum_is_parsed(digest: bytes, ino: int, size: int, mtime_ns: int) -> None:
    checksum = Checksum(digest, Key(ino, size, mtime_ns))
    assert parse_checksum(format_checksum(checksum)) == checksum


def test_the_form_is_as_documented() -> None:
    raw = format_checksum(KNOWN)
    assert len(raw) == 45
    assert raw[:17] == b"\x01" + KNOWN.digest
    assert struct.unpack("<qqq", raw[17:41]) == tuple(KNOWN.key)
    assert raw[41:] == zlib.crc32(raw[:41]).to_bytes(4, "little")


@pytest.mark.parametrize("bit", range(45 * 8))
def test_a_flipped_bit_makes_it_absent(bit: int) -> None:
    raw = bytearray(format_checksum(KNOWN))
    raw[bit // 8] ^= 1 << bit % 8
    assert parse_checksum(bytes(raw)) is None


@given(st.binary(max_size=100))
def test_other_values_are_absent(raw: bytes) -> None:
    assert parse_checksum(raw) is None
    assert parse_checksum(format_checksum(KNOWN) + raw) == (None if raw else KNOWN)


def test_another_version_is_absent() -> None:
    body = b"\x02" + format_checksum(KNOWN)[1:41]
    assert parse_checksum(body + zlib.crc32(body).to_bytes(4, "little")) is None
