"""The codec against records built by hand from RocketMQ's layout."""

import struct
import zlib

import pytest
from support.records import V1, V2, make_blank, make_record

from commitlogfs.store import record
from commitlogfs.store.record import (
    BlankRecordError,
    Compression,
    DamagedRecordError,
    NotARecordError,
    RecordError,
    Transaction,
    TruncatedRecordError,
    WrongOffsetError,
    decode,
    locate_parts,
    parse_properties,
    peek,
    peek_store_time_ms,
)

AT = 5 << 20


def test_every_field_of_v1():
    raw = make_record(AT)
    found = decode(raw, AT)
    assert (found.total_size, found.version) == (len(raw), 1)
    assert (found.body, found.topic) == (b"hello", "TopicTest")
    assert (found.body_crc, found.body_crc_ok) == (zlib.crc32(b"hello") & 0x7FFFFFFF, True)
    assert (found.queue_id, found.flag, found.queue_offset, found.physical_offset) == (3, -7, 42, AT)
    assert (found.born_timestamp_ms, found.store_timestamp_ms) == (1_700_000_000_123, 1_700_000_000_456)
    assert (str(found.born_host), str(found.store_host)) == ("10.1.2.3:50123", "127.0.0.1:10911")
    assert (found.reconsume_times, found.prepared_transaction_offset, found.sys_flag) == (2, 99, 0)
    assert found.properties == {"TAGS": "A", "UNIQ_KEY": "7F0001"}
    assert found.property_crc_ok is None
    assert (found.transaction, found.compression) == (Transaction.NONE, None)


@pytest.mark.parametrize("magic", [V1, V2])
@pytest.mark.parametrize("born", ["10.1.2.3", "fe80::1"])
@pytest.mark.parametrize("stored", ["127.0.0.1", "::1"])
def test_each_ipv6_host_takes_twelve_bytes_more(magic, born, stored):
    raw = make_record(AT, magic=magic, born=(born, 1), stored=(stored, 2), body=b"", topic=b"", properties=b"")
    found = decode(raw, AT)
    v6 = [":" in born, ":" in stored]
    assert found.total_size == (91 if magic == V1 else 92) + 12 * sum(v6)
    assert (str(found.born_host.address), str(found.store_host.address)) == (born, stored)
    assert str(found.born_host) == (f"[{born}]:1" if v6[0] else f"{born}:1")
    assert (found.body, found.topic, found.properties, found.body_crc_ok) == (b"", "", {}, True)


def test_v2_takes_a_topic_longer_than_127_bytes():
    topic = b"%RETRY%" + b"g" * 200
    found = decode(make_record(AT, magic=V2, topic=topic), AT)
    assert (found.version, found.topic_bytes) == (2, topic)


def test_bytes_after_the_record_are_not_checked():
    raw = make_record(AT)
    assert decode(raw + b"\xff" * 100, AT) == decode(raw, AT)


@pytest.mark.parametrize(
    ("sys_flag", "transaction", "compression"),
    [
        (0, Transaction.NONE, None),
        (1, Transaction.NONE, Compression.ZLIB_OF_OLD_CLIENTS),
        (1 | 1 << 8, Transaction.NONE, Compression.LZ4),
        (1 | 2 << 8, Transaction.NONE, Compression.ZSTD),
        (1 | 3 << 8 | 4, Transaction.PREPARED, Compression.ZLIB),
        (8, Transaction.COMMIT, None),
        (12, Transaction.ROLLBACK, None),
    ],
)
def test_sys_flag(sys_flag, transaction, compression):
    found = decode(make_record(AT, sys_flag=sys_flag), AT)
    assert (found.transaction, found.compression) == (transaction, compression)


def test_a_wrong_body_checksum_is_told_not_refused():
    found = decode(make_record(AT, crc=1), AT)
    assert not found.body_crc_ok
    assert found.body == b"hello"


def test_the_top_bit_of_the_checksum_is_cleared():
    body = next(b"%d" % n for n in range(1000) if zlib.crc32(b"%d" % n) >> 31)
    assert record.body_crc(body) == zlib.crc32(body) - (1 << 31)


def test_checksum_in_the_properties():
    raw = make_record(AT, property_crc=True)
    assert decode(raw, AT).property_crc_ok is True
    damaged = bytearray(raw)
    damaged[41] ^= 1  # the born timestamp, which the body's checksum does not cover
    found = decode(bytes(damaged), AT)
    assert (found.property_crc_ok, found.body_crc_ok) == (False, True)
    assert found.properties["__CRC32#"].isdigit()


def test_a_checksum_property_of_other_than_digits_is_wrong():
    raw = make_record(AT, properties=b"A\x01b\x02__CRC32#\x01abcdefghij\x02")
    assert decode(raw, AT).property_crc_ok is False


# --- properties ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x01b\x02c\x01d\x02", {"a": "b", "c": "d"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01\x02\x01b\x02ab\x02\x02c\x01d\x02", {"c": "d"}),
        ("schlüssel\x01wert 😀\x02".encode(), {"schlüssel": "wert 😀"}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
)
def test_properties(raw, expected):
    assert parse_properties(raw) == expected


# --- bytes without a record -------------------------------------------------------------------------------


def test_a_blank_record_tells_how_much_it_fills():
    with pytest.raises(BlankRecordError) as caught:
        decode(make_blank(4096) + b"\xaa" * 8, AT)
    assert caught.value.size == 4096


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(200), "nothing is written"),
        (b"\xff" * 200, "no record begins here"),
        (make_record(AT)[1:], "no record begins here"),
        (struct.pack(">II", 90, V1) + bytes(90), "no record begins here"),
        (struct.pack(">II", 0, V1) + bytes(90), "no record begins here"),
    ],
)
def test_not_a_record(data, said):
    with pytest.raises(NotARecordError, match=said):
        decode(data, AT)


def test_every_cut_is_a_truncated_record():
    raw = make_record(AT)
    for length in range(len(raw)):
        with pytest.raises(TruncatedRecordError) as caught:
            decode(raw[:length], AT)
        assert caught.value.needed == (len(raw) if length >= 8 else 8)
        assert "\n" not in str(caught.value)


def test_peek_needs_eight_bytes():
    raw = make_record(AT)
    assert peek(raw[:8]) == len(raw)
    with pytest.raises(TruncatedRecordError):
        peek(raw[:7])


def test_a_record_of_another_offset_is_a_leftover():
    with pytest.raises(WrongOffsetError) as caught:
        decode(make_record(AT), AT + 4096)
    assert caught.value.physical_offset == AT


def patched(position: int, value: bytes) -> bytes:
    raw = make_record(AT)
    return raw[:position] + value + raw[position + len(value) :]


@pytest.mark.parametrize(
    "data",
    [
        patched(84, struct.pack(">i", -1)),  # body length
        patched(84, struct.pack(">i", 2**31 - 1)),
        patched(84, struct.pack(">i", 4)),
        patched(93, b"\xff"),  # topic length, signed
        patched(93, b"\x7f"),
        patched(103, struct.pack(">h", -1)),  # properties length
        patched(103, struct.pack(">h", 3)),
        patched(36, struct.pack(">i", 1 << 4)),  # says IPv6 where IPv4 lies
        struct.pack(">I", len(make_record(AT)) + 1) + make_record(AT)[4:] + b"x",
    ],
)
def test_lengths_that_do_not_fit(data):
    with pytest.raises(DamagedRecordError) as caught:
        decode(data, AT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("magic", [V1, V2])
def test_parts_are_located_by_their_lengths_only(magic: int) -> None:
    raw = make_record(AT, magic=magic)
    places: list[slice] = []

    def read(place: slice) -> bytes:
        places.append(place)
        return raw[place]

    parts = locate_parts(read, len(raw), magic, 88, len(b"hello"))
    assert [raw[part] for part in parts] == [b"hello", b"TopicTest", b"TAGS\x01A\x02UNIQ_KEY\x017F0001\x02"]
    assert b"".join(raw[place] for place in places) == (b"\x09" if magic == V1 else b"\0\x09") + b"\0\x17"


@pytest.mark.parametrize("magic", [V1, V2])
def test_a_length_that_is_not_there_is_a_damage(magic: int) -> None:
    """A segment may have become shorter than it was when its read began."""
    raw = make_record(AT, magic=magic)
    topic_at = 88 + len(b"hello")
    for end in (topic_at, topic_at + 1, len(raw) - 24):
        with pytest.raises(DamagedRecordError, match=r"bytes of a .* are there"):
            locate_parts(raw[:end].__getitem__, len(raw), magic, 88, len(b"hello"))


def test_no_single_flipped_bit_raises_anything_else():
    raw = make_record(AT, magic=V2, born=("::1", 5), property_crc=True)
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            try:
                found = decode(bytes(damaged), AT)
            except RecordError:
                continue
            assert found.property_crc_ok is not True


def test_the_store_time_is_in_the_header():
    for host in ("10.1.2.3", "::1"):
        raw = make_record(AT, born=(host, 50123), stored=(host, 10911))
        assert peek_store_time_ms(raw[: record.PEEKED_BYTES], AT) == decode(raw, AT).store_timestamp_ms
    raw = make_record(AT)
    assert peek_store_time_ms(raw, AT + 1) is None
    assert peek_store_time_ms(raw[:40], AT) is None
    assert peek_store_time_ms(make_blank(100), AT) is None
    assert peek_store_time_ms(bytes(100), AT) is None
