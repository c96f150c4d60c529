"""A stream that continues from its checkpoint after the log was replaced, cut back and written anew, or cleaned."""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.messages import FIRST_MS, message, messages
from support.stream_offsets import offset_at, offsets_between, stream
from support.written_logs import Maker, WrittenLog, write_log

from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader, Offset

COUNT = 300
OTHERS = 10_000
"""Number of the first message that the former log does not have."""
GO_ON = {"failOnDataLoss": "false"}
ALL = ReadAllAvailable()

SHORTER = {"another log": messages(100, OTHERS), "the same log, cut": messages(250)}
LONGER = {"another log": messages(500, OTHERS), "another end": [*messages(250), *messages(200, OTHERS)]}


EACH = [*SHORTER.values(), *LONGER.values()]


@pytest.fixture(params=[1 << 14, 1 << 20], ids=["more segments", "one segment"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", request.param, messages(COUNT))


def replaced(log: WrittenLog, makers: list[Maker]) -> WrittenLog:
    shutil.rmtree(log.directory)
    return write_log(log.directory, log.segment_size, makers)


def read_all(log: WrittenLog, **options: str) -> tuple[CommitlogStreamReader, Offset, Offset]:
    """A query after its first batch, and the offsets of this."""
    reader = stream(log, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert offsets_between(reader, start, end) == log.offsets
    return reader, start, end


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("makers", EACH)
def test_another_log_ends_the_query(log: WrittenLog, makers: list[Maker], is_restarted: bool) -> None:
    reader, _, end = read_all(log)
    replaced(log, makers)
    if is_restarted:
        reader = stream(log)
    told = rf"but this query has read up to log offset {end['offset']}: it is another log, .*an empty checkpoint"
    with pytest.raises(DataLossError, match=told):
        reader.latestOffset(end, ALL)


@pytest.mark.parametrize("makers", EACH)
def test_available_now_is_refused_too(log: WrittenLog, makers: list[Maker]) -> None:
    _, _, end = read_all(log)
    replaced(log, makers)
    reader = stream(log)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="it is another log"):
        reader.latestOffset(end, ALL)


@pytest.mark.parametrize("makers", EACH)
def test_a_batch_that_is_repeated_is_of_the_same_log(log: WrittenLog, makers: list[Maker]) -> None:
    """After a kill, Spark asks for the batch that its checkpoint has, before it asks for the log's end."""
    _, start, end = read_all(log)
    replaced(log, makers)
    told = "the log has other records now, but this query has read up to|to 40928: not in the log"
    with pytest.raises(DataLossError, match=told):
        stream(log).partitions(start, end)


@pytest.mark.parametrize("makers", [SHORTER["the same log, cut"], *LONGER.values()])
def test_a_batch_of_another_log_is_left_out_and_reported_once(
    log: WrittenLog, makers: list[Maker], caplog: pytest.LogCaptureFixture
) -> None:
    _, start, end = read_all(log)
    replaced(log, makers)
    reader = stream(log, **GO_ON)
    with caplog.at_level(logging.WARNING):
        assert offsets_between(reader, start, end) == []
        reader.latestOffset(end, ALL)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("makers", SHORTER.values(), ids=SHORTER)
def test_a_shorter_log_is_reported_once_and_waited_for(
    log: WrittenLog, makers: list[Maker], is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reader, _, end = read_all(log, **GO_ON)
    log = replaced(log, makers)
    if is_restarted:
        reader = stream(log, **GO_ON)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert reader.latestOffset(end, ALL) == end
        log.append(message(2 * OTHERS))
        assert reader.latestOffset(end, ALL) == end
        (line,) = caplog.messages
        assert re.search(rf"up to log offset {end['offset']}: .*before that offset are not read", line)
        while log.end < end["offset"] + 1000:
            log.append(message(2 * OTHERS + len(log.offsets), body=b"another size"))
        reached = reader.latestOffset(end, ALL)
        assert offsets_between(reader, end, reached) == [
            offset for offset in log.offsets if offset >= end["offset"]
        ]
        assert reader.latestOffset(reached, ALL) == reached
    assert caplog.messages == [line]


@pytest.mark.parametrize("makers", LONGER.values(), ids=LONGER)
def test_a_longer_log_is_reported_once_and_read_from_there(
    log: WrittenLog, makers: list[Maker], caplog: pytest.LogCaptureFixture
) -> None:
    _, _, end = read_all(log, **GO_ON)
    log = replaced(log, [message(3 * OTHERS, body=b"?"), *makers])
    reader = stream(log, maxOffsetsPerTrigger="20", **GO_ON)
    at, found = end, list[int]()
    with caplog.at_level(logging.WARNING):
        while (reached := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            found += offsets_between(reader, at, reached)
            at = reached
    assert found == [offset for offset in log.offsets if offset >= end["offset"]]
    assert len(caplog.messages) == 1


def test_a_log_that_was_cut_shows_older_records_after_its_end(log: WrittenLog) -> None:
    """A broker that truncates its log leaves the bytes there, and overwrites them one after the other."""
    _, _, end = read_all(log)
    log.end = log.offsets[280]
    log.offsets = log.offsets[:280]
    for number in range(10):
        log.append(message(OTHERS + number, stored_ms=FIRST_MS + 10**9, body=b"a" * 11))
    with pytest.raises(DataLossError, match=f"the log ends at {log.end}, but this query has read up to"):
        stream(log).latestOffset(end, ALL)


def test_a_log_that_was_cleaned_is_the_same(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the query continues with the first message of a segment."""
    while log.end < 3 * log.segment_size:
        log.append(message(len(log.offsets), body=b"x" * 2000))
    first_left = log.segment_size
    offsets: list[Any] = [offset_at(log, place) for place in (first_left, log.offsets[-3], log.end)]
    log.segment_at(0).unlink()
    with caplog.at_level(logging.WARNING):
        for at in offsets:
            reached = stream(log).latestOffset(at, ALL)
            assert reached["offset"] == log.end
            assert offsets_between(stream(log), at, reached) == [o for o in log.offsets if o >= at["offset"]]
    assert caplog.messages == []
