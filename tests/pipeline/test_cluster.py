"""A real standalone cluster, a master and two workers: what it answers is what local mode answers."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import spark_driver
from support.cluster import SparkCluster
from support.messages import messages
from support.waiting import eventually
from support.written_logs import WrittenLog, write_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT = 20_000
SEGMENT = 1 << 18


@pytest.fixture(scope="module")
def log(base_folder: Path) -> WrittenLog:
    return write_log(base_folder / "cluster-log", SEGMENT, messages(COUNT))


@pytest.fixture(scope="module")
def cluster(base_folder: Path) -> Iterator[SparkCluster]:
    with SparkCluster(base_folder / "cluster") as running:
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
    local = json.loads(spark_driver.run("count", "local[2]", log.folder, "splitSize=50000"))
    assert local == expected()
    on_cluster = spark_driver.run("count", cluster.url, log.folder, "splitSize=50000", *settings_of(cluster))
    assert json.loads(on_cluster) == local


def test_a_killed_executor_changes_nothing(cluster: SparkCluster, log: WrittenLog, workdir: Path) -> None:
    driver = spark_driver.start(
        "count", cluster.url, log.folder, "splitSize=30000", f"marks={workdir}", *settings_of(cluster)
    )
    try:

        def at_work() -> bool:
            spark_driver.demand_running(driver)
            return len(list(workdir.iterdir())) > 20

        eventually(at_work, spark_driver.BUSY_S)
        victim = cluster.executors()[0]
        os.kill(victim, signal.SIGKILL)
        assert json.loads(spark_driver.finish(driver)) == expected()
    finally:
        spark_driver.kill(driver)
    assert victim not in cluster.executors()
