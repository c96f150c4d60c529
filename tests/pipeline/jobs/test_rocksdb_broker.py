"""The store of a broker that has its transactions and its index in RocksDB."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.settled_logs import audit, rebuild

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, NameServer
from commitlogfs.pipeline.broker.settings import load_broker_settings
from commitlogfs.pipeline.broker.system_topics import HALF_TOPICS_SINCE

pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

ROUNDS = 3
"""One transaction that is committed, one that is rolled back, one that stays open."""
SETTINGS = {
    "mappedFileSizeCommitLog": 16 << 20,
    "transRocksDBEnable": True,
    "transWriteOriginTransHalfEnable": False,
    "transactionCheckInterval": 600_000,
    "indexRocksDBEnable": True,
    "indexFileWriteEnable": False,
    **rocketmq.MULTI_DISPATCH,
}


def test_its_open_transactions_are_no_rows_and_its_index_is_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    newest = rocketmq.fetch("5.5.0")
    with NameServer(newest, tmp_path) as names, Broker(newest, names, tmp_path, SETTINGS) as broker:
        rocketmq.send_mixed(newest, names.address, rounds=ROUNDS)
        broker.stop()
    (log,) = map(str, broker.commitlog_dirs)

    def topics(half: bool) -> dict[str, int]:
        rows = spark.read.format("commitlog").schema("topic string").option("includeHalfMessages", half).load(log)
        return dict(rows.groupBy("topic").count().collect())

    halves = {topic.decode() for topic in HALF_TOPICS_SINCE if b"ROCKSDB" in topic}
    with_halves, without = topics(half=True), topics(half=False)
    assert halves <= set(with_halves)
    assert without == {topic: count for topic, count in with_halves.items() if topic not in halves}
    assert without["MixedTransaction"] == 1

    settings = load_broker_settings(broker.home / "broker.conf", broker.store_root)
    report = audit(spark, log, store_root=broker.store_root, settings=settings)
    assert report.findings.all_shown() == []
    assert report.compared == ("log", "queues")
    assert any("the index was not compared: indexFileWriteEnable = false" in note for note in report.notes)
    rebuild(spark, log, tmp_path / "out", settings=settings)
    assert not (tmp_path / "out/index").exists()
