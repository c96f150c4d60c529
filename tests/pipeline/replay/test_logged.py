"""A log as the source: from the position that earlier runs have reached, or from the given start."""

import shutil
from pathlib import Path

import pytest
from support import s3_server
from support.clocks import SHORT_WAITS
from support.messages import messages
from support.written_logs import Maker, WrittenLog, write_log

from commitlogfs.console.errors import RefusedError
from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.replay.logged import LogSource
from commitlogfs.pipeline.replay.run import ReplayRequest
from commitlogfs.pipeline.replay.source import bytes_from

SEGMENT = 1 << 14


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", SEGMENT, messages(300))


def source(log: WrittenLog, position: int | None, **options: str) -> LogSource:
    request = ReplayRequest.of({"path": str(log.directory), **options}, "none:1", {}, None)
    return LogSource.plan(request.options, position, clock=SHORT_WAITS)


def test_the_later_one_of_position_and_start_counts(log: WrittenLog) -> None:
    early, late = log.offsets[10], log.offsets[200]
    for position, start in ((late, early), (early, late), (None, late)):
        found = source(log, position, startingOffsets=str(start))
        assert [row.offset for row in found.rows()] == log.offsets[200:]
    assert [row.offset for row in source(log, None).rows()] == log.offsets


def test_a_log_that_ends_before_the_position_is_refused(log: WrittenLog) -> None:
    with pytest.raises(
        RefusedError, match=f"log: ends before the position {log.end + 1} that the replay has reached"
    ):
        source(log, log.end + 1)
    with pytest.raises(RefusedError, match="ends before the position"):
        source(log, log.end + 1, startingOffsets="5")
    with pytest.raises(LocationError, match=f"before startingOffsets = {log.end + 1}"):
        source(log, 5, startingOffsets=str(log.end + 1))


@pytest.mark.parametrize(
    "makers", [messages(500, 10_000), [*messages(250), *messages(200, 10_000)]], ids=["another log", "another end"]
)
def test_another_log_is_refused(log: WrittenLog, makers: list[Maker]) -> None:
    """Wherever the replay has come to in the messages that are other ones now."""
    reached = {log.end: source(log, None).fingerprint(log.end), log.offsets[260]: None}
    reached[log.offsets[260]] = source(log, None).fingerprint(log.offsets[260])
    shutil.rmtree(log.directory)
    write_log(log.directory, SEGMENT, makers)
    request = ReplayRequest.of({"path": str(log.directory)}, "none:1", {}, None)
    for position, last in reached.items():
        with pytest.raises(RefusedError, match=f"has other messages now than those before the position {position}"):
            LogSource.plan(request.options, position, last, clock=SHORT_WAITS)


def test_the_same_log_goes_on_also_after_it_was_cleaned(log: WrittenLog) -> None:
    last = source(log, None).fingerprint(SEGMENT)
    assert last is not None
    for _ in range(2):
        request = ReplayRequest.of({"path": str(log.directory)}, "none:1", {}, None)
        found = LogSource.plan(request.options, SEGMENT, last, clock=SHORT_WAITS)
        assert [row.offset for row in found.rows()] == [offset for offset in log.offsets if offset >= SEGMENT]
        log.segment_at(0).unlink(missing_ok=True)


def test_bytes_that_are_left(log: WrittenLog) -> None:
    ranges = source(log, None).ranges
    assert len(ranges) > 2
    assert bytes_from(ranges) == log.end
    assert bytes_from(ranges, log.offsets[100]) == log.end - log.offsets[100]
    assert bytes_from(ranges, log.end + 5) == 0


def test_the_identity_of_a_replay_has_no_password() -> None:
    path = "s3://key:se/cret@bucket/log?scheme=http,/plain/a@b,hdfs://me@host:8020/log"
    request = ReplayRequest.of({"path": path.replace("/cret", "cret")}, "none:1", {}, None)
    assert request.identity()["log"] == "s3://bucket/log?scheme=http,/plain/a@b,hdfs://host:8020/log"
    assert "key:secret@" in request.options.path


@pytest.mark.full
@pytest.mark.skipif(bool(s3_server.lack()), reason=s3_server.lack())
def test_a_server_that_ends_meanwhile_is_one_line(log: WrittenLog, tmp_path: Path) -> None:
    with s3_server.s3_server(tmp_path) as endpoint:
        place = s3_server.store(endpoint, "archive", "log", log.directory)
        request = ReplayRequest.of({"path": place}, "none:1", {}, None)
        rows = LogSource.plan(request.options, None).rows()
        assert next(rows).offset == 0
    with pytest.raises(LocationError, match="Could not connect to server") as raised:
        list(rows)
    assert "\n" not in str(raised.value)
