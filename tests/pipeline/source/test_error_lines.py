"""Output of an error of the data source: our line first, no frames of a worker, no line twice."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.messages import messages
from support.written_logs import WrittenLog, write_log

SEGMENT = 1 << 16


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Damaged."""
    log = write_log(tmp_path / "store" / "commitlog", SEGMENT, messages(100))
    log.write_at(log.offsets[50] + 4, bytes(4))
    return log


def table(spark: SparkSession, path: Path, **options: Any) -> Any:
    return spark.read.format("commitlog").schema("topic string").options(**options).load(str(path))


def lines_of(error: PySparkException) -> list[str]:
    text = str(error)
    assert "Traceback" not in text
    assert '  File "' not in text
    return text.splitlines()


def test_an_error_of_planning_is_in_the_first_line(spark: SparkSession, log: WrittenLog) -> None:
    with pytest.raises(PySparkException) as failed:
        table(spark, log.directory.parent).count()
    assert (
        f"LocationError: {log.directory.parent}: holds no segments; the log is probably"
        in lines_of(failed.value)[0]
    )


def test_an_error_of_an_option_is_in_the_first_line(spark: SparkSession, log: WrittenLog) -> None:
    with pytest.raises(PySparkException) as failed:
        table(spark, log.directory, topics="a").count()
    assert "OptionError: option topics is unknown; did you mean topic?" in lines_of(failed.value)[0]


def test_an_error_of_a_task_is_in_the_first_two_lines(spark: SparkSession, log: WrittenLog) -> None:
    with pytest.raises(PySparkException) as failed:
        table(spark, log.directory).count()
    assert f"DamagedLogError: segment {0:020d}, log offset {log.offsets[50]}: " in "\n".join(
        lines_of(failed.value)[:2]
    )


def test_an_error_of_a_stream_is_in_the_first_line(spark: SparkSession, log: WrittenLog) -> None:
    source = spark.readStream.format("commitlog").schema("topic string").load(str(log.directory.parent))
    query = source.writeStream.format("noop").start()
    with pytest.raises(PySparkException) as failed:
        query.awaitTermination()
    assert "LocationError: " in lines_of(failed.value)[0]


def test_an_error_of_a_streams_option_is_in_the_first_line(spark: SparkSession, log: WrittenLog) -> None:
    """It is raised where PySpark would report an error of its own instead."""
    source = spark.readStream.format("commitlog").schema("topic string").option("endingOffsets", "latest")
    query = source.load(str(log.directory)).writeStream.format("noop").start()
    with pytest.raises(PySparkException) as failed:
        query.awaitTermination()
    assert "OptionError: option endingOffsets is not for a stream" in lines_of(failed.value)[0]


def test_an_error_of_a_users_own_function_keeps_its_frames(spark: SparkSession) -> None:
    def fail(rows: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(PySparkException, match=r'File ".*in fail[\s\S]*ValueError: mine'):
        spark.range(1).rdd.mapPartitions(fail).collect()


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="no IPython")
def test_a_notebook_ends_with_the_line(
    spark: SparkSession, log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(user_ns={"table": table, "spark": spark, "path": log.directory.parent})
    shell.run_line_magic("colors", "nocolor")
    shell.run_cell("table(spark, path).count()")
    *_, ours, state = capsys.readouterr().out.rstrip().splitlines()
    assert f"LocationError: {log.directory.parent}: holds no segments; the log is probably {log.directory}" in ours
    assert state.strip().startswith("SQLSTATE")


_SCRIPT = """
import sys
sys.stderr = open(sys.argv[3], "w")     # what Python says, without what Spark's processes print in between
from commitlogfs.pipeline.source.session import session
spark = session("script", master="local[1]", settings={"spark.driver.memory": "512m"})
rows = spark.read.format("commitlog").schema("topic string").load(sys.argv[1])
for writer in rows.write, rows.write.format("noop"):
    try:
        writer.mode("append").save(sys.argv[2])
    except Exception:
        continue
    sys.exit("written")
rows.count()
"""


@pytest.mark.full
def test_a_plain_script_prints_the_line_once_and_last(log: WrittenLog) -> None:
    said = log.directory.parent / "said"
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, (log.directory, log.directory.parent / "out", said))],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert [
        line for line in ran.stderr.splitlines() if "\tat " in line or " ERROR " in line or " WARN " in line
    ] == []
    ours = said.read_text()
    assert (ran.stderr + ours).count("DamagedLogError") == 1
    assert "DamagedLogError: " in ours.rstrip().splitlines()[-1]
