"""The broker's own topics, by version: those of RocketMQ's TopicValidator, and those that a broker writes."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support.clocks import SHORT_WAITS

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, NameServer
from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.broker.system_topics import HALF_TOPICS_SINCE, SYSTEM_PREFIX, SYSTEM_TOPICS_SINCE
from commitlogfs.pipeline.log.scanner import Chunk, DamageMode, scan_split
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.selection import RecordFilter

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

OLDER = [version for version in rocketmq.STORE_VERSIONS if version != "5.5.0"]
ROUNDS = 3
"""One transaction that is committed, one that is rolled back, one that stays open."""
PRINT_TOPICS = """
import org.apache.rocketmq.common.topic.TopicValidator;

public class PrintTopics {
    public static void main(String[] arguments) {
        System.out.println(TopicValidator.SYSTEM_TOPIC_PREFIX);
        TopicValidator.getSystemTopicSet().forEach(System.out::println);
    }
}
"""


@pytest.mark.parametrize("version", ["5.5.0", *(pytest.param(older, marks=pytest.mark.full) for older in OLDER)])
def test_the_list_is_that_of_the_version(version: str, tmp_path: Path) -> None:
    program = tmp_path / "PrintTopics.java"
    program.write_text(PRINT_TOPICS)
    command = ["java", "-cp", rocketmq.fetch(version).class_path, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    prefix, *topics = ran.stdout.split()
    number = tuple(map(int, version.split(".")))
    listed = {
        topic.decode() for topic, since in (HALF_TOPICS_SINCE | SYSTEM_TOPICS_SINCE).items() if since <= number
    }
    assert (prefix, set(topics)) == (SYSTEM_PREFIX.decode(), listed)


def selected_topics(log: Path, **options: str) -> Counter[str]:
    """Topic -> its selected messages, of a whole log."""
    listing, found = list_segments(str(log)), Counter[str]()
    wanted = RecordFilter.of(parse_options({"path": str(log), **options}))
    for split in plan_splits(listing, find_end(listing, clock=SHORT_WAITS)):
        for chunk in scan_split(split, DamageMode.FAILFAST):
            assert isinstance(chunk, Chunk)
            fields = record_fields(chunk.data, chunk.positions)
            rows = wanted.select(chunk.data, fields)
            for row in range(len(chunk.positions)) if rows is None else rows.tolist():
                start = fields.topic_start[row]
                found[chunk.data[start : start + fields.topic_length[row]].tobytes().decode()] += 1
    return found


@pytest.mark.full
def test_transactions_of_a_broker_with_rocksdb_are_not_read_twice(tmp_path: Path) -> None:
    newest = rocketmq.fetch("5.5.0")
    settings = {
        "mappedFileSizeCommitLog": 16 << 20,
        "transRocksDBEnable": True,
        "transWriteOriginTransHalfEnable": False,
        "transactionCheckInterval": 600_000,
    }
    with NameServer(newest, tmp_path) as names, Broker(newest, names, tmp_path, settings) as broker:
        rocketmq.send_mixed(newest, names.address, rounds=ROUNDS)
        broker.stop()
        (log,) = broker.commitlog_dirs
    halves = {topic.decode() for topic in HALF_TOPICS_SINCE if b"ROCKSDB" in topic}
    stored = selected_topics(log, includeHalfMessages="true")
    assert {topic: stored[topic] > 0 for topic in halves} == dict.fromkeys(halves, True)
    assert stored["MixedTransaction"] == 1
    selected = selected_topics(log)
    assert selected["MixedTransaction"] == 1
    assert [topic for topic in selected if "HALF" in topic] == []
