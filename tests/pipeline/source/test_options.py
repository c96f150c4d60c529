"""Options are parsed and refused before any file is read, in one line that names the option."""

import pytest

from commitlogfs.pipeline.bodies.body_options import BodyOptions
from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.source.options import OPTION_NAMES, Edge, ReadOptions, parse_options

GOOD = {
    "path": "/log",
    "segmentSize": "1g",
    "topic": "A, B",
    "queueId": "0,3",
    "startingOffsets": "0",
    "endingOffsets": "4096",
    "failOnDataLoss": "False",
    "minPartitions": "4",
    "splitSize": "64m",
    "includeSystemTopics": "true",
    "includeHalfMessages": "TRUE",
    "mode": "permissive",
    "checkCrc": "false",
}


def test_defaults() -> None:
    assert parse_options({"path": "/log"}, streaming=False) == ReadOptions(path="/log")
    assert parse_options({"path": "/log"}, streaming=True) == ReadOptions(path="/log", start=Edge.LATEST)


def test_every_option_is_understood() -> None:
    assert parse_options(GOOD, streaming=False) == ReadOptions(
        path="/log",
        segment_size=1 << 30,
        topics=frozenset({"A", "B"}),
        queue_ids=frozenset({0, 3}),
        start=0,
        end=4096,
        fail_on_data_loss=False,
        min_partitions=4,
        split_size=64 << 20,
        include_system_topics=True,
        include_half_messages=True,
        permissive=True,
        check_crc=False,
    )
    others = {"path": "/log", "topicPattern": "A.*", "startingTimestamp": "1000", "endingTimestamp": "2000"}
    assert parse_options(others) == ReadOptions(path="/log", topic_pattern="A.*", start_ms=1000, end_ms=2000)
    limits = {"path": "/log", "maxBytesPerTrigger": "10k", "maxOffsetsPerTrigger": "7"}
    stream = parse_options(limits, streaming=True)
    assert (stream.max_bytes_per_trigger, stream.max_offsets_per_trigger) == (10240, 7)
    bodies = {"path": "/log", "decompress": "true", "unfold": "true", "maxBodySize": "1m"}
    assert parse_options(bodies).bodies == BodyOptions(decompress=True, unfold=True, limit=1 << 20)
    grouped = {"path": "/log", "aggregate": "topic"}
    assert [key.text for key in parse_options(grouped).aggregate] == ["topic"]
    assert set(OPTION_NAMES) == set(GOOD) | set(others) | set(limits) | set(bodies) | set(grouped)


def test_names_come_in_any_case() -> None:
    """Spark hands them over in lower case."""
    lower = {name.lower(): value for name, value in GOOD.items()}
    assert parse_options(lower) == parse_options(GOOD)


def test_several_paths_of_load_are_one_log() -> None:
    assert parse_options({"paths": '["/data1/commitlog", "/data2/commitlog"]'}).path == (
        "/data1/commitlog,/data2/commitlog"
    )


def test_a_stream_by_time_starts_there_and_not_at_the_end() -> None:
    options = parse_options({"path": "/log", "startingTimestamp": "0"}, streaming=True)
    assert (options.start, options.start_ms) == (Edge.EARLIEST, 0)


@pytest.mark.parametrize(
    ("given", "streaming", "told"),
    [
        ({"topics": "A"}, None, "option topics is unknown; did you mean topic?"),
        ({"startingoffset": "0"}, None, "did you mean startingOffsets?"),
        ({"maxbytespertriger": "1"}, None, "did you mean maxBytesPerTrigger?"),
        ({"zzz": "1"}, None, "option zzz is unknown; the options are path, segmentSize, topic"),
        ({"topic": "A,,B"}, None, "option topic = 'A,,B': must be a comma list without empty items"),
        ({"topicPattern": "("}, None, "option topicPattern = '(': is not a regular expression"),
        ({"topic": "A", "topicPattern": "B"}, None, "topic and topicPattern exclude each other"),
        ({"queueId": "-1"}, None, "option queueId = '-1': must be a comma list of whole numbers"),
        ({"startingOffsets": "first"}, None, "earliest, latest or a log offset"),
        ({"startingOffsets": "9223372036854775808"}, None, "earliest, latest or a log offset"),
        ({"startingOffsets": "²"}, None, "earliest, latest or a log offset"),  # a digit to str.isdigit
        ({"endingOffsets": "earliest"}, None, "no message lies before earliest"),
        ({"startingOffsets": "0", "startingTimestamp": "0"}, None, "exclude each other"),
        ({"endingOffsets": "0", "endingTimestamp": "0"}, None, "exclude each other"),
        ({"startingTimestamp": "yesterday"}, None, "milliseconds since 1970"),
        ({"endingOffsets": "5"}, True, "endingOffsets is not for a stream"),
        ({"endingTimestamp": "5"}, True, "endingTimestamp is not for a stream"),
        ({"maxBytesPerTrigger": "5"}, False, "maxBytesPerTrigger is not for a batch"),
        ({"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger is not for a batch"),
        ({"failOnDataLoss": "yes"}, None, "option failOnDataLoss = 'yes': must be true or false"),
        ({"splitSize": "0"}, None, "a number of bytes above 0"),
        ({"splitSize": "1.5g"}, None, "a number of bytes above 0"),
        ({"segmentSize": "-1"}, None, "a number of bytes above 0"),
        ({"minPartitions": "0"}, None, "a whole number above 0"),
        ({"mode": "DROPMALFORMED"}, None, "FAILFAST or PERMISSIVE"),
        ({"checkCrc": ""}, None, "true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], streaming: bool | None, told: str) -> None:
    with pytest.raises(OptionError) as refusal:
        parse_options({"path": "/log", **given}, streaming=streaming)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("given", [{}, {"path": ""}, {"paths": "[]"}])
def test_a_log_must_be_named(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="no path: load"):
        parse_options(given)
