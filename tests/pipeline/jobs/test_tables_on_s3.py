"""The log and the tables of an export on an S3 server that may be slow, fail or lie: each message once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession
from support import s3_server
from support.command_line import PIPELINE
from support.faulty_s3 import Fault, FaultyS3, Kind, faulty_s3
from support.killed_exports import run_killed
from support.messages import messages
from support.table_catalog import IDENTIFIER, TABLE, sql_catalog
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.export import ExportRequest, export, plan_export
from commitlogfs.pipeline.jobs.export_directory import ExportDirectory
from commitlogfs.pipeline.jobs.export_tables import ExportTables

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(s3_server.lack()), reason=s3_server.lack()),
]

SEGMENT = 1 << 16
COUNT = 1000
_LOG, _OUTPUT = "s3://lake/log", "s3://lake/out"
_TABLES = {"iceberg": ("--iceberg", TABLE), "delta": ("--delta",)}
_DEADLINE_S = 300.0
_DIRECT = "TESTED_S3_SERVER"
"""Variable with the URL of the server without the proxy. deltalake holds the GIL while it waits for an answer, so
this process, which runs the proxy, must not use the proxy through it."""


@pytest.fixture(scope="module")
def server(base_directory: Path) -> Iterator[str]:
    directory = base_directory / "s3-tables"
    directory.mkdir()
    with s3_server.s3_server(directory) as address:
        yield address


@pytest.fixture
def s3(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """An empty bucket `lake`; this process and its children reach it through the proxy, by their environment."""
    bucket = s3_server.bucket_of(server)
    bucket.create_dir("lake")
    bucket.delete_dir_contents("lake")
    with faulty_s3(server) as proxy:
        url = f"http://{proxy.endpoint}"
        settings = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            _DIRECT: f"http://{server}",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        reached = {
            "S3__ENDPOINT": url,
            "S3__ACCESS_KEY_ID": "key",
            "S3__SECRET_ACCESS_KEY": "secret",
            "S3__REGION": "us-east-1",
        }
        sql_catalog(monkeypatch, tmp_path, "s3://lake/warehouse", **reached)
        yield proxy


@pytest.fixture
def log(s3: FaultyS3, server: str, tmp_path: Path) -> WrittenLog:
    """Copied to the bucket."""
    written = write_log(tmp_path / "log", SEGMENT, messages(COUNT))
    s3_server.store(server, "lake", "log", written.directory)
    return written


def run(spark: SparkSession, directory: Path) -> None:
    """Into the table that the name of the directory says. Called by `run_killed` in its process."""
    kind = directory.name
    request = ExportRequest(_LOG, _OUTPUT, whole_files=kind == "iceberg", range_size=SEGMENT)
    place = ExportDirectory(_OUTPUT).place
    schema = plan_export(request).layout.file_schema
    iceberg = TABLE if kind == "iceberg" else None
    tables = ExportTables.open(place, schema, request.partition_by, iceberg=iceberg, delta=kind == "delta")
    export(spark, request, {"splitSize": "40k"}, on_finished=tables.add)


def run_command(kind: str) -> "subprocess.CompletedProcess[str]":
    arguments = ["export", _LOG, _OUTPUT, *_TABLES[kind], "--range-size", "64k", "--split-size", "40k"]
    return subprocess.run(
        [*PIPELINE, *arguments, "--master", "local[2]"],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "400"},
        timeout=_DEADLINE_S,
        check=False,
    )


def offsets(kind: str) -> list[int]:
    """Log offsets of the table's rows; none if the table does not exist."""
    rows: Any
    if kind == "delta":
        direct = {"aws_endpoint_url": os.environ[_DIRECT]}
        if not deltalake.DeltaTable.is_deltatable(_OUTPUT, direct):
            return []
        rows = deltalake.DeltaTable(_OUTPUT, storage_options=direct).to_pyarrow_table(columns=["commitLogOffset"])
    else:
        try:
            rows = load_catalog("lake").load_table(IDENTIFIER).scan(selected_fields=("commitLogOffset",)).to_arrow()
        except NoSuchTableError:
            return []
    return sorted(rows["commitLogOffset"].to_pylist())


def require_complete(kind: str, log: WrittenLog) -> None:
    """After one more run, which must end well."""
    done = run_command(kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert offsets(kind) == log.offsets


def require_whole_ranges(kind: str, log: WrittenLog) -> None:
    """The table has all rows of a range, which is a segment here, or none."""
    found = offsets(kind)
    assert len(found) == len({*found})
    begun = {offset // SEGMENT for offset in found}
    assert found == [offset for offset in log.offsets if offset // SEGMENT in begun]


@pytest.mark.parametrize("kind", _TABLES)
def test_the_log_and_the_table_on_s3(kind: str, log: WrittenLog) -> None:
    require_complete(kind, log)
    require_complete(kind, log)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "step"), [("iceberg", 330), ("delta", 33)])
def test_killed_and_run_again(kind: str, step: int, log: WrittenLog, tmp_path: Path, base_directory: Path) -> None:
    directory = tmp_path / kind
    directory.mkdir()
    traced = ("iceberg_table.py", "pyiceberg/table/__init__.py", "delta_table.py", "deltalake/table.py")
    run_killed(sys.modules[__name__], directory, base_directory / f"s3-{kind}", step, traced)
    require_whole_ranges(kind, log)
    require_complete(kind, log)


@pytest.mark.soak
@pytest.mark.parametrize("kind", _TABLES)
def test_a_slow_and_busy_server_is_retried(kind: str, s3: FaultyS3, log: WrittenLog) -> None:
    s3.faults = [
        Fault(Kind.SLOW, "GET", "/lake/log/", times=3),
        Fault(Kind.BUSY, "GET", "/lake/log/0", times=1),
        Fault(Kind.BUSY, "PUT", r"/lake/out/.*building", times=2),
        Fault(Kind.BUSY, "PUT", r"/_delta_log/0|/warehouse/.*\.avro", times=2),
        Fault(Kind.SLOW, "PUT", r"/_delta_log/0|/warehouse/", times=3),
    ]
    require_complete(kind, log)
    assert all(fault.met == fault.times for fault in s3.faults), s3.faults


@pytest.mark.soak
@pytest.mark.parametrize("kind", _TABLES)
def test_a_server_that_denies_the_commit_is_one_line(kind: str, s3: FaultyS3, log: WrittenLog) -> None:
    s3.faults = [Fault(Kind.DENIED, "PUT", r"/_delta_log/|/warehouse/.*\.avro")]
    done = run_command(kind)
    assert done.returncode == 4, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert offsets(kind) == []
    s3.faults = []
    require_complete(kind, log)


@pytest.mark.soak
@pytest.mark.parametrize("kind", _TABLES)
def test_a_server_that_loses_a_file_is_one_line(kind: str, s3: FaultyS3, log: WrittenLog) -> None:
    """It confirms a file of rows that it does not store."""
    s3.faults = [Fault(Kind.LOST, "PUT", r"/lake/out/_commitlogfs/building/[^/?]+", times=1)]
    done = run_command(kind)
    assert s3.faults[0].met == 1
    assert done.returncode == 4, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    require_whole_ranges(kind, log)
    require_complete(kind, log)
