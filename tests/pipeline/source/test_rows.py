"""The rows of a split without Spark: damage, CRC, what is gone, and the sizes of batches."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.messages import message, messages
from support.settled_logs import survey
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.log.errors import DamagedLogError, SegmentGoneError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.source.columns import COLUMNS
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.rows import BATCH_ROWS, RowReader
from commitlogfs.pipeline.source.selection import RecordFilter

SEGMENT = 8192
DAMAGE = pa.field("damage", pa.string())


def row_reader(*columns: str, mode: str = "FAILFAST", **options: str) -> RowReader:
    parsed = parse_options({"path": "/log", **options})
    fields = [DAMAGE if name == "damage" else COLUMNS.field(name) for name in columns]
    return RowReader(
        schema=pa.schema(fields),
        filter=RecordFilter.of(parsed),
        mode=DamageMode[mode],
        check_crc=parsed.check_crc,
        fail_on_data_loss=parsed.fail_on_data_loss,
    )


def read(log: WrittenLog, rows: RowReader, split_size: int = 3000) -> list[dict[str, Any]]:
    listing, end = survey(str(log.directory), None)
    batches = [batch for split in plan_splits(listing, end, split_size=split_size) for batch in rows.read(split)]
    assert all(batch.schema.equals(rows.schema) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def log(workdir: Path) -> WrittenLog:
    return write_log(workdir / "log", SEGMENT, messages(150))


def test_every_message_once(log: WrittenLog) -> None:
    rows = read(log, row_reader("commitLogOffset", "body", "topic"))
    assert [row["commitLogOffset"] for row in rows] == log.offsets
    assert [row["body"] for row in rows] == [b"message %08d" % n for n in range(150)]


def test_columns_come_in_the_order_of_the_schema(log: WrittenLog) -> None:
    assert list(read(log, row_reader("topic", "damage", "queueId"))[0].items()) == [
        ("topic", "Topic0"),
        ("damage", None),
        ("queueId", 0),
    ]


def test_a_filter_leaves_rows_out(log: WrittenLog) -> None:
    rows = read(log, row_reader("commitLogOffset", topic="Topic1"))
    assert [row["commitLogOffset"] for row in rows] == log.offsets[1::3]


def test_a_body_that_is_asked_for_must_match_its_crc(log: WrittenLog) -> None:
    wrong = log.offsets[77]
    log.write_at(wrong + 88, b"M")
    with pytest.raises(DamagedLogError, match=f"log offset {wrong}: the body does not match its CRC"):
        read(log, row_reader("body"))
    assert len(read(log, row_reader("topic"))) == 150, "no CRC is checked"
    assert read(log, row_reader("body", checkCrc="false"))[77]["body"][:1] == b"M"
    assert len(read(log, row_reader("body", topic="Topic0"))) == 50, "message 77 is not of this topic"


def test_permissive_tells_each_range_that_it_skips(log: WrittenLog) -> None:
    body, header = log.offsets[77], log.offsets[100]
    log.write_at(body + 88, b"M")
    log.write_at(header + 4, b"\0\0\0\0")
    columns = ("commitLogOffset", "storeSize", "segment", "damage", "topic", "body", "properties")
    rows = read(log, row_reader(*columns, mode="PERMISSIVE"))
    assert [row["commitLogOffset"] for row in rows if row["damage"] is None] == [
        offset for offset in log.offsets if offset not in (body, header)
    ]
    told = {row["commitLogOffset"]: row for row in rows if row["damage"] is not None}
    segment = log.segment_at(body).name
    empty = {"topic": None, "body": None, "properties": None}
    size = len(message(77)(body))
    assert told == {
        body: {"commitLogOffset": body, "storeSize": size, "segment": segment}
        | {"damage": "the body does not match its CRC"}
        | empty,
        header: {"commitLogOffset": header, "storeSize": size, "segment": log.segment_at(header).name}
        | {"damage": "no record begins here"}
        | empty,
    }


def test_permissive_without_the_column_writes_to_the_log(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    log.write_at(log.offsets[100] + 4, b"\0\0\0\0")
    with caplog.at_level(logging.WARNING):
        assert len(read(log, row_reader("topic", mode="PERMISSIVE"))) == 149
    (line,) = caplog.messages
    assert f"segment {log.segment_at(log.offsets[100]).name}, log offset {log.offsets[100]}: " in line
    assert "bytes skipped: no record begins here" in line


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_segment_that_is_gone_when_it_is_read(
    log: WrittenLog, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    listing, end = survey(str(log.directory), None)
    log.segment_at(SEGMENT).unlink()
    rows = row_reader("commitLogOffset", failOnDataLoss=fail)
    splits = plan_splits(listing, end)
    if fail == "true":
        with pytest.raises(SegmentGoneError, match=r"deleted after the log was listed .*failOnDataLoss=false"):
            list(rows.read(splits[1]))
    else:
        with caplog.at_level(logging.WARNING):
            assert list(rows.read(splits[1])) == []
        assert caplog.messages[0].startswith(f"lost: segment {SEGMENT:020d}: was deleted")


def test_batches_are_neither_tiny_nor_huge(workdir: Path) -> None:
    log = write_log(workdir / "log", 4 << 20, messages(25_000))
    listing, end = survey(str(log.directory), None)
    (split,) = plan_splits(listing, end)
    for options, count in (({}, 25_000), ({"topic": "Topic1"}, 8333)):
        batches = list(row_reader("commitLogOffset", "topic", **options).read(split))
        assert sum(batch.num_rows for batch in batches) == count
        assert max(batch.num_rows for batch in batches) <= BATCH_ROWS
        assert len(batches) <= count // BATCH_ROWS + 3
