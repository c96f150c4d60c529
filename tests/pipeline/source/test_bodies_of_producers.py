"""Bodies as the table shows them are those that a real consumer gets, byte for byte, whatever a producer does."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import COMPRESSIONS, Broker, NameServer

pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

BATCH = 7
SCHEMA = "topic string, queueId int, queueOffset long, keys string, text string, body binary, sysFlag int"


@pytest.mark.parametrize(
    "count", [600, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["few", "many"]
)
def test_text_and_body_are_what_a_consumer_gets(spark: SparkSession, tmp_path: Path, count: int) -> None:
    newest = rocketmq.fetch("5.5.0")
    each = count // 6 // BATCH * BATCH
    with (
        NameServer(newest, tmp_path) as names,
        Broker(newest, names, tmp_path, {"mappedFileSizeCommitLog": 16 << 20}) as broker,
    ):
        rocketmq.make_inner_topic(newest, names.address, broker.address, "Texts")
        for compression in COMPRESSIONS:
            rocketmq.send_texts(newest, names.address, "Texts", count=each, compression=compression, timeout_s=1800)
        for topic in ("Texts", "TextsInner"):
            rocketmq.send_texts(newest, names.address, topic, count=each, batch=BATCH, timeout_s=1800)
        consumed = {
            (topic, *digest)
            for topic in ("Texts", "TextsInner")
            for digest in rocketmq.read_digests(newest, names.address, topic, tmp_path / topic, timeout_s=1800)
        }
        broker.stop()
    assert len(consumed) == 6 * each
    log = spark.read.format("commitlog").schema(SCHEMA).option("topic", "Texts,TextsInner")
    found = log.option("decompress", "true").option("unfold", "true").load(str(broker.commitlog_dirs[0]))
    assert {row[0] for row in found.selectExpr("sysFlag & 1 | (sysFlag & 1792) AS kind").distinct().collect()} == {
        *(0, 1 | 1 << 8, 1 | 2 << 8),
        1 | 3 << 8,
    }
    for column in ("body", "encode(text, 'utf-8')"):
        rows = found.selectExpr("topic", "queueId", "queueOffset", "keys", f"sha2({column}, 256)").collect()
        assert len(rows) == 6 * each
        assert {tuple(row) for row in rows} == consumed
