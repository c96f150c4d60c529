"""The chain of records in a damaged segment: which messages are concerned, and where it continues."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import V1, V2, make_blank, make_record, make_sealed
from support.scrubs import Placed, records_of

from commitlogfs.store.record_layout import BODY_AT
from commitlogfs.store.scrub import chain as chain_module
from commitlogfs.store.scrub.chain import Chain, check_chain
from commitlogfs.store.scrub.verdict import MOST_MESSAGES, Damage, Range
from commitlogfs.store.segment import BaseOffset

SIZE = 1 << 18
BASE = BaseOffset(5 * SIZE)
CONTENT = make_sealed(BASE, SIZE)
RECORDS = records_of(CONTENT, BASE)
CHAIN_FIELDS = [*range(12), *range(28, 36), *range(84, 88)]
"""Positions of size, magic, body CRC, log offset and body length in a record."""


def check(content: bytes, chunk: int = 4096) -> Chain:
    position = 0

    def load() -> bytes:
        nonlocal position
        data = content[position : position + chunk]
        position += len(data)
        return data

    chain = check_chain(load, BASE, len(content))
    assert position == len(content), "all of it is needed for the digest"
    return chain


def changed(position: int, new: bytes) -> bytes:
    return CONTENT[:position] + new + CONTENT[position + len(new) :]


def flipped(position: int, bit: int = 0) -> bytes:
    return changed(position, bytes([CONTENT[position] ^ 1 << bit]))


def require_named(chain: Chain, placed: Placed) -> None:
    (damage,) = chain.damages
    assert damage.range == (placed.position, placed.end)
    record = placed.record
    assert damage.message == (placed.position, record.topic, record.queue_id, record.queue_offset)


@pytest.mark.parametrize("chunk", [512, 4096, SIZE])
def test_a_sound_chain_has_no_damage(chunk: int) -> None:
    chain = check(CONTENT, chunk)
    assert (chain.damages, chain.has_end, chain.end) == ([], True, RECORDS[-1].end)


def test_the_number_of_damaged_messages_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "_MOST_DAMAGES", 2)
    content = bytearray(CONTENT)
    for placed in RECORDS[3:6]:
        content[placed.position + BODY_AT] ^= 1
    chain = check(bytes(content))
    found = [damage.range for damage in chain.damages]
    assert found == [*((placed.position, placed.end) for placed in RECORDS[3:5]), (RECORDS[5].position, SIZE)]
    content[RECORDS[5].position + BODY_AT] ^= 1
    assert len(check(bytes(content)).damages) == 2


@pytest.mark.parametrize("field", CHAIN_FIELDS)
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_of_a_chain_field_is_found_and_named(field: int, bit: int) -> None:
    placed = RECORDS[20]
    require_named(check(flipped(placed.position + field, bit)), placed)


@given(st.integers(0, len(RECORDS) - 2), st.data(), st.integers(0, 7))
def test_a_flipped_bit_of_a_body_is_found_and_named(index: int, data: st.DataObject, bit: int) -> None:
    placed = RECORDS[index]
    at = data.draw(st.integers(88, 88 + len(placed.record.body) - 1))
    require_named(check(flipped(placed.position + at, bit)), placed)


@given(st.integers(0, (RECORDS[-1].position - 4096) // 4096))
def test_a_zeroed_block_is_found(block: int) -> None:
    begin, end = block * 4096, (block + 1) * 4096
    chain = check(changed(begin, bytes(4096)))
    assert chain.damages
    hit = [placed for placed in RECORDS if placed.position < end and placed.end > begin]
    assert chain.damages[0].range.begin in (hit[0].position, hit[0].end)
    assert chain.damages[-1].range.end == hit[-1].end or chain.damages[-1].range.end == hit[-1].position
    assert chain.has_end


def test_lengths_of_topic_and_properties_are_found_out() -> None:
    placed = RECORDS[20]
    topic_at = placed.position + 88 + len(placed.record.body)
    for at in (topic_at, topic_at + 1 + len("TopicTest") + 1):
        require_named(check(flipped(at)), placed)


def test_records_with_ipv6_hosts_and_of_version_2_are_named() -> None:
    content = make_sealed(BASE, SIZE, magic=V2, born=("fe80::1", 1), stored=("::1", 2), property_crc=True)
    placed = records_of(content, BASE)[9]
    for field in (3, 7, 31, 84 + 24 + 3, placed.record.total_size - 30):
        at = placed.position + field
        require_named(check(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]), placed)


@pytest.mark.parametrize("tail", [1, 30, len(RECORDS)])
def test_a_zero_tail_is_no_damage(tail: int) -> None:
    """A segment that was sealed early, or never written to."""
    end = RECORDS[-tail].position
    chain = check(CONTENT[:end] + bytes(SIZE - end))
    assert (chain.damages, chain.has_end, chain.end) == ([], False, end)


def test_old_bytes_after_the_blank_record_are_no_damage() -> None:
    end = RECORDS[-1].end
    rest = SIZE - end
    old = make_record(BASE - SIZE + end, body=b"old" * 20)
    tail = (make_blank(rest) + old * (rest // len(old) + 1))[:rest]
    assert check(CONTENT[:end] + tail).damages == []


def test_a_damaged_blank_record_is_damage_to_the_end() -> None:
    end = RECORDS[-1].end
    (damage,) = check(flipped(end + 3)).damages
    assert (damage.range, damage.message) == ((end, SIZE), None)


@pytest.mark.parametrize("bit", range(64))
def test_a_flipped_bit_of_the_blank_record_is_no_damaged_message(bit: int) -> None:
    end = RECORDS[-1].end
    (damage,) = check(flipped(end + bit // 8, bit % 8)).damages
    assert damage == Damage(Range(end, SIZE), "the blank record is damaged", None, is_blank=True)


def test_a_message_before_the_end_that_was_lost_is_no_blank_record() -> None:
    placed = RECORDS[-1]
    (damage,) = check(changed(placed.position, b"\1" * (SIZE - placed.position))).damages
    assert (damage.range, damage.is_blank) == ((placed.position, SIZE), False)


@pytest.mark.parametrize("magic", [V1, V2])
@pytest.mark.parametrize("born", ["10.1.2.3", "fe80::1"])
def test_a_record_with_a_damaged_name_has_the_right_one(magic: int, born: str) -> None:
    """Its own checksum shows which byte is wrong."""
    content = make_sealed(BASE, SIZE, magic=magic, born=(born, 1), property_crc=True)
    placed = records_of(content, BASE)[9]
    topic_at = content.index(b"TopicTest", placed.position) - placed.position
    for field in (
        *range(12, 16),
        *range(20, 28),
        *range(topic_at, topic_at + 9),
        39,
        placed.record.total_size - 30,
    ):
        for mask in (1, 0x80, 0x55):
            at = placed.position + field
            if field != 39 or mask != 0x55:  # which makes the header of another length
                require_named(check(content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]), placed)


def test_a_damaged_name_after_many_unnamed_damages_has_the_right_one() -> None:
    """A verdict has room for it."""
    content = bytearray(make_sealed(BASE, SIZE, property_crc=True))
    records = records_of(bytes(content), BASE)
    for placed in records[1 : 2 * MOST_MESSAGES + 1 : 2]:
        content[placed.position : placed.end] = bytes(placed.end - placed.position)
    placed = records[2 * MOST_MESSAGES + 4]
    content[content.index(b"TopicTest", placed.position)] ^= 1
    *unnamed, last = check(bytes(content)).damages
    assert [damage.message for damage in unnamed] == [None] * MOST_MESSAGES
    assert last.message == (placed.position, "TopicTest", placed.record.queue_id, placed.record.queue_offset)


def test_a_long_record_with_a_damaged_name_has_none() -> None:
    record = bytearray(make_record(BASE, body=b"b" * 20_000, property_crc=True))
    record[27] ^= 1
    content = bytes(record) + make_record(BASE + len(record))
    content += make_blank(SIZE - len(content)).ljust(SIZE - len(content), b"\0")
    (damage,) = check(content).damages
    assert (damage.range, damage.message) == ((0, len(record)), None)


def test_an_old_record_in_the_chain_is_damage() -> None:
    placed = RECORDS[20]
    old = make_record(BASE - SIZE, body=placed.record.body)
    (damage,) = check(changed(placed.position, old)).damages
    assert damage.range == (placed.position, placed.end)


def test_something_else_than_a_log_ends_soon() -> None:
    noise = random.Random(1).randbytes(SIZE)  # noqa: S311
    (damage,) = check(noise).damages
    assert damage.range == (0, SIZE)


def test_what_looks_like_a_record_at_each_place_ends_soon() -> None:
    heads = struct.pack(">II", 200, 0xDAA320A7) * (SIZE // 8)
    assert check(heads).damages[-1].range.end == SIZE
