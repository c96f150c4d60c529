"""The columns `text` and `body` of compressed and batched messages."""

import logging
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from support.compressed import BATCH, LZ4, TYPES, ZLIB, ZSTD, batch_body, compressed
from support.messages import message
from support.records import make_record
from support.settled_logs import survey
from support.written_logs import Maker, WrittenLog, write_log

from commitlogfs.pipeline.bodies.messages import PIECE_BYTES
from commitlogfs.pipeline.log.errors import DamagedLogError, OptionError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.source.columns import ALL_COLUMNS
from commitlogfs.pipeline.source.data_source import check_schema
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.rows import RowReader
from commitlogfs.pipeline.source.selection import RecordFilter

SEGMENT = 1 << 20
KINDS = [0, *TYPES]


def read(log: WrittenLog, *columns: str, mode: str = "FAILFAST", **options: str) -> list[dict[str, Any]]:
    parsed = parse_options({"path": "/log", **options})
    schema = pa.schema([pa.field(n, pa.string()) if n == "damage" else ALL_COLUMNS.field(n) for n in columns])
    rows = RowReader(
        schema=schema,
        filter=RecordFilter.of(parsed),
        mode=DamageMode[mode],
        check_crc=parsed.check_crc,
        fail_on_data_loss=True,
        bodies=parsed.bodies,
    )
    listing, end = survey(str(log.directory), None)
    batches = [batch for split in plan_splits(listing, end) for batch in rows.read(split)]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return [row for batch in batches for row in batch.to_pylist()]


def typed(number: int) -> Maker:
    """Message `number` with a body of each compression in turn."""
    kind = KINDS[number % len(KINDS)]
    return message(number, body=compressed(body_of(number), kind), sys_flag=kind)


def body_of(number: int) -> bytes:
    return f'{{"order": {number}, "to": "Ærø"}}'.encode() * (1 + number % 7)


def batched(*messages: tuple[bytes, int, bytes], kind: int = 0, **fields: Any) -> Maker:
    body = compressed(batch_body(*messages), kind)
    return lambda offset: make_record(offset, body=body, sys_flag=kind | BATCH, **fields)


@pytest.fixture
def log(workdir: Path) -> WrittenLog:
    return write_log(workdir / "log", SEGMENT, map(typed, range(1000)))


def test_texts_are_decompressed_and_bodies_are_as_stored(log: WrittenLog) -> None:
    rows = read(log, "text", "body", "commitLogOffset", "sysFlag")
    assert [row["commitLogOffset"] for row in rows] == log.offsets
    assert [row["text"] for row in rows] == [body_of(number).decode() for number in range(1000)]
    kinds = [KINDS[number % len(KINDS)] for number in range(1000)]
    assert [row["body"] for row in rows] == [compressed(body_of(number), kind) for number, kind in enumerate(kinds)]
    assert [row["sysFlag"] for row in rows] == kinds


def test_bodies_are_decompressed_on_request(log: WrittenLog) -> None:
    rows = read(log, "body", decompress="true")
    assert [row["body"] for row in rows] == [body_of(number) for number in range(1000)]
    assert read(log, "queueId", decompress="true") == read(log, "queueId")


def test_a_filter_goes_before(log: WrittenLog) -> None:
    rows = read(log, "text", topic="Topic1")
    assert [row["text"] for row in rows] == [body_of(number).decode() for number in range(1, 1000, 3)]


def test_large_texts_come_in_pieces(workdir: Path) -> None:
    size = PIECE_BYTES // 3
    makers = [message(n, body=compressed(bytes([65 + n]) * size, ZSTD), sys_flag=ZSTD) for n in range(10)]
    log = write_log(workdir / "log", SEGMENT, makers)
    assert [row["text"] for row in read(log, "text")] == [chr(65 + n) * size for n in range(10)]


# --- damage ----------------------------------------------------------------------------------------------

BROKEN = {
    "not a zlib stream": (b"plain", ZLIB),
    "truncated zlib stream": (zlib.compress(b"x" * 100)[:-2], 1),
    "not a complete lz4 stream": (compressed(b"x" * 100, LZ4)[:-2], LZ4),
    "not a complete zstd stream": (compressed(b"x" * 100, ZLIB), ZSTD),
    "unknown compression type 5": (b"x", 1 | 5 << 8),
    "decompresses to more than 1,000 bytes": (compressed(bytes(1001), ZSTD), ZSTD),
    "not a batch of whole messages": (batch_body((b"a", 0, b""), (b"b", 0, b""))[:-1], BATCH),
    "not a batch of whole messages, as sysFlag says": (compressed(b"x" * 40, LZ4), LZ4 | BATCH),
}
LIMITED = {"maxBodySize": "1000", "unfold": "true"}


def with_broken(workdir: Path, reason: str) -> WrittenLog:
    body, sys_flag = BROKEN[reason]
    makers = [message(0), message(1, body=body, sys_flag=sys_flag), message(2)]
    return write_log(workdir / "log", SEGMENT, makers)


@pytest.mark.parametrize("reason", BROKEN)
def test_a_body_that_cannot_be_read_fails_by_default(workdir: Path, reason: str) -> None:
    log = with_broken(workdir, reason)
    with pytest.raises(DamagedLogError, match=f"log offset {log.offsets[1]}: .*{reason}"):
        read(log, "text", **LIMITED)


@pytest.mark.parametrize("reason", BROKEN)
def test_it_is_skipped_and_reported(workdir: Path, reason: str) -> None:
    log = with_broken(workdir, reason)
    first, damaged, last = read(log, "text", "commitLogOffset", "storeSize", "damage", mode="PERMISSIVE", **LIMITED)
    assert (first["text"], last["text"]) == ("message 00000000", "message 00000002")
    assert (damaged["text"], damaged["commitLogOffset"]) == (None, log.offsets[1])
    assert damaged["storeSize"] == log.offsets[2] - log.offsets[1]
    assert reason in damaged["damage"]


def test_a_body_that_nobody_asked_for_is_no_damage(workdir: Path) -> None:
    log = with_broken(workdir, "not a zlib stream")
    assert len(read(log, "topic", "body")) == 3


def test_a_wrong_crc_is_damage_of_a_text_too(workdir: Path) -> None:
    log = write_log(workdir / "log", SEGMENT, [message(0), message(1, crc=1), message(2)])
    with pytest.raises(DamagedLogError, match="does not match its CRC"):
        read(log, "text")
    assert len(read(log, "text", checkCrc="false")) == 3


def test_bytes_that_are_no_text_are_replaced_as_in_java_and_reported(
    workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["Ærø".encode(), b"\xff\xfe", "\N{REPLACEMENT CHARACTER}".encode(), b"\xed\xa0\x80", b"plain"]
    log = write_log(workdir / "log", SEGMENT, [message(n, body=body) for n, body in enumerate(texts)])
    with caplog.at_level(logging.WARNING):
        rows = read(log, "text", "body")
    assert [row["text"] for row in rows] == ["Ærø", "\ufffd\ufffd", "\ufffd", "\ufffd", "plain"]
    assert [row["body"] for row in rows] == texts
    (record,) = caplog.records
    assert f"log offset {log.offsets[1]}: the body is not UTF-8, as 2 of 5" in record.getMessage()


# --- batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_becomes_its_messages(workdir: Path, kind: int) -> None:
    inner = [
        (b"one", 7, b"TAGS\x01A\x02KEYS\x01k1\x02"),
        (b"", -1, b""),
        ("drei Ä".encode(), 0, b"UNIQ_KEY\x01u\x02"),
    ]
    makers = [message(0), batched(*inner, kind=kind, queue_offset=40, topic=b"Batches"), message(1)]
    log = write_log(workdir / "log", SEGMENT, makers)
    columns = ("text", "body", "flag", "tags", "keys", "uniqKey", "properties", "queueOffset", "topic", "bornHost")
    rows = read(log, *columns, "commitLogOffset", "storeSize", "storeTimestamp", unfold="true", decompress="true")
    assert [row["text"] for row in rows] == ["message 00000000", "one", "", "drei Ä", "message 00000001"]
    found = rows[1:4]
    assert [row["body"] for row in found] == [body for body, _, _ in inner]
    assert [row["flag"] for row in found] == [7, -1, 0]
    assert [row["queueOffset"] for row in found] == [40, 41, 42]
    assert [(row["tags"], row["keys"], row["uniqKey"]) for row in found] == [
        ("A", "k1", None),
        (None, None, None),
        (None, None, "u"),
    ]
    assert [dict(row["properties"]) for row in found] == [{"TAGS": "A", "KEYS": "k1"}, {}, {"UNIQ_KEY": "u"}]
    for name, value in (("topic", "Batches"), ("bornHost", "10.1.2.3:50123"), ("commitLogOffset", log.offsets[1])):
        assert {row[name] for row in found} == {value}
    assert sum(row["storeSize"] for row in found) == len(batch_body(*inner))
    assert [row["commitLogOffset"] for row in rows if row["topic"] != "Batches"] == [log.offsets[0], log.offsets[2]]


def test_a_batch_stays_one_row_unless_asked(workdir: Path) -> None:
    log = write_log(workdir / "log", SEGMENT, [batched((b"one", 0, b""), (b"two", 0, b""))])
    (row,) = read(log, "body", "queueOffset")
    assert row["body"] == batch_body((b"one", 0, b""), (b"two", 0, b""))


def test_both_flags_are_needed(workdir: Path) -> None:
    body = batch_body((b"one", 0, b""), (b"two", 0, b""))
    makers = [message(n, body=body, sys_flag=flag) for n, flag in enumerate((1 << 6, 1 << 7))]
    log = write_log(workdir / "log", SEGMENT, makers)
    assert [row["body"] for row in read(log, "body", unfold="true")] == [body, body]


def test_no_position_of_a_changed_byte_reads_beyond_the_body(workdir: Path) -> None:
    """Each byte of a batch is changed in turn: messages, or damage, never a crash, and never more rows than fit."""
    body = batch_body((b"one", 7, b"TAGS\x01A\x02"), (b"two", 0, b""))
    makers = []
    for at in range(len(body)):
        for value in (0, 0x7F, 0xFF):
            changed = bytearray(body)
            changed[at] = value
            makers.append(message(0, body=bytes(changed), sys_flag=BATCH))
    log = write_log(workdir / "log", SEGMENT, makers)
    rows = read(log, "text", "tags", "damage", "commitLogOffset", "storeSize", mode="PERMISSIVE", unfold="true")
    per_record = {offset: [row for row in rows if row["commitLogOffset"] == offset] for offset in log.offsets}
    assert all(1 <= len(found) <= len(body) // 22 for found in per_record.values())


def test_a_schema_may_name_text() -> None:
    check_schema(StructType([StructField("topic", StringType()), StructField("text", StringType())]))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"decompress": "yes"}, "must be true or false"),
        ({"unfold": "1"}, "must be true or false"),
        ({"maxBodySize": "2g"}, "must be at most 1g"),
        ({"maxBodySize": "0"}, "must be a number of bytes above 0"),
    ],
)
def test_wrong_options(options: dict[str, str], rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        parse_options({"path": "/log", **options})
