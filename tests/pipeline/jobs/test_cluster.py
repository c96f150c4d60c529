"""A real standalone cluster, a master and two workers: what it answers is what local mode answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support import spark_driver
from support.cluster import SparkCluster, kill_an_executor, start_verb
from support.messages import message, messages
from support.rebuilding import read_files
from support.written_logs import WrittenLog, write_log

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

COUNT = 20_000
SEGMENT = 1 << 18


@pytest.fixture(scope="module")
def log(base_directory: Path) -> WrittenLog:
    return write_log(base_directory / "cluster-log", SEGMENT, messages(COUNT))


@pytest.fixture(scope="module")
def cluster(base_directory: Path) -> Iterator[SparkCluster]:
    with SparkCluster(base_directory / "cluster") as running:
        yield running


def expected() -> list[list[object]]:
    """By topic and queue: how many, the sum of their queue offsets, the bytes of their bodies."""
    found: dict[tuple[str, int], list[int]] = {}
    for number in range(COUNT):
        sums = found.setdefault((f"Topic{number % 3}", number % 2), [0, 0, 0])
        sums[0] += 1
        sums[1] += number // 2
        sums[2] += len(b"message %08d" % number)
    return sorted([*key, *sums] for key, sums in found.items())


def settings_of(cluster: SparkCluster) -> list[str]:
    return [f"{key}={value}" for key, value in cluster.settings.items()]


def test_a_cluster_answers_as_local_mode_does(cluster: SparkCluster, log: WrittenLog) -> None:
    local = json.loads(spark_driver.run("count", "local[2]", log.directory, "splitSize=50000"))
    assert local == expected()
    on_cluster = spark_driver.run("count", cluster.url, log.directory, "splitSize=50000", *settings_of(cluster))
    assert json.loads(on_cluster) == local


def test_a_killed_executor_changes_nothing(cluster: SparkCluster, log: WrittenLog, workdir: Path) -> None:
    driver = spark_driver.start(
        "count", cluster.url, log.directory, "splitSize=30000", f"marks={workdir}", *settings_of(cluster)
    )
    counted = kill_an_executor(cluster, driver, lambda: len([*workdir.iterdir()]) > 20)
    assert json.loads(counted) == expected()


# --- the jobs ------------------------------------------------------------------------------------------------


QUEUES = 6
LONG_COUNT = 150_000


@pytest.fixture(scope="module")
def store(base_directory: Path) -> Path:
    """A broker's, whose log takes the executors some seconds."""
    root = base_directory / "cluster-store"
    long = [message(number, queue_offset=number // QUEUES) for number in range(LONG_COUNT)]
    write_log(root / "commitlog", 1 << 22, long)
    return root


def run_verb(*arguments: object) -> None:
    spark_driver.finish(start_verb(*arguments))


def test_a_rebuild_whose_executor_is_killed(cluster: SparkCluster, store: Path, workdir: Path) -> None:
    run_verb("rebuild", "--store-root", store, "--output", workdir / "local", "--master", "local[2]")
    arguments = ("--store-root", store, "--output", workdir / "cluster", "--master", cluster.url)
    job = start_verb("rebuild", *arguments)
    kill_an_executor(cluster, job, lambda: any(path.is_file() for path in workdir.glob("cluster.building-*/**/*")))
    for part in ("consumequeue", "index"):
        expected = sorted(read_files(workdir / "local" / part).items())
        found = sorted(read_files(workdir / "cluster" / part).items())
        if part == "index":  # named by the wall clock
            assert [data for _, data in found] == [data for _, data in expected]
        else:
            assert found == expected
        assert found
    assert sum(len(data) for _, data in read_files(workdir / "cluster/consumequeue").items()) >= 20 * LONG_COUNT


def test_an_export_whose_executor_is_killed(cluster: SparkCluster, store: Path, workdir: Path) -> None:
    output = workdir / "out"
    job = start_verb("export", store / "commitlog", output, "--range-size", "2m", "--master", cluster.url)
    kill_an_executor(cluster, job, lambda: any(output.rglob("*.parquet")))
    columns = [pq.ParquetFile(path).read(["body"]).column(0) for path in output.rglob("*.parquet")]
    assert sorted(body for column in columns for body in column.to_pylist()) == [
        b"message %08d" % number for number in range(LONG_COUNT)
    ]
