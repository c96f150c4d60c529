"""Spark reads exactly the log from its export, after any number of runs and interruptions."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.compressed import TYPES, ZSTD, compressed
from support.messages import FIRST_MS, STEP_MS, message, messages
from support.settled_logs import export, plan_export
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.export import ExportRequest, ExportResult, plan_files
from commitlogfs.pipeline.jobs.export_directory import ExportRefusedError
from commitlogfs.pipeline.jobs.export_stream import follow, wait
from commitlogfs.pipeline.log.errors import OptionError, PipelineError
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.log.scanner import Chunk, scan_split
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.source.columns import COLUMNS, Projection

SEGMENT = 1 << 16
COUNT = 1500
SMALL = {"splitSize": "20k"}


def run(spark: SparkSession, directory: Path, options: dict[str, str] | None = None, **wanted: Any) -> ExportResult:
    request = ExportRequest(str(directory / "log"), str(directory / "out"), **wanted)
    return export(spark, request, {**SMALL, **(options or {})})


def exported(spark: SparkSession, directory: Path) -> pa.Table:
    """Rows that Spark reads, in the order of the log and of the columns."""
    table = spark.read.parquet(str(directory / "out")).toArrow()
    return table.select([name for name in COLUMNS.names if name in table.column_names]).sort_by("commitLogOffset")


def offsets(spark: SparkSession, directory: Path) -> list[int]:
    """Those that Spark reads; without a session those in the files, sorted."""
    if isinstance(spark, SparkSession):
        column: list[int] = exported(spark, directory).column("commitLogOffset").to_pylist()
        return column
    tables = [pq.ParquetFile(path).read(["commitLogOffset"]) for path in files(directory)]
    return sorted(pa.concat_tables(tables).column(0).to_pylist())


def in_log(log: WrittenLog) -> list[dict[str, Any]]:
    listing = list_segments(str(log.directory))
    projection = Projection(COLUMNS.names)
    return [
        row
        for split in plan_splits(listing, find_end(listing, settle_s=0))
        for chunk in scan_split(split)
        if isinstance(chunk, Chunk)
        for row in projection.to_batch(chunk).to_pylist()
    ]


def files(directory: Path) -> list[Path]:
    return sorted((directory / "out").rglob("*.parquet"))


def test_every_row_and_column_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    odd = [
        message(n, topic=topic.encode()) for n, topic in enumerate(["%RETRY%g", "a=b/c:d", "主题", "007", "x y"])
    ]
    midnight = -FIRST_MS % 86_400_000 // STEP_MS
    near_midnight = [message(n) for n in range(midnight - 50, midnight + 50)]
    log = write_log(tmp_path / "log", SEGMENT, [*odd, *messages(COUNT), *near_midnight])
    result = run(spark, tmp_path, {"includeSystemTopics": "true", "includeHalfMessages": "true"})
    assert (result.rows, result.end_offset) == (len(log.offsets), log.end)
    assert exported(spark, tmp_path).to_pylist() == in_log(log)
    # One file per topic and day, in the order of the log, and nothing else that a reader would see.
    names = {str(path.parent.relative_to(tmp_path / "out")) for path in files(tmp_path)}
    assert {
        "topic=Topic0/date=2023-11-14",
        "topic=Topic0/date=2023-11-15",
        "topic=a%3Db%2Fc%3Ad/date=2023-11-14",
    } <= names
    assert len(files(tmp_path)) == len(names)
    for path in files(tmp_path):
        column = pq.ParquetFile(path).read(["commitLogOffset"]).column(0).to_pylist()
        assert column == sorted(column)


def test_again_exports_only_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    assert run(spark, tmp_path).rows == COUNT
    before = {path: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert run(spark, tmp_path).ranges == ()
    for more in messages(300, COUNT):
        log.append(more)
    result = run(spark, tmp_path)
    assert (result.rows, result.finished_before) == (300, 1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert offsets(spark, tmp_path) == log.offsets


def test_a_range_is_replaced_not_doubled(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    run(job_spark, tmp_path)
    result = run(job_spark, tmp_path, replace=True, file_size=30_000)
    assert result.rows == COUNT
    assert len(files(tmp_path)) == 6
    run(job_spark, tmp_path, replace=True)
    assert len(files(tmp_path)) == 3
    assert offsets(job_spark, tmp_path) == log.offsets


def test_ranges_of_offsets_in_any_order(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    middle, later = log.offsets[500] + 7, log.offsets[1100]
    first = run(job_spark, tmp_path, {"startingOffsets": str(middle), "endingOffsets": str(later)})
    assert (first.ranges[0].start, first.ranges[0].end) == (log.offsets[501], later)
    assert offsets(job_spark, tmp_path) == log.offsets[501:1100]
    run(job_spark, tmp_path, {"startingOffsets": str(log.offsets[900])})
    assert offsets(job_spark, tmp_path) == log.offsets[501:]
    run(job_spark, tmp_path, range_size=1)
    assert offsets(job_spark, tmp_path) == log.offsets


def test_chosen_columns_topics_and_times(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    times = {"startingTimestamp": str(FIRST_MS + 400 * STEP_MS), "endingTimestamp": str(FIRST_MS + 700 * STEP_MS)}
    run(spark, tmp_path, {"topic": "Topic1", **times}, columns=("body", "commitLogOffset"), partition_by=("date",))
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.columns == ["body", "commitLogOffset", "date"]
    bodies = [row["body"] for row in frame.orderBy("commitLogOffset").collect()]
    assert bodies == [
        b"message %08d" % number for number in range(COUNT) if number % 3 == 1 and 400 <= number < 700
    ]


@pytest.mark.parametrize("decompress", [False, True])
def test_bodies_as_text_and_decompressed(spark: SparkSession, tmp_path: Path, decompress: bool) -> None:
    kinds = [0, *TYPES] * 20
    bodies = [f"Bücher {number} ".encode() * 9 for number in range(len(kinds))]
    stored = [compressed(body, kind) for body, kind in zip(bodies, kinds, strict=True)]
    makers = [message(n, body=stored[n], sys_flag=kind) for n, kind in enumerate(kinds)]
    write_log(tmp_path / "log", SEGMENT, makers)
    columns = ("commitLogOffset", "body", "text")
    run(spark, tmp_path, {"decompress": str(decompress)}, columns=columns)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("commitLogOffset").collect()
    assert [row.text for row in rows] == [body.decode() for body in bodies]
    assert [bytes(row.body) for row in rows] == (bodies if decompress else stored)
    with pytest.raises(ExportRefusedError, match="decompress"):
        run(spark, tmp_path, {"decompress": str(not decompress)}, columns=columns)


@pytest.mark.full
def test_a_stream_has_texts_too(spark: SparkSession, tmp_path: Path) -> None:
    makers = [message(n, body=compressed(b"text %d" % n, ZSTD), sys_flag=ZSTD) for n in range(10)]
    write_log(tmp_path / "log", SEGMENT, makers)
    out = str(tmp_path / "stream")
    wait(follow(spark, str(tmp_path / "log"), out, columns=["text"], partition_by=(), available_now=True))
    assert {row.text for row in spark.read.parquet(out).collect()} == {f"text {n}" for n in range(10)}


@pytest.mark.parametrize("option", [{"unfold": "true"}, {"aggregate": "topic"}])
def test_rows_that_are_no_stored_messages_are_refused(tmp_path: Path, option: dict[str, str]) -> None:
    write_log(tmp_path / "log", SEGMENT, messages(3))
    with pytest.raises(OptionError, match=f"option {next(iter(option))}: an export has a row for each message"):
        plan_export(ExportRequest(str(tmp_path / "log"), str(tmp_path / "out")), option)


def test_files_without_directories_have_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    run(spark, tmp_path, partition_by=(), compression="snappy")
    assert [path.parent for path in files(tmp_path)] == [tmp_path / "out"]
    assert exported(spark, tmp_path).to_pylist() == in_log(log)


def test_other_wishes_for_the_same_output_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "log", SEGMENT, messages(10))
    run(spark, tmp_path)
    with pytest.raises(ExportRefusedError, match=r'with topic = nothing, not \["Topic1"\]; use the same'):
        run(spark, tmp_path, {"topic": "Topic1"})
    for output in str(tmp_path / "out"), f"file://{tmp_path}/out", f"file:{tmp_path}/out":
        with pytest.raises(ExportRefusedError, match="made by exports of ranges"):
            follow(spark, str(tmp_path / "log"), output)


# --- damage and loss -------------------------------------------------------------------------------------


def test_damage_is_an_error_or_told(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    log.write_at(log.offsets[100] + 4, b"\0\0\0\0")
    log.write_at(log.offsets[200] + 90, b"?")  # inside the body
    with pytest.raises(PipelineError, match=rf"log offset {log.offsets[100]}: no record begins here"):
        run(spark, tmp_path)
    assert files(tmp_path) == []
    result = run(spark, tmp_path, {"mode": "PERMISSIVE"})
    assert [damage.offset for damage in result.damages] == [log.offsets[100], log.offsets[200]]
    assert "CRC" in result.damages[1].reason
    assert offsets(spark, tmp_path) == [o for n, o in enumerate(log.offsets) if n not in (100, 200)]


def test_segments_that_are_gone_are_not_passed_over(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    run(job_spark, tmp_path, {"endingOffsets": str(log.offsets[10])})
    log.segment_at(0).unlink()
    with pytest.raises(DataLossError, match=rf"log offsets {log.offsets[10]} to {SEGMENT}: not in the log"):
        run(job_spark, tmp_path)
    result = run(job_spark, tmp_path, {"failOnDataLoss": "false"})
    assert result.lost == ((log.offsets[10], SEGMENT),)
    assert offsets(job_spark, tmp_path) == [o for o in log.offsets if o < log.offsets[10] or o >= SEGMENT]
    assert run(job_spark, tmp_path).lost == ()


def test_a_hole_is_exported_when_its_disk_is_back(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    hidden = log.segment_at(SEGMENT).rename(tmp_path / "hidden")
    with pytest.raises(DataLossError, match="a gap between segments"):
        run(job_spark, tmp_path)
    assert run(job_spark, tmp_path, {"failOnDataLoss": "false"}).lost == ((SEGMENT, 2 * SEGMENT),)
    hidden.rename(log.segment_at(SEGMENT))
    run(job_spark, tmp_path)
    assert offsets(job_spark, tmp_path) == log.offsets


# --- killed ----------------------------------------------------------------------------------------------

_DRIVER = """
import sys
from pathlib import Path
from support.spark import local_session
from commitlogfs.pipeline.jobs.export import ExportRequest, export
directory = Path(sys.argv[1])
with local_session(Path(sys.argv[2])) as spark:
    request = ExportRequest(str(directory / "log"), str(directory / "out"), range_size=1)
    export(spark, request, {"splitSize": "20k"}, on_progress=lambda done, total: print(done, flush=True))
"""


@pytest.mark.full
def test_killed_in_the_middle_and_run_again(spark: SparkSession, tmp_path: Path, base_directory: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(3 * COUNT))
    place = base_directory / "killed"  # a short name: Spark makes sockets below it
    place.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(tmp_path), str(place)], env=environment, start_new_session=True
    ) as driver:
        ranges = tmp_path / "out" / "_commitlogfs" / "ranges"
        deadline = time.monotonic() + 240
        while not (ranges.exists() and len(list(ranges.glob("*.json"))) >= 2):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(driver.pid, signal.SIGKILL)
    finished = len(list(ranges.glob("*.json")))
    result = run(spark, tmp_path, range_size=1)
    assert result.finished_before >= finished >= 2
    assert len(result.ranges) > 0
    assert offsets(spark, tmp_path) == log.offsets
    assert exported(spark, tmp_path).num_rows == len(log.offsets)
    shutil.rmtree(place)


# --- streams ---------------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(600))
    for first in (600, 900, 900):
        for more in messages(300, first) if len(log.offsets) == first else ():
            log.append(more)
        wait(follow(spark, str(log.directory), str(tmp_path / "out"), available_now=True))
        assert offsets(spark, tmp_path) == log.offsets
    assert exported(spark, tmp_path).to_pylist() == in_log(log)


@pytest.mark.full
def test_a_stream_does_not_go_on_in_another_log(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(300))
    out = str(tmp_path / "out")
    wait(follow(spark, str(log.directory), out, available_now=True))
    for count in (100, 500):
        shutil.rmtree(log.directory)
        write_log(log.directory, SEGMENT, messages(count, 10_000))
        with pytest.raises(DataLossError, match=f"has read up to log offset {log.end}: it is another log"):
            wait(follow(spark, str(log.directory), out, available_now=True))
        assert offsets(spark, tmp_path) == log.offsets


@pytest.mark.soak
def test_a_stream_that_is_killed_exports_each_message_once(
    spark: SparkSession, tmp_path: Path, base_directory: Path
) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(300))
    place = base_directory / "followed"
    place.mkdir()
    command = ("export", str(log.directory), str(tmp_path / "out"), "--follow", "--interval", "0.2")
    for round_number in range(4):
        seen = len(files(tmp_path))
        with subprocess.Popen(
            [sys.executable, "-m", "commitlogfs.pipeline", *command],
            env={**os.environ, "SPARK_LOCAL_DIRS": str(place)},
            start_new_session=True,
        ) as driver:
            deadline = time.monotonic() + 240
            # Each time a little later behind the first new file: before, in and after a commit.
            while len(files(tmp_path)) <= seen + 2 * round_number:
                assert driver.poll() is None
                assert time.monotonic() < deadline
                for more in messages(20, len(log.offsets)):
                    log.append(more)
                time.sleep(0.02)
            os.killpg(driver.pid, signal.SIGKILL)
    wait(follow(spark, str(log.directory), str(tmp_path / "out"), available_now=True))
    assert offsets(spark, tmp_path) == log.offsets
    shutil.rmtree(place)


# --- planning --------------------------------------------------------------------------------------------


def test_files_are_cut_by_size_and_dealt_evenly() -> None:
    sizes = {("big", 1): dict.fromkeys(range(10), 100), ("small", 1): {3: 10, 7: 10}, ("other", None): {0: 50}}
    plans = plan_files(sizes, 400, cores=2)
    big = [plan for plan in plans if plan.partition == ("big", 1)]
    assert [plan.first_split for plan in big] == [0, 4, 8]
    assert len(plans) == 5
    assert [plan.number for plan in plans] == list(range(5))
    load = [sum(1 for plan in plans if plan.writer == writer) for writer in {plan.writer for plan in plans}]
    assert len(load) == 2
    assert len({plan.writer for plan in big}) == 2
    assert plan_files({}, 400, cores=2) == []


def test_planning_needs_no_spark_and_writes_nothing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    plan = plan_export(ExportRequest(str(log.directory), str(tmp_path / "out"), range_size=2 * SEGMENT), {})
    assert plan.todo[0] == (0, 2 * SEGMENT)
    assert plan.todo[-1][1] == log.end
    assert plan.todo_bytes == log.end
    assert not (tmp_path / "out").exists()
