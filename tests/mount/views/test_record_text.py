"""A record in words: what an operator, and a terminal, get to see."""

import base64
import json
import zlib
from typing import Any

from support.records import V2, make_record

from commitlogfs.mount.views.record_text import describe_record, is_intact, record_as_json
from commitlogfs.store.record import decode

AT = 1 << 20


def described(**fields: Any) -> list[str]:
    return describe_record(decode(make_record(AT, **fields), AT))


def test_every_field_has_its_line(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    lines = described(born=("fe80::1", 7), magic=V2, property_crc=True)
    for line in [
        "topic       TopicTest",
        "queue       3, offset 42",
        "stored      2023-11-14 22:13:20.456 at 127.0.0.1:10911",
        "flags       none",
        "reconsumed  2 times",
        "user flag   -7",
        "prepared at offset 99",
        "property    TAGS = A",
        "record CRC  correct",
        "body        5 bytes, CRC 3610a686, correct",
    ]:
        assert line in lines
    assert lines[0].startswith("offset      1048576, ")
    assert lines[0].endswith(" bytes, format V2")
    assert lines[-2:] == ["", "hello"]


def test_flags_in_words():
    assert "flags       compressed (lz4), transaction commit, several tags" in described(
        sys_flag=1 | 1 << 8 | 8 | 2
    )


def test_a_zlib_body_is_shown_unpacked():
    packed = zlib.compress(b"what the producer sent " * 20)
    lines = described(sys_flag=1 | 3 << 8, body=packed)
    assert lines[-1] == "what the producer sent " * 20
    assert f"{'':<12}460 bytes when unpacked" in lines
    assert described(sys_flag=1, body=packed)[-1] == lines[-1]


def test_a_body_that_does_not_unpack_is_shown_as_it_is():
    assert described(sys_flag=1 | 3 << 8, body=b"no zlib")[-1].endswith("no zlib")
    assert described(sys_flag=1 | 2 << 8, body=b"\x28\xb5\x2f\xfd")[-1].startswith("000000  28 b5 2f fd")


def test_a_binary_body_is_a_hexdump():
    lines = described(body=bytes(range(20)))
    assert lines[-2] == "000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert lines[-1].startswith("000010  10 11 12 13 ")


def test_long_bodies_are_cut():
    assert described(body=b"x" * 5000)[-1] == "... and 3,000 characters more: --raw and --json show all"
    assert described(body=b"\0" * 5000)[-1] == "... and 4,488 bytes more: --raw and --json show all"


def test_nothing_in_a_record_steers_the_terminal():
    lines = described(topic=b"a\x1b[31mb\nc", properties=b"K\x1b\x01v\rw\x02", body=b"\x1b]0;title\x07")
    assert all(character.isprintable() for line in lines for character in line)


def test_damage_is_reported():
    record = decode(make_record(AT, crc=5), AT)
    assert not is_intact(record)
    assert any("WRONG: the body is damaged" in line for line in describe_record(record))
    assert is_intact(decode(make_record(AT), AT))


def test_json_has_the_body_as_stored():
    document = json.loads(json.dumps(record_as_json(decode(make_record(AT, body=b"\xff\0x"), AT))))
    assert base64.b64decode(document["body_base64"]) == b"\xff\0x"
    assert (document["topic"], document["queueOffset"], document["commitLogOffset"]) == ("TopicTest", 42, AT)
    assert document["properties"] == {"TAGS": "A", "UNIQ_KEY": "7F0001"}
    assert (document["bodyCrcOk"], document["propertyCrcOk"]) == (True, None)
