"""Rows of an aggregation, added up, are those of the plain query."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.messages import FIRST_MS, message
from support.records import V2
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.source.group_keys import KEYS, parse_keys
from commitlogfs.pipeline.source.options import parse_options

SEGMENT = 1 << 16
COUNT = 700
PREPARED = 4
PLAIN = {
    "topic": "topic",
    "tags": "tags",
    "queueId": "queueId",
    "storeMinute": "date_trunc('minute', storeTimestamp)",
    "storeHour": "date_trunc('hour', storeTimestamp)",
    "bornDay": "date_trunc('day', bornTimestamp)",
}
SUMS = {"messages": "sum", "bytes": "sum", "first": "min", "last": "max"}
COLUMNS = "topic string, tags string, queueId int, storeSize int, storeTimestamp timestamp, bornTimestamp timestamp"


@pytest.fixture(scope="module")
def log(base_directory: Path) -> WrittenLog:
    """Topics of every kind, messages without tags, half messages, IPv6 hosts, texts that are not UTF-8."""
    properties = [b"TAGS\x01A\x02", b"KEYS\x01k\x02", b"TAGS\x01\xff\x02", b"TAGS\x01\x02KEYS\x01x\x02"]
    topics = [b"one", b"two", b"rmq_sys_x", b"\xc3\x86r\xc3\xb8", b"SCHEDULE_TOPIC_XXXX"]
    makers = [
        message(
            number,
            topic=topics[number % len(topics)],
            properties=properties[number % len(properties)],
            sys_flag=PREPARED if number % 11 == 0 else 0,
            magic=V2 if number % 2 else 0xDAA320A7,
            queue_id=number % 3,
            stored_ms=FIRST_MS + number * 31_000,
        )
        for number in range(COUNT)
    ]
    return write_log(base_directory / "aggregated", SEGMENT, makers)


def figures(rows: DataFrame, *keys: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in rows.groupBy(*keys).agg(SUMS).collect()}


GROUPED = {
    "topic": ["topic"],
    "queueId": ["queueId"],
    "topic,tags": ["topic", "tags"],
    "tags, queueid, HOUR(StoreTimestamp)": ["tags", "queueId", "storeHour"],
    "queueId,minute(storeTimestamp),day(bornTimestamp)": ["queueId", "storeMinute", "bornDay"],
}
"""Option aggregate, and the columns that it makes."""
CHOSEN = {
    "default": {},
    "all": {"includeSystemTopics": "true", "includeHalfMessages": "true"},
    "some": {"topicPattern": "t.*", "queueId": "1,2", "startingTimestamp": str(FIRST_MS + 3_000_000)},
}
IN_GATE = {
    ("all", "topic,tags"),
    ("some", "tags, queueid, HOUR(StoreTimestamp)"),
    ("default", "queueId,minute(storeTimestamp),day(bornTimestamp)"),
}
"""Each choice of messages, each column."""


@pytest.mark.parametrize(
    ("keys", "columns", "options"),
    [
        pytest.param(
            keys,
            columns,
            options,
            id=f"{chosen}-{keys}",
            marks=() if (chosen, keys) in IN_GATE else pytest.mark.full,
        )
        for chosen, options in CHOSEN.items()
        for keys, columns in GROUPED.items()
    ],
)
def test_added_up_it_is_the_plain_query(
    spark: SparkSession, log: WrittenLog, keys: str, columns: list[str], options: dict[str, str]
) -> None:
    read = spark.read.format("commitlog").options(**options).option("splitSize", "20000")
    plain = read.schema(COLUMNS).load(str(log.directory))
    expected = plain.selectExpr(
        *(f"{PLAIN[column]} AS {column}" for column in columns),
        *("1 AS messages", "storeSize AS bytes", "storeTimestamp AS first", "storeTimestamp AS last"),
    )
    read = spark.read.format("commitlog").options(**options).option("splitSize", "20000")
    found = read.option("aggregate", keys).load(str(log.directory))
    assert found.columns == [*columns, "messages", "bytes", "first", "last"]
    assert figures(found, *columns) == figures(expected, *columns)
    assert plain.count() == found.agg({"messages": "sum"}).collect()[0][0]


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, log: WrittenLog) -> None:
    read = spark.read.format("commitlog").schema("topic string").option("aggregate", "topic")
    with pytest.raises(PySparkException, match="option aggregate decides the columns"):
        read.load(str(log.directory)).collect()


def test_damage_is_an_error_or_skipped(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [message(number) for number in range(10)])
    log.write_at(log.offsets[4] + 4, b"\0\0\0\0")
    read = spark.read.format("commitlog").option("aggregate", "topic")
    with pytest.raises(PySparkException, match=f"log offset {log.offsets[4]}"):
        read.load(str(log.directory)).collect()
    rows = read.option("mode", "PERMISSIVE").load(str(log.directory))
    assert rows.agg({"messages": "sum"}).collect()[0][0] == 9


def test_every_key_can_be_parsed_and_has_a_column_of_its_own() -> None:
    keys = parse_keys(",".join(KEYS))
    assert [key.text for key in keys] == list(KEYS)
    assert len({key.column for key in keys}) == len(KEYS)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("topics", "did you mean topic?"),
        ("hour(storetimestam)", r"did you mean hour\(storeTimestamp\)?"),
        ("body", "the keys are topic, tags,"),
        ("topic,", "unknown"),
        ("topic,queueId,topic", "occurs twice"),
    ],
)
def test_wrong_keys(text: str, rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        parse_options({"path": "/log", "aggregate": text})


@pytest.mark.parametrize("other", ["unfold", "decompress", "maxBodySize"])
def test_options_without_a_meaning_for_groups_are_refused(other: str) -> None:
    with pytest.raises(OptionError, match="exclude each other"):
        parse_options({"path": "/log", "aggregate": "topic", other: "true"})


def test_a_stream_is_not_aggregated() -> None:
    with pytest.raises(OptionError, match="option aggregate is not for a stream"):
        parse_options({"path": "/log", "aggregate": "topic"}, streaming=True)
