"""A last segment whose file was cut short, and a directory without segments among several: said by every reader."""

import logging
import os
import re
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from support.clocks import SHORT_WAITS
from support.in_process_spark import InProcessSpark
from support.messages import messages
from support.settled_logs import audit, export, plan_batch, plan_export, rebuild, stats, survey
from support.stream_offsets import offset_at
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.jobs.export import ExportRequest
from commitlogfs.pipeline.jobs.findings import Finding, Kind
from commitlogfs.pipeline.jobs.rebuild import RebuildRefusedError
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.data_source import _row_reader
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.selection import Bounds
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader

SEGMENT = 1 << 14
LAST = 2 * SEGMENT
"""Where the last segment of `log` begins."""


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    log = write_log(tmp_path / "log", SEGMENT, messages(300))
    assert LAST + SEGMENT // 4 < log.end < LAST + SEGMENT
    return log


def cut(log: WrittenLog, size: int, base: int = LAST) -> None:
    os.truncate(log.segment_at(base), size)


def planned(place: object, **options: str) -> int:
    """The log offset up to which a batch reads."""
    read = parse_options({"path": str(place), **options}, streaming=False)
    splits = plan_batch(read, Bounds(start_ms=None, end_ms=None))
    return splits[-1].stop_offset if splits else 0


def stream(place: object, **options: str) -> CommitlogStreamReader:
    read = parse_options({"path": str(place), "startingOffsets": "earliest", **options}, streaming=True)
    rows = _row_reader(read, StructType().add("queueId", "integer"))
    return CommitlogStreamReader(read, rows, clock=SHORT_WAITS)


@pytest.mark.parametrize("size", [6, 50, 1000, SEGMENT // 4, SEGMENT - 1])
def test_a_last_segment_that_was_truncated_is_an_error(log: WrittenLog, size: int) -> None:
    cut(log, size)
    told = f"the file of segment {LAST:020d} has only {size} of {SEGMENT} bytes; it is truncated"
    with pytest.raises(DataLossError, match=re.escape(told)):
        planned(log.directory)
    with pytest.raises(DataLossError, match=re.escape(told)):
        plan_export(ExportRequest(str(log.directory), str(log.directory.parent / "out")))
    with pytest.raises(DataLossError, match=re.escape(told)):
        stream(log.directory).initialOffset()


def test_without_failing_it_is_told_as_lost(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    cut(log, 1000)
    before = [offset for offset in log.offsets if offset + 150 < LAST + 1000]
    with caplog.at_level(logging.WARNING):
        end = planned(log.directory, failOnDataLoss="false")
    assert before[-1] < end <= LAST + 1000
    lost = [line for line in caplog.messages if line.startswith("lost: ")]
    assert len(lost) == 1
    assert f"lost: log offsets {LAST + 1000} to {LAST + SEGMENT} " in lost[0]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        reader = stream(log.directory, failOnDataLoss="false")
        assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == offset_at(log, end)
    assert len([line for line in caplog.messages if line.startswith("lost: ")]) == 1


def test_what_ends_before_it_may_be_read(log: WrittenLog) -> None:
    cut(log, 1000)
    assert planned(log.directory, endingOffsets=str(log.offsets[200])) == log.offsets[200]
    assert planned(log.directory, endingOffsets=str(LAST + 500)) == LAST + 500
    with pytest.raises(DataLossError, match="is truncated"):
        planned(log.directory, endingOffsets=str(LAST + 1500))
    assert planned(log.directory, startingOffsets="latest") == 0


def test_a_segment_that_is_just_being_made_is_none(log: WrittenLog) -> None:
    ahead = log.segment_at(LAST + SEGMENT)
    ahead.write_bytes(bytes(SEGMENT // 2))
    assert planned(log.directory) == log.end
    listing = list_segments(str(log.directory))
    assert expected_end(listing, log.end) == log.end
    assert expected_end(listing, LAST + SEGMENT) == LAST + SEGMENT


def test_the_only_segment_is_compared_with_the_size_that_is_given(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(50))
    cut(log, 5000, base=0)
    with pytest.raises(DataLossError, match=f"has only 5000 of {SEGMENT} bytes"):
        planned(log.directory, segmentSize=str(SEGMENT))


@pytest.mark.parametrize("into", [3, 7, 20, 33, 60, 100, "left"])
def test_the_only_segment_is_known_by_the_record_that_crosses_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, into: int | str
) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(50))
    at = log.offsets[30]
    size = log.offsets[31] + 5 if into == "left" else at + int(into)
    # A record behind which no room is left is as impossible: a broker leaves eight bytes at least.
    cut(log, size, base=0)
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            _, end = survey(str(log.directory), None)
    assert end in log.offsets[29:32]
    (line,) = caplog.messages
    assert f"log offset {end}: the record that begins here does not fit into the file ({log.segment_at(0)}" in line


def test_nothing_is_said_of_a_whole_log(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert planned(log.directory) == log.end
        log.segment_at(LAST).unlink()
        assert planned(log.directory) == LAST
    assert caplog.messages == []


def test_an_export_goes_on_without_it_and_says_so(log: WrittenLog) -> None:
    cut(log, 1000)
    spark = cast("Any", InProcessSpark())
    request = ExportRequest(str(log.directory), str(log.directory.parent / "out"))
    for _ in range(2):
        result = export(spark, request, {"failOnDataLoss": "false"})
        assert result.lost == ((LAST + 1000, LAST + SEGMENT),)


def shown(report: AuditReport) -> list[tuple[Kind, Finding]]:
    """Those of files: queues of these messages have jumps."""
    return [(one.kind, one) for one in report.findings.all_shown() if one.kind is not Kind.QUEUE_JUMP]


@pytest.mark.full
def test_the_jobs_tell_of_it(spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    cut(log, 1000)
    lacking = (LAST + 1000, LAST + SEGMENT)
    assert stats(spark, str(log.directory)).missing == (lacking,)
    report = audit(spark, str(log.directory))
    assert [(kind, one.offset) for kind, one in shown(report)] == [(Kind.CUT_SHORT, lacking[0])]
    with pytest.raises(RebuildRefusedError, match=f"segment {LAST:020d}, log offset {lacking[0]}: .* is truncated"):
        rebuild(spark, str(log.directory), tmp_path / "out")
    result = rebuild(spark, str(log.directory), tmp_path / "out", index=False, mode=DamageMode.PERMISSIVE)
    assert [(one.offset, one.length) for one in result.damages] == [(lacking[0], lacking[1] - lacking[0])]


@pytest.mark.full
def test_an_audit_finds_the_only_segment_truncated(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(50))
    cut(log, log.offsets[30] + 60, base=0)
    report = audit(spark, str(log.directory))
    assert [(kind, one.offset) for kind, one in shown(report)] == [(Kind.CUT_SHORT, log.offsets[30])]


# --- places ------------------------------------------------------------------------------------------------


@pytest.fixture
def disks(log: WrittenLog, tmp_path: Path) -> str:
    """Two disks, of which one held the log's first or last segments and is not mounted."""
    empty = tmp_path / "disk2"
    empty.mkdir()
    return f"{log.directory},{empty}"


def test_a_place_without_segments_among_several_is_an_error(
    log: WrittenLog, disks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = f"{tmp_path}/disk2: holds no segments"
    for attempt, tolerant in (
        (lambda: planned(disks), "failOnDataLoss=false"),
        (lambda: stream(disks).initialOffset(), "failOnDataLoss=false"),
        (lambda: plan_export(ExportRequest(disks, str(tmp_path / "out"))), "failOnDataLoss=false"),
        (lambda: stats(cast("Any", None), disks), "mode=PERMISSIVE"),
        (lambda: rebuild(cast("Any", None), disks, tmp_path / "out"), "mode=PERMISSIVE"),
    ):
        with pytest.raises(DataLossError, match=re.escape(f"{told}; mount its disk")) as raised:
            attempt()
        assert f"{tolerant} reads the rest" in str(raised.value)
    with caplog.at_level(logging.WARNING):
        assert planned(disks, failOnDataLoss="false") == log.end
    assert [line for line in caplog.messages if told in line]


def test_a_disk_of_a_pool_may_be_empty(log: WrittenLog, disks: str, tmp_path: Path) -> None:
    try:
        os.setxattr(tmp_path / "disk2", "user.commitlogfs.identity", b"{}")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error.strerror}")
    assert planned(disks) == log.end


@pytest.mark.full
def test_an_audit_finds_the_place_without_segments(spark: SparkSession, disks: str, tmp_path: Path) -> None:
    report = audit(spark, disks)
    assert [(kind, one.where) for kind, one in shown(report)] == [(Kind.EMPTY_PLACE, str(tmp_path / "disk2"))]
