"""DuckDB reads the tables of an export: the rows of the log, each once, and only the files that a query needs."""

from datetime import date
from pathlib import Path

import deltalake
import duckdb
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from support.messages import FIRST_MS, STEP_MS, TOPICS, messages
from support.settled_logs import export, plan_export
from support.table_catalog import IDENTIFIER, TABLE, sql_catalog
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.export import ExportRequest
from commitlogfs.pipeline.jobs.export_tables import ExportTables

SEGMENT = 1 << 16
COUNT = 1500
BEFORE_MIDNIGHT = 700
FIRST = -FIRST_MS % 86_400_000 // STEP_MS - BEFORE_MIDNIGHT
"""Number of the first message, so that the log has two days."""
TOPIC, DAY = "Topic1", date(2023, 11, 15)
_ROWS = "SELECT commitLogOffset, topic, queueId, queueOffset, epoch_ms(storeTimestamp), body FROM messages"

Row = tuple[int, str, int, int, int, bytes]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    (tmp_path / "warehouse").mkdir()
    return sql_catalog(monkeypatch, tmp_path, f"file://{tmp_path}/warehouse")


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", SEGMENT, messages(COUNT, first=FIRST))


def export_twice(spark: SparkSession, directory: Path, *, iceberg: str | None = None, delta: bool = False) -> None:
    """The second run has nothing to add."""
    for _ in range(2):
        request = ExportRequest(
            str(directory / "log"),
            str(directory / "out"),
            whole_files=iceberg is not None,
            range_size=SEGMENT // 2,
        )
        schema = plan_export(request).layout.file_schema
        tables = ExportTables.open(request.output, schema, request.partition_by, iceberg=iceberg, delta=delta)
        export(spark, request, {"splitSize": "20k"}, on_finished=tables.add)


def expected_rows(log: WrittenLog) -> list[Row]:
    return [
        (
            offset,
            f"Topic{number % TOPICS}",
            number % 2,
            number // 2,
            FIRST_MS + number * STEP_MS,
            b"message %08d" % number,
        )
        for number, offset in enumerate(log.offsets, FIRST)
    ]


def expected_part(log: WrittenLog) -> list[Row]:
    return [row for row in expected_rows(log)[BEFORE_MIDNIGHT:] if row[1] == TOPIC]


def query(messages: object, condition: str = "true") -> list[Row]:
    """The rows in the order of the log. `messages`: an Arrow reader or data set."""
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        found: list[Row] = connection.execute(f"{_ROWS} WHERE {condition} ORDER BY 1").fetchall()
    return found


def test_an_iceberg_table(spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path) -> None:
    export_twice(spark, tmp_path, iceberg=TABLE)
    table = catalog.load_table(IDENTIFIER)
    assert query(table.scan().to_arrow_batch_reader()) == expected_rows(log)
    part = table.scan(
        row_filter=f"topic == '{TOPIC}' and storeTimestamp >= '{DAY}T00:00:00+00:00'",
    )
    assert query(part.to_arrow_batch_reader()) == expected_part(log)
    read = [task.file for task in part.plan_files()]
    assert read
    assert {file.partition[0] for file in read} == {TOPIC}
    assert {file.partition[1] for file in read} == {(DAY - date(1970, 1, 1)).days}
    assert sum(file.record_count for file in read) == len(expected_part(log))


def test_a_delta_table(job_spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    export_twice(job_spark, tmp_path, delta=True)
    table = deltalake.DeltaTable(tmp_path / "out")
    rows = table.to_pyarrow_dataset()
    assert query(rows) == expected_rows(log)
    assert query(rows, f"topic = '{TOPIC}' AND date = DATE '{DAY}'") == expected_part(log)
    chosen = (ds.field("topic") == TOPIC) & (ds.field("date") == DAY)
    files = [*rows.get_fragments(filter=chosen)]
    assert files
    assert all(f"topic={TOPIC}/date={DAY}/" in file.path for file in files)
    assert sum(file.count_rows() for file in files) == len(expected_part(log))


def test_both_tables_of_one_output(
    job_spark: SparkSession, catalog: SqlCatalog, log: WrittenLog, tmp_path: Path
) -> None:
    export_twice(job_spark, tmp_path, iceberg=TABLE, delta=True)
    assert query(catalog.load_table(IDENTIFIER).scan().to_arrow_batch_reader()) == expected_rows(log)
    assert query(deltalake.DeltaTable(tmp_path / "out").to_pyarrow_dataset()) == expected_rows(log)
