"""A store that a live RocketMQ broker has written is healthy: an audit has nothing to say about it."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, NameServer
from commitlogfs.pipeline.broker.settings import load_broker_settings
from commitlogfs.pipeline.jobs.audit import audit

pytestmark = [
    pytest.mark.broker,
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

COUNT = 1_000_000
MIXED_ROUNDS = 20
SETTINGS = {
    "mappedFileSizeCommitLog": 64 << 20,
    "enabledAppendPropCRC": True,
    "transactionCheckInterval": 600_000,
    **rocketmq.MULTI_DISPATCH,
}


def test_a_million_messages_are_found_healthy(spark: SparkSession, tmp_path: Path) -> None:
    """With tags and keys, and some of every kind: delayed, transactional, in batches, light, compressed."""
    newest = rocketmq.fetch("5.5.0")
    with NameServer(newest, tmp_path) as names, Broker(newest, names, tmp_path, SETTINGS) as broker:
        for topic in range(4):
            sent = rocketmq.send(
                newest,
                names.address,
                f"Topic{topic}",
                count=COUNT // 4,
                size_bytes=200,
                keys=True,
                tags="one,two,three",
                timeout_s=1800,
            )
            assert sent.sent == COUNT // 4
        rocketmq.send_mixed(newest, names.address, rounds=MIXED_ROUNDS)
        broker.stop()
    settings = load_broker_settings(broker.home / "broker.conf", broker.store_root)
    log = str(broker.commitlog_dirs[0])
    report = audit(spark, log, store_root=broker.store_root, settings=settings, split_size=16 << 20)
    assert report.findings.all_shown() == []
    assert report.is_whole
    assert report.compared == ("log", "queues", "index")
    assert report.found.records > COUNT
    assert report.queue_entries >= report.found.records
    assert report.queue_entries_behind == 0
