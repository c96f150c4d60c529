"""The topic of a record whose lengths are damaged: that of a naive search, found in short steps."""

import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import pytest
from support.records import V1, V2, make_record

from commitlogfs.store.record import RecordError, decode
from commitlogfs.store.scrub import chain as chain_module
from commitlogfs.store.scrub.chain import Load, check_chain, name_message
from commitlogfs.store.segment import BaseOffset

BASE: Final = BaseOffset(1 << 30)
BODY_AT: Final = 88
CONSTANT: Final = b"\xff\xff\xff\xff"
"""Zeros after these bytes do not change the CRC."""
SLICE: Final = 16 << 10
HOSTS: Final = (("10.1.2.3", 1), ("fe80::1", 2))


def with_damaged_body_length(length: int = 0x7FFFFFFF, at: int = 0, **fields: Any) -> bytes:
    record = bytearray(make_record(BASE + at, **fields))
    record[BODY_AT - 4 : BODY_AT] = struct.pack(">I", length)
    return bytes(record)


def topic_of(data: bytes) -> str:
    message = name_message(data, len(data), BASE, 0)
    assert message is not None
    return message.topic


# --- a naive search --------------------------------------------------------------------------------------


def naive_topic(data: bytes) -> str:
    """Each end of the body that has the record's CRC, and each length of the topic."""
    sys_flag = int.from_bytes(data[36:40], "big")
    body_at = BODY_AT + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    width = 2 if data[4:8] == V2.to_bytes(4, "big") else 1
    body_length = int.from_bytes(data[body_at - 4 : body_at], "big")
    for at in range(body_at, len(data)):
        if zlib.crc32(data[body_at:at]) & 0x7FFFFFFF == int.from_bytes(data[8:12], "big"):
            topic = naive_topic_at(data, at, width)
            if topic:
                return topic
    return naive_topic_at(data, body_at + body_length, width)


def naive_topic_at(data: bytes, at: int, width: int) -> str:
    begin, end = at + width, len(data) - 2
    if begin > end:
        return ""
    fitting = [
        length
        for length in range(256)
        if begin + length <= end
        and begin + length + 2 + int.from_bytes(data[begin + length :][:2], "big", signed=True) == len(data)
    ]
    own_length = int.from_bytes(data[at:begin], "big")
    for length in (*reversed(fitting), own_length):
        topic = data[begin : begin + length]
        if 0 < length <= end - begin and all(32 <= byte < 127 for byte in topic):
            return topic.decode()
    return ""


def adversarial(rng: random.Random) -> bytes:
    """A record whose CRC may be that of many bodies, and which may have text and fitting ends at many places."""
    size = rng.choice((0, 1, 30, 300))
    alphabet = rng.choice((b"\0", b"t", b"ab \0\x7f\x03", bytes(range(256))))
    record = bytearray(
        with_damaged_body_length(
            rng.choice((0, 1, size + 1, size, 0x7FFFFFFF, 0xFFFFFFFF)),
            body=rng.choice((b"", CONSTANT)) + bytes(rng.choices(alphabet, k=size)),
            topic=rng.choice((b"", b"topic", b"a\0b", b"T" * 127, "Ä".encode())),
            properties=rng.choice((b"", b"a\x01b\x02", b"p" * 300, bytes(40))),
            magic=rng.choice((V1, V2)),
            born=rng.choice(HOSTS),
            stored=rng.choice(HOSTS),
        )
    )
    for _ in range(rng.randrange(5)):
        at = rng.randrange(BODY_AT, len(record) - 1)
        end = min(at + rng.choice((1, 2, 40, 260)), len(record))
        match rng.randrange(3):
            case 0:
                record[at:end] = b"T" * (end - at)
            case 1:
                for fitting in range(at, end - 1, 2):
                    struct.pack_into(">H", record, fitting, len(record) - 2 - fitting)
            case 2:
                record[at] ^= 1 << rng.randrange(8)
    if rng.random() < 0.5:
        crc = zlib.crc32(record[BODY_AT : rng.randrange(BODY_AT, len(record))]) & 0x7FFFFFFF
        record[8:12] = struct.pack(">I", rng.choice((crc, 0)))
    return bytes(record)


@pytest.mark.parametrize("seed", range(4))
def test_topics_are_those_of_a_naive_search(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)  # noqa: S311
    for _ in range(150):
        monkeypatch.setattr(chain_module, "_SLICE_BYTES", rng.choice((1, 2, 7, 64, SLICE)))
        record = adversarial(rng)
        message = name_message(record, len(record), BASE, 0)
        if message is not None and not is_decoded(record):
            assert message.topic == naive_topic(record)


def is_decoded(record: bytes) -> bool:
    """Whether its lengths fit, in one of the versions, so that the topic needs no search."""
    for magic in (V1, V2):
        try:
            decode(record[:4] + struct.pack(">I", magic) + record[8:], BASE)
        except RecordError:
            continue
        return True
    return False


def test_the_longest_of_several_topics_with_fitting_properties_counts() -> None:
    """Its last four bytes are properties of two bytes, or belong to longer ones."""
    record = with_damaged_body_length(body=b"body", topic=b"topic", properties=b"t \x00\x02  ")
    assert topic_of(record) == "topic"
    longer = bytearray(record)
    struct.pack_into(">H", longer, len(record) - 8, 0x2020)
    assert topic_of(bytes(longer)) == "topic  t "


def followed_by_a_record(record: bytes) -> bytes:
    return record + make_record(BASE + len(record))


def loader(content: bytes) -> Load:
    return iter([content, b""]).__next__


# --- its work --------------------------------------------------------------------------------------------


class Lines:
    """Counts the lines of the module that run between two pauses."""

    def __init__(self) -> None:
        self.since_pause = 0
        self.pauses = 0

    def pause(self) -> None:
        self.pauses += 1
        self.since_pause = 0

    def trace(self, frame: FrameType, event: str, _argument: object) -> "Callable[..., Any] | None":
        if frame.f_code.co_filename != chain_module.__file__:
            return None
        if event == "line":
            self.since_pause += 1
            assert self.since_pause <= 32 * SLICE, "a long step"
        return self.trace


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines, former = Lines(), sys.gettrace()
    sys.settrace(lines.trace)
    yield lines
    sys.settrace(former)


def fitting_everywhere(size: int) -> bytes:
    """Text at whose every second byte properties may begin that reach to the end."""
    record = bytearray(with_damaged_body_length(body=CONSTANT + b"t" * size, properties=b""))
    for at in range(len(record) - 2, BODY_AT + 4, -2):
        if all(32 <= byte < 127 for byte in struct.pack(">H", len(record) - 2 - at)):
            struct.pack_into(">H", record, at, len(record) - 2 - at)
    return bytes(record)


@pytest.mark.parametrize(
    "record",
    [
        with_damaged_body_length(body=CONSTANT + bytes(65_000)),
        with_damaged_body_length(body=CONSTANT + bytes(65_000), topic=b"\x01"),
        with_damaged_body_length(body=b"t" * 65_000, magic=V2),
        with_damaged_body_length(body=b"\x20\x20t" * 20_000, crc=1),
        fitting_everywhere(65_000),
    ],
    ids=["one topic", "no topic", "text", "text and another CRC", "fitting ends"],
)
def test_a_topic_is_searched_in_short_steps(lines: Lines, record: bytes) -> None:
    content = followed_by_a_record(record)
    check_chain(loader(content), BASE, len(content), pause=lines.pause)
    assert lines.pauses >= 2 * 65_000 // SLICE  # of the search for the next record, and then of that for the topic


def test_the_topic_after_a_body_whose_crc_stays_the_same_is_found() -> None:
    assert topic_of(with_damaged_body_length(body=CONSTANT + bytes(65_000))) == "TopicTest"


def test_a_check_that_is_stopped_ends_while_it_searches_a_topic() -> None:
    class StoppedError(Exception):
        pass

    content = followed_by_a_record(with_damaged_body_length(body=CONSTANT + bytes(65_000)))
    pauses: list[None] = []
    check_chain(loader(content), BASE, len(content), pause=lambda: pauses.append(None))
    assert len(pauses) >= 2 * 65_000 // SLICE
    left = len(pauses) - 1

    def pause() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise StoppedError

    with pytest.raises(StoppedError):
        check_chain(loader(content), BASE, len(content), pause=pause)
