"""The Delta table of an export has each message exactly once, whatever ends a run."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.command_line import PIPELINE
from support.killed_exports import run_killed
from support.messages import FIRST_MS, STEP_MS, message, messages
from support.settled_logs import export, plan_export
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.delta_table import DeltaTable
from commitlogfs.pipeline.jobs.export import ExportRequest, ExportResult
from commitlogfs.pipeline.jobs.export_directory import (
    ExportDirectory,
    ExportRefusedError,
    FinishedFile,
    FinishedRange,
)
from commitlogfs.pipeline.jobs.table_commits import END, START, TableRefusedError
from commitlogfs.pipeline.source.columns import COLUMNS

SEGMENT = 1 << 16
MIDNIGHT = -FIRST_MS % 86_400_000 // STEP_MS
"""Number of the first message of the second day."""


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Three topics, two days."""
    return write_log(tmp_path / "log", SEGMENT, messages(1500, first=MIDNIGHT - 700))


def run(spark: SparkSession, directory: Path, **wanted: Any) -> ExportResult:
    request = ExportRequest(str(directory / "log"), str(directory / "out"), range_size=SEGMENT // 2, **wanted)
    layout = plan_export(request, {}).layout
    with ExportDirectory(request.output) as output:
        place = output.place
    table = DeltaTable(place, layout.file_schema, request.partition_by)
    return export(spark, request, {"splitSize": "20k"}, on_finished=table.add)


def rows(directory: Path) -> pa.Table:
    return pa.table(deltalake.DeltaTable(directory / "out").scan().read_all())


def offsets(directory: Path) -> list[int]:
    found: list[int] = sorted(rows(directory)["commitLogOffset"].to_pylist())
    return found


def test_the_table_is_the_log(spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    result = run(spark, tmp_path)
    assert offsets(tmp_path) == log.offsets
    table = deltalake.DeltaTable(tmp_path / "out")
    assert {field.name for field in table.schema().fields} == {*COLUMNS.names, "date"}
    assert table.metadata().partition_columns == ["topic", "date"]
    added = [(int(one[START]), int(one[END])) for one in table.history() if START in one]
    assert sorted(added) == [(one.start, one.end) for one in result.ranges]
    assert len(added) > 1
    values = table.partitions()
    assert {value["topic"] for value in values} == {"Topic0", "Topic1", "Topic2"}
    assert {str(value["date"]) for value in values} == {"2023-11-14", "2023-11-15"}


@pytest.mark.full
def test_the_command(log: WrittenLog, tmp_path: Path) -> None:
    command = [*PIPELINE, "export", str(tmp_path / "log"), str(tmp_path / "out"), "--delta"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert offsets(tmp_path) == log.offsets


def test_again_adds_only_what_is_new(job_spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    run(job_spark, tmp_path)
    version = deltalake.DeltaTable(tmp_path / "out").version()
    assert run(job_spark, tmp_path).ranges == ()
    assert deltalake.DeltaTable(tmp_path / "out").version() == version
    for make in messages(100, first=MIDNIGHT + 800):
        log.append(make)
    result = run(job_spark, tmp_path)
    assert offsets(tmp_path) == log.offsets
    assert deltalake.DeltaTable(tmp_path / "out").version() == version + len(result.ranges)


def test_an_older_export_becomes_a_table(spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    request = ExportRequest(str(tmp_path / "log"), str(tmp_path / "out"), range_size=SEGMENT // 2)
    export(spark, request, {"splitSize": "20k"})
    assert run(spark, tmp_path).ranges == ()
    assert offsets(tmp_path) == log.offsets
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(log.offsets), "no longer an export"


def test_topics_with_odd_names(job_spark: SparkSession, tmp_path: Path) -> None:
    names = ["%RETRY%group", "a b+c", "größe", "x=y", "100%25"]
    makers = [message(number, topic=name.encode()) for number, name in enumerate(names)]
    log = write_log(tmp_path / "log", SEGMENT, makers)
    run(job_spark, tmp_path)
    found = rows(tmp_path)
    assert sorted(found["topic"].to_pylist()) == sorted(names)
    assert sorted(found["commitLogOffset"].to_pylist()) == log.offsets


@pytest.mark.parametrize("partition_by", [(), ("topic",), ("date",)], ids=["none", "topic", "date"])
def test_other_partitions(
    job_spark: SparkSession, log: WrittenLog, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    run(job_spark, tmp_path, partition_by=partition_by)
    found = rows(tmp_path)
    assert sorted(found["commitLogOffset"].to_pylist()) == log.offsets
    assert set(found["topic"].to_pylist()) == {"Topic0", "Topic1", "Topic2"}


TRACED = ("delta_table.py", "deltalake/table.py")


@pytest.mark.full
@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step in (38, 104) else pytest.mark.soak) for step in range(5, 550, 11)]
)
def test_killed_and_run_again(
    spark: SparkSession, log: WrittenLog, tmp_path: Path, base_directory: Path, step: int
) -> None:
    """While the table is made, while files are added, around the commit, while the next range is added."""
    run_killed(sys.modules[__name__], tmp_path, base_directory / f"killed-{step}", step, TRACED)
    run(spark, tmp_path)
    assert offsets(tmp_path) == log.offsets


def test_files_of_a_table_are_not_replaced(job_spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    run(job_spark, tmp_path)
    request = ExportRequest(str(tmp_path / "log"), str(tmp_path / "out"), range_size=SEGMENT // 2, replace=True)
    with pytest.raises(ExportRefusedError, match="is a Delta table"):
        export(job_spark, request, {"splitSize": "20k"})
    assert offsets(tmp_path) == log.offsets


def test_columns_are_added_and_not_left_out(job_spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    few = ("topic", "commitLogOffset", "storeTimestamp")
    run(job_spark, tmp_path, columns=few)
    before = len(log.offsets)
    for make in messages(100, first=MIDNIGHT + 800):
        log.append(make)
    run(job_spark, tmp_path, columns=(*few, "body", "text"))
    found = sorted(rows(tmp_path).to_pylist(), key=lambda row: row["commitLogOffset"])
    assert [row["commitLogOffset"] for row in found] == log.offsets
    assert [row["text"] is None for row in found] == [number < before for number in range(len(found))]
    with pytest.raises(ExportRefusedError, match="was exported with columns"):
        run(job_spark, tmp_path, columns=few)
    with pytest.raises(TableRefusedError, match="is a table with the columns body, text, too"):
        DeltaTable(str(tmp_path / "out"), COLUMNS_OF_FEW, ("topic", "date"))


COLUMNS_OF_FEW = pa.schema([COLUMNS.field(name) for name in ("commitLogOffset", "storeTimestamp")])


def finished(start: int, end: int, *, files: int = 1) -> FinishedRange:
    names = [f"topic=a/date=2026-11-27/{start}-{end}-{number}.parquet" for number in range(files)]
    return FinishedRange(start, end, 10 * files, tuple(FinishedFile(name, 10, 1000) for name in names), (), ())


def make_files(directory: Path, one: FinishedRange) -> None:
    for file in one.files:
        (directory / file.path).parent.mkdir(parents=True, exist_ok=True)
        (directory / file.path).touch()


def added(directory: Path, ranges: Iterable[FinishedRange]) -> list[bool]:
    """Which of them a new process adds."""
    ranges = list(ranges)
    for one in ranges:
        make_files(directory, one)
    table = DeltaTable(str(directory), COLUMNS_OF_FEW, ("topic", "date"))
    return [table.add(one) for one in ranges]


def test_ranges_are_added_once_in_any_order(tmp_path: Path) -> None:
    """Ranges without rows lie between, and a part of the log is exported later than what follows it."""
    begun = [finished(0, 10), finished(10, 20, files=0), finished(20, 30), finished(50, 60)]
    assert added(tmp_path, begun) == [True, False, True, True]
    whole = sorted([*begun, finished(30, 40), finished(40, 50)], key=lambda one: one.start)
    assert added(tmp_path, whole) == [False, False, False, True, True, False]
    assert added(tmp_path, [*whole, finished(60, 70)]) == [False] * 6 + [True]
    table = deltalake.DeltaTable(tmp_path)
    assert len(table.file_uris()) == 6
    begins = [begin for begin in range(0, 70, 10) if table.transaction_version(f"commitlogfs {begin}") is not None]
    assert begins == [0, 50], "the number of transactions does not grow with that of the ranges"


def test_a_range_of_which_the_table_has_a_part_is_refused(tmp_path: Path) -> None:
    added(tmp_path, [finished(0, 10)])
    with pytest.raises(TableRefusedError, match="has a part of the log offsets 5 to 20, not all of them"):
        added(tmp_path, [finished(0, 10), finished(5, 20)])


def test_its_size_is_that_of_its_present_files(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), COLUMNS_OF_FEW, ("topic", "date"))
    assert (table.size().files, table.size().size) == (0, 0)
    for one in (finished(0, 10, files=3), finished(10, 20, files=2)):
        make_files(tmp_path, one)
        table.add(one)
    assert (table.size().files, table.size().size) == (5, 5000)


def test_a_range_of_which_a_file_is_gone_is_refused(tmp_path: Path) -> None:
    """VACUUM deletes files that are in no table yet."""
    assert added(tmp_path, [finished(0, 10)]) == [True]
    table = DeltaTable(str(tmp_path), COLUMNS_OF_FEW, ("topic", "date"))
    table.add(finished(0, 10))
    with pytest.raises(ExportRefusedError, match=r"10-20-0\.parquet was deleted; export the log offsets 10 to 20"):
        table.add(finished(10, 20))
    assert deltalake.DeltaTable(tmp_path).version() == 1


def test_known_ranges_cost_no_look_at_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that follows a log has thousands of them."""
    ranges = [finished(start, start + 10) for start in range(0, 100, 10)]
    added(tmp_path, ranges)
    table = DeltaTable(str(tmp_path), COLUMNS_OF_FEW, ("topic", "date"))
    assert not table.add(ranges[0])
    monkeypatch.setattr(deltalake.DeltaTable, "update_incremental", lambda _: pytest.fail("looked at the table"))
    assert not any(table.add(one) for one in ranges[1:])
