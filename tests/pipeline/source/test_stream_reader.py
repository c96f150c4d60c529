"""A stream's offsets and ranges without any query: limits, a growing tail, what is deleted in between."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from support.clocks import SHORT_WAITS
from support.messages import FIRST_MS, STEP_MS, message, messages
from support.stream_offsets import offset_at, offsets_between, stream
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.log.errors import DamagedLogError
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.stream_reader import CheckpointError, CommitlogStreamReader, Offset

SEGMENT = 4096


@pytest.fixture
def log(workdir: Path) -> WrittenLog:
    return write_log(workdir / "log", SEGMENT, messages(100))


def batches(reader: CommitlogStreamReader, start: Offset | None = None) -> Iterator[list[int]]:
    """Triggers like those of a query, until no new data comes."""
    at = reader.initialOffset() if start is None else start
    limit = reader.getDefaultReadLimit()
    while (end := reader.latestOffset(at, limit)) != at:
        yield offsets_between(reader, at, end)
        at = end


def test_where_a_stream_begins(log: WrittenLog) -> None:
    assert stream(log).initialOffset() == offset_at(log, 0)
    assert stream(log, startingOffsets="latest").initialOffset() == offset_at(log, log.end)
    by_time = {"startingTimestamp": str(FIRST_MS + 30 * STEP_MS)}
    options = parse_options({"path": str(log.directory), **by_time}, streaming=True)
    reader = CommitlogStreamReader(options, stream(log)._rows, clock=SHORT_WAITS)
    assert reader.initialOffset() == offset_at(log, log.offsets[30])


def test_an_offset_inside_a_message_means_the_next_one(log: WrittenLog) -> None:
    reader = stream(log, startingOffsets=str(log.offsets[30] - 1))
    assert reader.initialOffset() == offset_at(log, log.offsets[30])
    assert [offset for batch in batches(reader) for offset in batch] == log.offsets[30:]


def test_an_offset_behind_the_log_is_refused(log: WrittenLog) -> None:
    with pytest.raises(DataLossError, match=f"the log ends at {log.end}, before startingOffsets = {log.end + 1}"):
        stream(log, startingOffsets=str(log.end + 1)).initialOffset()


def test_everything_at_once_without_a_limit(log: WrittenLog) -> None:
    reader = stream(log)
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
    assert list(batches(reader)) == [log.offsets]
    assert reader.reportLatestOffset() == {"offset": log.end}
    assert list(reader.partitions(offset_at(log, 7), offset_at(log, 7))) == []


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"maxBytesPerTrigger": "1000"}, ReadMaxBytes(1000)),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1000", "maxOffsetsPerTrigger": "5"}, ReadMaxBytes(1000)),
    ],
)
def test_limits_are_honoured(log: WrittenLog, options: dict[str, str], limit: ReadLimit) -> None:
    reader = stream(log, **options)
    assert reader.getDefaultReadLimit() == limit
    steps = list(batches(reader))
    assert [offset for step in steps for offset in step] == log.offsets
    assert max(map(len, steps)) <= int(options.get("maxOffsetsPerTrigger", 100))
    if "maxBytesPerTrigger" in options:
        assert all(step[-1] - step[0] < 1000 for step in steps if step)
    assert reader.latestOffset(offset_at(log, 0), ReadAllAvailable()) == offset_at(log, log.end), (
        "the trigger's word counts"
    )


def test_available_now_ends_where_the_log_ended(log: WrittenLog) -> None:
    reader = stream(log, maxOffsetsPerTrigger="30")
    reader.prepareForTriggerAvailableNow()
    before = list(log.offsets)
    for maker in messages(50, first=100):
        log.append(maker)
    assert [offset for step in batches(reader) for offset in step] == before
    assert [o for step in batches(stream(log), offset_at(log, before[-1])) for o in step] == log.offsets[99:]


def test_the_same_range_gives_the_same_rows(log: WrittenLog) -> None:
    reader = stream(log)
    middle, end = offset_at(log, log.offsets[41]), offset_at(log, log.offsets[77])
    first = offsets_between(reader, middle, end)
    for maker in messages(50, first=100):
        log.append(maker)
    assert offsets_between(stream(log, splitSize="500"), middle, end) == first == log.offsets[41:77]


# --- the tail --------------------------------------------------------------------------------------------


def test_a_half_written_message_is_waited_for(log: WrittenLog) -> None:
    """Whatever of it is there: nothing behind it, nothing of it."""
    reader = stream(log)
    start = reader.latestOffset(offset_at(log, 0), ReadAllAvailable())
    record = message(100)(log.end)
    assert log.end % SEGMENT + len(record) + 8 < SEGMENT
    for part in (1, 4, 8, 40, 90, len(record) - 20, len(record) - 1):
        log.write_at(log.end, record[:part])
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    log.append(message(100))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets_between(reader, start, end) == [log.offsets[100]]


def test_a_segment_made_ahead_is_not_the_end(log: WrittenLog) -> None:
    for ahead in (1, 2):
        log.segment_at(log.end + ahead * SEGMENT).write_bytes(bytes(SEGMENT))
    assert list(batches(stream(log))) == [log.offsets]


def test_each_message_once_while_a_writer_appends(workdir: Path) -> None:
    """Over many segments, in pieces as a processor copies them, with the next segment made ahead."""
    log = write_log(workdir / "log", SEGMENT, [message(0)])
    done = threading.Event()
    """The writer has appended everything."""

    def write() -> None:
        for number in range(1, 600):
            log.append(message(number, body=b"x" * (number * 37 % 700)))
            if number % 20 == 0:
                time.sleep(0.01)  # an opportunity to read a part
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reader, seen, at = stream(log, maxBytesPerTrigger="20000"), [], offset_at(log, 0)
    limit = reader.getDefaultReadLimit()
    while True:
        finished = not writer.is_alive()
        end = reader.latestOffset(at, limit)
        if end == at and finished:
            break
        seen += offsets_between(reader, at, end)
        at = end
    assert done.is_set(), "the writer has failed"
    assert seen == log.offsets


def test_damage_where_the_next_message_must_begin_is_not_passed_over(log: WrittenLog) -> None:
    start = offset_at(log, log.offsets[50])
    log.write_at(log.offsets[50], b"damaged!")
    reader = stream(log)
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DamagedLogError, match=f"log offset {log.offsets[50]}"):
        offsets_between(reader, start, end)


@pytest.mark.parametrize("said", [{}, {"offsets": 5}, {"offset": "5"}, {"offset": 5}, {"offset": 5, "last": {}}])
def test_a_checkpoint_of_something_else_is_one_line(log: WrittenLog, said: Offset) -> None:
    for ask in (
        lambda: stream(log).latestOffset(said, ReadAllAvailable()),
        lambda: stream(log).partitions(offset_at(log, 0), said),
    ):
        with pytest.raises(CheckpointError, match=r"the checkpoint has .* start with an empty one"):
            ask()


# --- what is gone ----------------------------------------------------------------------------------------


def delete_before(log: WrittenLog, offset: int) -> None:
    for path in log.directory.iterdir():
        if int(path.name) < offset:
            path.unlink()


def test_deleted_segments_are_an_error(log: WrittenLog) -> None:
    reader = stream(log, maxOffsetsPerTrigger="10")
    start = reader.latestOffset(offset_at(log, 0), reader.getDefaultReadLimit())
    delete_before(log, 2 * SEGMENT)
    told = f"log offsets {start['offset']} to {2 * SEGMENT}: not in the log (the log begins at {2 * SEGMENT}"
    with pytest.raises(DataLossError, match=re.escape(told)):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(DataLossError, match=re.escape(told)):
        reader.partitions(start, offset_at(log, log.end))


def test_deleted_segments_are_said_and_passed_over(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    reader = stream(log, maxOffsetsPerTrigger="10", failOnDataLoss="false")
    start = reader.latestOffset(offset_at(log, 0), reader.getDefaultReadLimit())
    delete_before(log, 2 * SEGMENT)
    with caplog.at_level(logging.WARNING):
        steps = list(batches(reader, start))
    assert [offset for step in steps for offset in step] == [o for o in log.offsets if o >= 2 * SEGMENT]
    assert max(map(len, steps)) == 10
    lost = [line for line in caplog.messages if line.startswith("lost: ")]
    assert lost == [lost[0]], "once"
    assert f"lost: log offsets {start['offset']} to {2 * SEGMENT} " in lost[0]


def test_a_hole_is_an_error_or_is_passed_over(log: WrittenLog) -> None:
    """A disk that is not mounted, say."""
    log.segment_at(SEGMENT).unlink()
    with pytest.raises(DataLossError, match="a gap between segments"):
        list(batches(stream(log)))
    steps = list(batches(stream(log, failOnDataLoss="false")))
    assert [offset for step in steps for offset in step] == [
        o for o in log.offsets if not SEGMENT <= o < 2 * SEGMENT
    ]


def test_a_log_that_is_another_one_is_refused(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    """The store was wiped under the same checkpoint."""
    start = offset_at(log, 100 * SEGMENT)
    with pytest.raises(
        DataLossError,
        match=r"the log ends at .*, but this query has read up to log offset 409600.*empty checkpoint",
    ):
        stream(log).latestOffset(start, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        assert stream(log, failOnDataLoss="false").latestOffset(start, ReadAllAvailable()) == start
    assert "waiting until it is longer" in caplog.text


def test_an_empty_log_begins_when_it_begins(workdir: Path) -> None:
    directory = workdir / "log"
    directory.mkdir()
    log = WrittenLog(directory, SEGMENT)
    log.segment_at(0).unlink()
    reader = stream(log, failOnDataLoss="false")
    assert list(batches(reader)) == []
    log.segment_at(0).write_bytes(bytes(SEGMENT))
    assert list(batches(reader)) == []
    log.append(message(0))
    assert list(batches(reader)) == [[0]]
