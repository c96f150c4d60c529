"""A path that is not a log is an error, a log without messages is an empty table: in every reader and verb."""

import json
import logging
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.clocks import SHORT_WAITS, RecordedWaits
from support.messages import messages
from support.pools import PoolMount
from support.stream_offsets import offset_at
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline import cli
from commitlogfs.pipeline.jobs.audit import audit
from commitlogfs.pipeline.jobs.export import ExportRequest, plan_export
from commitlogfs.pipeline.jobs.rebuild import rebuild
from commitlogfs.pipeline.jobs.stats import stats
from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.tail import SETTLE_S
from commitlogfs.pipeline.source.options import ReadOptions, parse_options
from commitlogfs.pipeline.source.reader import plan_batch
from commitlogfs.pipeline.source.selection import Bounds
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader
from commitlogfs.store.clock import Clock, SystemClock

SEGMENT = 1 << 16
ENTRY = struct.Struct(">qiq")
"""An entry of a consume queue: log offset, size, tags code."""


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """In a store's root, as a broker has it."""
    return write_log(tmp_path / "store" / "commitlog", SEGMENT, messages(20))


def options(path: object, *, streaming: bool = False, **given: str) -> ReadOptions:
    return parse_options({"path": str(path), **given}, streaming=streaming)


def batch(path: object, clock: Clock = SHORT_WAITS, **given: Any) -> int:
    return len(plan_batch(options(path, **given), Bounds(), clock=clock))


def stream(path: object, clock: Clock = SHORT_WAITS, **given: str) -> CommitlogStreamReader:
    return CommitlogStreamReader(options(path, streaming=True, **given), cast("Any", None), clock=clock)


READERS: dict[str, Callable[[str, Clock], object]] = {
    "batch": batch,
    "stream": lambda path, clock: stream(path, clock).initialOffset(),
    "stats": lambda path, clock: stats(cast("Any", None), path, clock=clock),
    "export": lambda path, clock: plan_export(ExportRequest(path, "/nowhere/out"), clock=clock),
    "rebuild": lambda path, clock: rebuild(cast("Any", None), path, Path("/nowhere/out"), clock=clock),
    "audit": lambda path, clock: audit(cast("Any", None), path, clock=clock),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("above", "kind"), [(".", "path"), ("..", "path"), (".", "file URI"), (".", "list")])
def test_a_directory_above_the_log_is_an_error_that_names_the_log(
    log: WrittenLog, reader: str, above: str, kind: str
) -> None:
    root = os.path.normpath(log.directory.parent / above)
    place, told = {
        "path": (root, str(log.directory)),
        "file URI": (f"file://{root}", f"file://{log.directory}"),
        "list": (f"{log.directory},{root}", str(log.directory)),
    }[kind]
    with pytest.raises(LocationError, match=re.escape(f"holds no segments; the log is probably {told}")):
        READERS[reader](place, SHORT_WAITS)


@pytest.mark.parametrize("verb", ["stats", "export", "rebuild", "audit"])
def test_each_verb_names_the_log_below_a_wrong_path(
    log: WrittenLog, verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = {"export": [str(tmp_path / "out")], "rebuild": ["--output", str(tmp_path / "out")]}.get(verb, [])
    assert cli.main([verb, str(log.directory.parent), *output]) == 3
    assert f"holds no segments; the log is probably {log.directory}" in capfd.readouterr().err


@pytest.mark.full
def test_each_wrong_path_is_an_error_in_spark(spark: SparkSession, log: WrittenLog) -> None:
    reader = spark.read.format("commitlog").schema("topic string")
    for pushes in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushes)
        try:
            with pytest.raises(PySparkException, match=f"LocationError: .*probably {log.directory}"):
                reader.load(str(log.directory.parent)).where("topic = 'a'").count()
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("files", [1, 3])
def test_files_of_a_consume_queue_are_no_log(
    log: WrittenLog, files: int, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have names like those of segments. A reader waits until they do not change, by its clock."""
    monkeypatch.setattr(SystemClock, "sleep", lambda *_: pytest.fail("waits by another clock"))
    queue = log.directory.parent / "consumequeue" / "Topic" / "0"
    queue.mkdir(parents=True)
    entries = b"".join(ENTRY.pack(offset, 100, 0) for offset in log.offsets)
    for number in range(files):
        (queue / f"{number * 6000:020d}").write_bytes(entries.ljust(6000, b"\0"))
    clock = RecordedWaits()
    with pytest.raises(LocationError, match=f"{queue}: no file holds a message"):
        READERS[reader](str(queue), clock)
    assert set(clock.waits_s) == {SETTLE_S}


@pytest.mark.parametrize("reader", READERS)
def test_a_segment_as_path_is_an_error_that_names_the_log(log: WrittenLog, reader: str) -> None:
    with pytest.raises(LocationError, match=f"Not a directory; the log is probably {log.directory}$"):
        READERS[reader](str(log.segment_at(0)), SHORT_WAITS)


@pytest.mark.parametrize("reader", READERS)
def test_an_empty_directory_is_an_error(tmp_path: Path, reader: str) -> None:
    with pytest.raises(Exception, match=f"{tmp_path}: holds no segments; check that the log is mounted there"):
        READERS[reader](str(tmp_path), SHORT_WAITS)


def test_an_empty_directory_is_a_log_without_messages_if_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert batch(tmp_path, failOnDataLoss="false") == 0
        reader = stream(tmp_path, failOnDataLoss="false")
        assert reader.initialOffset() == offset_at(tmp_path, 0)
    assert caplog.messages == [f"{tmp_path}: holds no segments; check that the log is mounted there"] * 2
    log = write_log(tmp_path, SEGMENT, messages(20))
    assert reader.latestOffset(offset_at(tmp_path, 0), ReadAllAvailable()) == offset_at(tmp_path, log.end)


def test_a_first_segment_without_size_is_a_log(tmp_path: Path) -> None:
    """A broker creates the file first and gives it its size afterwards."""
    (tmp_path / f"{0:020d}").touch()
    assert batch(tmp_path) == 0


def test_disks_of_a_pool_are_a_log_without_messages(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    assert batch(",".join(map(str, pool.disks))) == 0
    assert batch(pool.disks[0]) == 0


def test_a_stream_on_a_new_mount_reads_the_first_segment(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    reader = stream(pool.mountpoint)
    assert reader.initialOffset() == offset_at(pool.mountpoint, 0)
    assert reader.latestOffset(offset_at(pool.mountpoint, 0), ReadAllAvailable()) == offset_at(pool.mountpoint, 0)
    segment = pool.path(0)
    with segment.open("xb") as file:
        file.truncate(pool.segment_size)
    source = write_log(pool.disks[0].parent / "source", pool.segment_size, messages(20))
    with segment.open("r+b") as file:
        file.write(source.segment_at(0).read_bytes()[: source.end])
        os.fsync(file.fileno())
    reached = reader.latestOffset(offset_at(pool.mountpoint, 0), ReadAllAvailable())
    assert reached == offset_at(pool.mountpoint, source.end)
    pool.stop()
    with pytest.raises(Exception, match=r"check that the log is mounted there|has truncated it"):
        reader.latestOffset(reached, ReadAllAvailable())


@pytest.mark.full
def test_every_verb_takes_a_new_mount_for_an_empty_log(
    spark: SparkSession, make_pool: Callable[..., PoolMount], tmp_path: Path
) -> None:
    pool = make_pool(2)
    pool.start()
    log = str(pool.mountpoint)
    assert spark.read.format("commitlog").schema("topic string").load(log).count() == 0
    assert stats(spark, log).as_json()["total"] is None
    assert audit(spark, log).is_whole
    assert rebuild(spark, log, tmp_path / "rebuilt").records == 0
    assert plan_export(ExportRequest(log, str(tmp_path / "out"))).todo == ()


@pytest.mark.full
def test_stats_of_a_new_mount_exits_with_0(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(1)
    pool.start()
    command = [sys.executable, "-m", "commitlogfs.pipeline", "--json", "stats", str(pool.mountpoint)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["segments"] == 0
