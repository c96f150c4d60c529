"""Spark reads and compacts the tables of an export: they have the rows of the log, each once."""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import tables_in_spark
from support.killed_exports import run_killed
from support.messages import FIRST_MS, STEP_MS, TOPICS, messages
from support.table_catalog import TABLE, sql_catalog
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.export import ExportRequest, export, plan_export
from commitlogfs.pipeline.jobs.export_tables import ExportTables

pytestmark = pytest.mark.soak

SEGMENT = 1 << 16
COUNT = 1500
GROWTH = 100
BEFORE_MIDNIGHT = 700
FIRST = -FIRST_MS % 86_400_000 // STEP_MS - BEFORE_MIDNIGHT
"""Number of the first message, so that the log has two days."""
FEW = ("topic", "commitLogOffset", "queueId", "queueOffset", "storeTimestamp", "body")
KILLED_AT = (30, 300, 500, 800)
"""Lines of the code that makes the tables, from the first range on."""
TRACED = ("iceberg_table.py", "delta_table.py", "pyiceberg/table/__init__.py", "deltalake/table.py")
_ROWS = """
    SELECT commitLogOffset, topic, queueId, queueOffset, unix_millis(storeTimestamp), decode(body, 'utf-8')
    FROM {} ORDER BY 1
"""
_TEXTS = "SELECT count(text), count(*) FROM {}"
_PART = "SELECT count(*) FROM {} WHERE topic = 'Topic1' AND {} >= DATE '2023-11-15'"


def run(spark: SparkSession, directory: Path, columns: tuple[str, ...] = FEW) -> None:
    request = ExportRequest(
        str(directory / "log"),
        str(directory / "out"),
        columns=columns,
        whole_files=True,
        range_size=SEGMENT // 2,
    )
    schema = plan_export(request).layout.file_schema
    tables = ExportTables.open(request.output, schema, request.partition_by, iceberg=TABLE, delta=True)
    export(spark, request, {"splitSize": "20k"}, on_finished=tables.add)


def rows_of(log: WrittenLog) -> list[list[object]]:
    return [
        [
            offset,
            f"Topic{number % TOPICS}",
            number % 2,
            number // 2,
            FIRST_MS + number * STEP_MS,
            f"message {number:08d}",
        ]
        for number, offset in enumerate(log.offsets, FIRST)
    ]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenLog:
    (tmp_path / "warehouse").mkdir()
    sql_catalog(monkeypatch, tmp_path, f"file://{tmp_path}/warehouse")
    return write_log(tmp_path / "log", SEGMENT, messages(COUNT, first=FIRST))


def grow(log: WrittenLog) -> None:
    for make in messages(GROWTH, first=FIRST + COUNT):
        log.append(make)


def query(directory: Path, *queries: str) -> list[list[list[object]]]:
    scratch = directory / f"scratch-{len([*directory.glob('scratch-*')])}"
    return tables_in_spark.query(scratch, directory / "catalog.db", directory / "warehouse", *queries)


def both(directory: Path) -> tuple[str, str]:
    """Names of the Iceberg and the Delta table, for Spark."""
    return TABLE, f"delta.`{directory}/out`"


def test_after_kills_and_with_a_new_column(
    spark: SparkSession, log: WrittenLog, tmp_path: Path, base_directory: Path
) -> None:
    for step in KILLED_AT:
        run_killed(sys.modules[__name__], tmp_path, base_directory / f"killed-{step}", step, TRACED)
    run(spark, tmp_path)
    grow(log)
    run(spark, tmp_path, (*FEW, "text"))
    iceberg, delta = both(tmp_path)
    found = query(
        tmp_path,
        *(query.format(table) for query in (_ROWS, _TEXTS) for table in (iceberg, delta)),
        _PART.format(iceberg, "storeTimestamp"),
        _PART.format(delta, "date"),
    )
    rows = rows_of(log)
    part = [row for row in rows[BEFORE_MIDNIGHT:] if row[1] == "Topic1"]
    assert found[:2] == [rows, rows]
    assert found[2:] == [[[GROWTH, len(rows)]], [[GROWTH, len(rows)]], [[len(part)]], [[len(part)]]]


def test_spark_compacts_and_the_export_goes_on(spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    run(spark, tmp_path)
    iceberg, delta = both(tmp_path)
    catalog, _, name = iceberg.partition(".")
    rewritten, optimized = query(
        tmp_path,
        f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('min-input-files', '2'))",
        f"OPTIMIZE {delta}",
    )
    assert rewritten[0][0]
    assert optimized[0][1]
    grow(log)
    run(spark, tmp_path)
    run(spark, tmp_path)
    rows = rows_of(log)
    assert query(tmp_path, *(_ROWS.format(table) for table in (iceberg, delta))) == [rows, rows]
