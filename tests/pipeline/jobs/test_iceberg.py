"""An Iceberg table of an export has each message exactly once, whatever ends a run, and any engine can read it."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession
from support.compressed import ZSTD, compressed
from support.killed_exports import run_killed
from support.messages import FIRST_MS, STEP_MS, message, messages
from support.settled_logs import export, plan_export
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.export import ExportRequest, ExportResult
from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, FinishedRange
from commitlogfs.pipeline.jobs.iceberg_table import RANGES, IcebergTable
from commitlogfs.pipeline.jobs.table_commits import END, START, TableRefusedError
from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.source.columns import COLUMNS

SEGMENT = 1 << 16
NAME = "lake.logs.messages"
MIDNIGHT = -FIRST_MS % 86_400_000 // STEP_MS
"""Number of the first message of the second day."""


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    """Configured as an operator does it, in a file of SQLite and a directory."""
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which is read when pyiceberg is loaded
    found = load_catalog("lake")
    assert isinstance(found, SqlCatalog)
    return found


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Three topics, two days."""
    return write_log(tmp_path / "log", SEGMENT, messages(1500, first=MIDNIGHT - 700))


def run(spark: SparkSession, directory: Path, **wanted: object) -> ExportResult:
    request = ExportRequest(
        str(directory / "log"),
        str(directory / "out"),
        whole_files=True,
        range_size=SEGMENT // 2,
        **wanted,  # type: ignore[arg-type]
    )
    layout = plan_export(request, {}).layout
    place = ExportDirectory(request.output).place
    table = IcebergTable(NAME, place, layout.file_schema, request.partition_by)
    return export(spark, request, {"splitSize": "20k"}, on_finished=table.add)


def offsets(catalog: SqlCatalog) -> list[int]:
    return sorted(catalog.load_table("logs.messages").scan().to_arrow()["commitLogOffset"].to_pylist())


def test_the_table_is_the_log(spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path) -> None:
    result = run(spark, tmp_path)
    table = catalog.load_table("logs.messages")
    assert offsets(catalog) == log.offsets
    assert [field.name for field in table.schema().fields] == COLUMNS.names
    assert len(result.ranges) > 1
    added = [s.summary.additional_properties for s in table.snapshots() if s.summary is not None]
    assert [(int(s[START]), int(s[END])) for s in added if START in s] == [(r.start, r.end) for r in result.ranges]
    assert table.properties[RANGES] == f"[[0, {log.end}]]"
    rows = table.scan(row_filter="topic == 'Topic1'").to_arrow()
    assert set(rows["topic"].to_pylist()) == {"Topic1"}
    days = {task.file.partition[1] for task in table.scan().plan_files()}
    assert days == {(date(2023, 11, day) - date(1970, 1, 1)).days for day in (14, 15)}


def test_again_adds_only_what_is_new(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    run(job_spark, tmp_path)
    assert run(job_spark, tmp_path).ranges == ()
    snapshots = len(catalog.load_table("logs.messages").snapshots())
    for make in messages(100, first=MIDNIGHT + 800):
        log.append(make)
    result = run(job_spark, tmp_path)
    assert offsets(catalog) == log.offsets
    assert len(catalog.load_table("logs.messages").snapshots()) == snapshots + len(result.ranges)


def test_ranges_that_were_finished_without_the_table_are_added(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    """As after a kill between the commit of a range and that of the table."""
    request = ExportRequest(str(tmp_path / "log"), str(tmp_path / "out"), whole_files=True, range_size=SEGMENT // 2)
    export(job_spark, request, {"splitSize": "20k"})
    assert run(job_spark, tmp_path).ranges == ()
    assert offsets(catalog) == log.offsets


def test_a_table_of_another_log_is_refused(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    """The log was wiped, and the output removed and exported again."""
    run(job_spark, tmp_path)
    for name in ("log", "out"):
        shutil.rmtree(tmp_path / name)
    write_log(tmp_path / "log", SEGMENT, messages(500, 10_000))
    with pytest.raises(TableRefusedError, match=r"has messages of another log than .*name another table"):
        run(job_spark, tmp_path)


TRACED = ("iceberg_table.py", "pyiceberg/table/__init__.py")


@pytest.mark.full
@pytest.mark.parametrize(
    "step",
    [60, 240, 330, 450, *(pytest.param(step, marks=pytest.mark.soak) for step in range(5, 1110, 24))],
)
def test_killed_and_run_again(
    spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path, base_directory: Path, step: int
) -> None:
    """While the table is made, while files are added, around the commit, while the next range is added."""
    run_killed(sys.modules[__name__], tmp_path, base_directory / f"killed-{step}", step, TRACED)
    run(spark, tmp_path)
    assert offsets(catalog) == log.offsets


def test_texts_and_chosen_columns(job_spark: SparkSession, catalog: SqlCatalog, tmp_path: Path) -> None:
    makers = [message(n, body=compressed(b"text %d" % n, ZSTD), sys_flag=ZSTD) for n in range(20)]
    write_log(tmp_path / "log", SEGMENT, makers)
    run(job_spark, tmp_path, columns=("topic", "commitLogOffset", "text"), partition_by=("topic",))
    rows = catalog.load_table("logs.messages").scan().to_arrow()
    assert rows.column_names == ["topic", "commitLogOffset", "text"]
    assert sorted(rows["text"].to_pylist()) == sorted(f"text {n}" for n in range(20))


def test_columns_that_the_partitions_need_are_asked_for(tmp_path: Path) -> None:
    request = ExportRequest(
        str(tmp_path / "log"), str(tmp_path / "out"), columns=("topic", "body"), whole_files=True
    )
    with pytest.raises(OptionError, match="columns: storeTimestamp: is needed by the partitions topic, date"):
        plan_export(request)


def test_columns_are_added(job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path) -> None:
    few = ("topic", "commitLogOffset", "storeTimestamp")
    run(job_spark, tmp_path, columns=few)
    before = len(log.offsets)
    for make in messages(100, first=MIDNIGHT + 800):
        log.append(make)
    run(job_spark, tmp_path, columns=("text", *few, "properties"))
    rows = catalog.load_table("logs.messages").scan().to_arrow().sort_by("commitLogOffset").to_pylist()
    assert [row["commitLogOffset"] for row in rows] == log.offsets
    assert [row["text"] is None for row in rows] == [number < before for number in range(len(rows))]
    assert rows[-1]["properties"]


def test_two_processes_that_add_at_once_add_each_range_once(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an output without a lock. The second commit begins before the first one ends."""
    request = ExportRequest(str(tmp_path / "log"), str(tmp_path / "out"), whole_files=True, range_size=SEGMENT // 2)
    ranges = export(job_spark, request, {"splitSize": "20k"}).ranges
    one, other = (IcebergTable(NAME, str(tmp_path / "out"), COLUMNS, request.partition_by) for _ in range(2))
    add_files = Transaction.add_files
    for mine, others in ((ranges[0], ranges[0]), (ranges[1], ranges[2])):

        def add_beside(change: Transaction, *arguments: Any, others: FinishedRange = others, **named: Any) -> None:
            monkeypatch.setattr(Transaction, "add_files", add_files)
            add_files(change, *arguments, **named)
            assert other.add(others)

        monkeypatch.setattr(Transaction, "add_files", add_beside)
        one.add(mine)
    table = catalog.load_table("logs.messages")
    found = sorted(table.scan().to_arrow()["commitLogOffset"].to_pylist())
    assert found == [offset for offset in log.offsets if offset < ranges[2].end]
    assert json.loads(table.properties[RANGES]) == [[0, ranges[2].end]]


def test_ranges_without_rows_make_no_commit_and_no_gap(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    request = ExportRequest(str(tmp_path / "log"), str(tmp_path / "out"), whole_files=True, range_size=SEGMENT // 2)
    first, second, third = export(job_spark, request, {"splitSize": "20k"}).ranges[:3]
    table = IcebergTable(NAME, str(tmp_path / "out"), COLUMNS, request.partition_by)
    table.add(first)
    assert not table.add(replace(second, rows=0, files=()))
    table.add(third)
    assert table.ranges() == [(0, third.end)]
    assert len(catalog.load_table("logs.messages").snapshots()) == 2


def test_a_table_that_others_change_meanwhile_gets_each_range_once(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    """An engine may compact it, and another process may export."""
    request = ExportRequest(
        str(tmp_path / "log"),
        str(tmp_path / "out"),
        whole_files=True,
        range_size=SEGMENT // 2,
        partition_by=("topic",),
    )
    ranges = export(job_spark, request, {"splitSize": "20k"}).ranges
    tables = [IcebergTable(NAME, str(tmp_path / "out"), COLUMNS, request.partition_by) for _ in range(2)]
    for number, one in enumerate(ranges):
        assert tables[number % 2].add(one)
        assert not tables[1 - number % 2].add(one)
        table = catalog.load_table("logs.messages")
        table.overwrite(table.scan().to_arrow())
    assert offsets(catalog) == log.offsets


def test_its_size_is_that_of_its_present_files(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    table = IcebergTable(NAME, str(tmp_path / "out"), COLUMNS, ("topic", "date"))
    assert (table.size().files, table.size().size) == (0, 0)
    result = run(job_spark, tmp_path)
    size = IcebergTable(NAME, str(tmp_path / "out"), COLUMNS, ("topic", "date")).size()
    files = [file for one in result.ranges for file in one.files]
    assert (size.files, size.size) == (len(files), sum(file.size for file in files))


def test_a_table_of_somebody_else_is_refused(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    catalog.create_namespace("logs")
    catalog.create_table("logs.messages", schema=COLUMNS)
    with pytest.raises(TableRefusedError, match="was not made by an export"):
        run(job_spark, tmp_path)
    catalog.drop_table("logs.messages")
    run(job_spark, tmp_path)
    with pytest.raises(TableRefusedError, match=f"has the files of {tmp_path}/out"):
        IcebergTable(NAME, str(tmp_path / "other"), COLUMNS, ())
    with pytest.raises(TableRefusedError, match="is a table with the columns topic, too"):
        IcebergTable(NAME, str(tmp_path / "out"), COLUMNS.remove(COLUMNS.get_field_index("topic")), ())


@pytest.mark.parametrize("name", ["lake", "lake.messages", "pond.logs.messages"])
def test_a_wrong_name_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError) as raised:
        IcebergTable(name, str(tmp_path / "out"), COLUMNS, ())
    assert "\n" not in str(raised.value)
    assert name in str(raised.value)
