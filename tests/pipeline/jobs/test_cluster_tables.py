"""Tables, aggregates and bodies on a standalone cluster that loses an executor: complete, and nothing twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from support.cluster import SparkCluster, kill_an_executor, start_verb
from support.compressed import BATCH, TYPES, batch_body, compressed
from support.messages import message, messages
from support.slow_query import start_query
from support.table_catalog import IDENTIFIER, TABLE, sql_catalog
from support.written_logs import WrittenLog, write_log

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

COUNT = 100_000
BODIES = 20_000
OF_BATCH = 3


@pytest.fixture(scope="module")
def cluster(base_directory: Path) -> Iterator[SparkCluster]:
    with SparkCluster(base_directory / "cluster-tables") as running:
        yield running


@pytest.fixture(scope="module")
def log(base_directory: Path) -> WrittenLog:
    """A log that takes the executors some seconds."""
    return write_log(base_directory / "cluster-tables-log", 1 << 22, messages(COUNT))


@pytest.fixture(scope="module")
def bodies(base_directory: Path) -> WrittenLog:
    """Compressed bodies of all types, plain ones and batches, in turn."""
    makers = []
    for number in range(BODIES):
        text = b"text %08d" % number
        flags = [0, *TYPES, BATCH][number % (len(TYPES) + 2)]
        if flags == BATCH:
            body = batch_body(*[(b"%s/%d" % (text, part), 0, b"") for part in range(OF_BATCH)])
        else:
            body = compressed(text, flags)
        makers.append(message(number, body=body, sys_flag=flags))
    return write_log(base_directory / "cluster-bodies-log", 1 << 20, makers)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_table_whose_executor_is_killed(
    cluster: SparkCluster, log: WrittenLog, workdir: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (workdir / "warehouse").mkdir()
    catalog = sql_catalog(monkeypatch, workdir, f"file://{workdir}/warehouse")
    output = workdir / "out"
    options = ["--iceberg", TABLE] if kind == "iceberg" else ["--delta"]
    job = start_verb("export", log.directory, output, *options, "--range-size", "2m", "--master", cluster.url)
    kill_an_executor(cluster, job, lambda: any(output.rglob("*.parquet")))
    if kind == "iceberg":
        rows = catalog.load_table(IDENTIFIER).scan(selected_fields=("commitLogOffset", "body")).to_arrow()
    else:
        rows = pa.table(deltalake.DeltaTable(output).to_pyarrow_table(columns=["commitLogOffset", "body"]))
    found = sorted(zip(rows["commitLogOffset"].to_pylist(), rows["body"].to_pylist(), strict=True))
    assert found == [(offset, b"message %08d" % number) for number, offset in enumerate(log.offsets)]


def query(
    cluster: SparkCluster, log: WrittenLog, marks: Path, columns: list[str], *options: str
) -> list[list[object]]:
    """The rows of a query whose executor is killed after some tasks."""
    settings = [f"{key}={value}" for key, value in cluster.settings.items()]
    job = start_query(cluster.url, log.directory, marks, columns, *options, *settings)
    rows: list[list[object]] = json.loads(
        kill_an_executor(cluster, job, lambda: len([*marks.iterdir()]) > len(cluster.executors()))
    )
    return rows


def test_an_aggregate_whose_executor_is_killed(cluster: SparkCluster, log: WrittenLog, workdir: Path) -> None:
    columns = ["topic", "queueId", "messages"]
    rows = query(cluster, log, workdir, columns, "aggregate=topic,queueId", "splitSize=200000")
    found: dict[tuple[object, object], int] = {}
    for topic, queue, count in rows:
        assert isinstance(count, int)
        found[topic, queue] = found.get((topic, queue), 0) + count
    expected: dict[tuple[object, object], int] = {}
    for number in range(COUNT):
        key = f"Topic{number % 3}", number % 2
        expected[key] = expected.get(key, 0) + 1
    assert found == expected


def test_bodies_whose_executor_is_killed(cluster: SparkCluster, bodies: WrittenLog, workdir: Path) -> None:
    options = ["decompress=true", "unfold=true", "splitSize=60000"]
    rows = query(cluster, bodies, workdir, ["commitLogOffset", "text"], *options)
    expected: list[list[object]] = []
    for number, offset in enumerate(bodies.offsets):
        text = f"text {number:08d}"
        is_batch = number % (len(TYPES) + 2) == len(TYPES) + 1
        expected += [[offset, f"{text}/{part}"] for part in range(OF_BATCH)] if is_batch else [[offset, text]]
    assert sorted(rows, key=str) == sorted(expected, key=str)
