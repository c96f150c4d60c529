"""Byte for byte what RocketMQ 5.5.0 has written itself; and its broker goes on with what we have rebuilt."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.rebuilding import read_files, rebuild_in_process

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer
from commitlogfs.pipeline.broker_settings import BrokerSettings, load_broker_settings
from commitlogfs.pipeline.jobs.apply import apply_rebuilt
from commitlogfs.pipeline.jobs.audit import audit
from commitlogfs.pipeline.jobs.rebuild import rebuild

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

ROUNDS = 12
SMALL = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 16 * 20,
    "mapperFileSizeBatchConsumeQueue": 4 * 46,
    "maxHashSlotNum": 50,
    "maxIndexNum": 100,
    "enabledAppendPropCRC": True,
    "transactionCheckInterval": 600_000,
    **rocketmq.MULTI_DISPATCH,
}
"""Several files of each kind."""


def derived_files(root: Path) -> dict[str, bytes]:
    """Consume queues by name, index files by number: their names are the wall clock's."""
    found = read_files(root / "consumequeue", "consumequeue/")
    if (root / "batchconsumequeue").exists():
        found |= read_files(root / "batchconsumequeue", "batchconsumequeue/")
    index = sorted(read_files(root / "index").items())
    return found | {f"index/{number}": data for number, (_, data) in enumerate(index)}


@pytest.fixture(scope="module")
def newest() -> Distribution:
    return rocketmq.fetch("5.5.0")


# --- RocketMQ's store without a broker ---------------------------------------------------------------------


CONFIGURATIONS: list[dict[str, str | int | bool]] = [
    # Not too small: index files that are made in the same millisecond get the same name, and are one.
    {"mappedFileSizeConsumeQueue": 320, "maxHashSlotNum": 50, "maxIndexNum": 500},
    {"mappedFileSizeConsumeQueue": 333, "maxHashSlotNum": 7, "maxIndexNum": 2000, **rocketmq.MULTI_DISPATCH},
    {"enabledAppendPropCRC": True, "messageDelayLevel": "7s 1m 2d", "maxIndexNum": 1000, "maxHashSlotNum": 99},
]


@pytest.mark.parametrize("settings", CONFIGURATIONS)
def test_what_only_the_store_itself_writes(
    newest: Distribution, tmp_path: Path, settings: dict[str, str | int | bool]
) -> None:
    """Every transaction type, topics of V2 records, hosts of both kinds, unpaired surrogates."""
    given = {"mappedFileSizeCommitLog": 1 << 17, **settings}
    rocketmq.write_store(newest, tmp_path / "store", given, count=3000)
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    loaded = load_broker_settings(conf, tmp_path / "store")
    found, figures = rebuild_in_process(tmp_path / "store/commitlog", tmp_path / "building", loaded, 1 << 15)
    assert found == derived_files(tmp_path / "store")
    # A prepared message takes an offset in each queue of its light subscribers, and a place in none.
    assert (figures["misplaced"] > 0) == ("enableMultiDispatch" in settings)
    assert sum(name.startswith("index/") for name in found) > 2


# --- a real broker ---------------------------------------------------------------------------------------


@dataclass
class Stopped:
    """A broker that has stored messages of every kind, over IPv4 and then over IPv6, and was stopped cleanly."""

    names: NameServer
    broker: Broker
    visible: dict[str, int]
    live: dict[str, bytes]

    @property
    def settings(self) -> BrokerSettings:
        return load_broker_settings(self.broker.home / "broker.conf")

    @property
    def root(self) -> Path:
        return self.broker.store_root

    @property
    def log(self) -> str:
        return str(self.broker.commitlog_dirs[0])


@pytest.fixture(scope="module")
def stopped(newest: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    folder = tmp_path_factory.mktemp("mixed")
    with NameServer(newest, folder) as names:
        broker = Broker(newest, names, folder, SMALL)
        with broker:
            rocketmq.make_inner_topic(newest, names.address, broker.address, "Mixed")
            visible = rocketmq.send_mixed(newest, names.address, rounds=ROUNDS, inner=True).visible
        addresses = {key: broker.config[key] for key in ("brokerIP1", "brokerIP2", "bindAddress")}
        broker.config.update(dict.fromkeys(addresses, "::1"))
        with broker:
            visible |= rocketmq.send_mixed(newest, names.address, rounds=ROUNDS, prefix="Six").visible
            time.sleep(2)  # what is delayed by a second is stored again
        broker.config.update(addresses)
        assert not (broker.store_root / "abort").exists()
        yield Stopped(names, broker, visible, derived_files(broker.store_root))


def test_the_live_brokers_files_byte_for_byte(stopped: Stopped, spark: SparkSession, tmp_path: Path) -> None:
    result = rebuild(spark, stopped.log, tmp_path / "out", settings=stopped.settings, split_size=1 << 14)
    assert derived_files(tmp_path / "out") == stopped.live
    topics = {name.split("/")[1] for name in stopped.live if name.startswith("consumequeue/")}
    assert {"%LMQ%one", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "MixedPlain", "SixPlain"} <= topics
    assert any(topic.startswith("%RETRY%") for topic in topics)
    assert any(name.startswith("batchconsumequeue/MixedInner/") for name in stopped.live)
    assert (result.misplaced, result.left_out) == (0, 0)
    assert sum(name.startswith("index/") for name in stopped.live) > 3


def test_an_audit_has_nothing_to_say_about_it(stopped: Stopped, spark: SparkSession) -> None:
    report = audit(spark, stopped.log, store_root=stopped.root, settings=stopped.settings, split_size=1 << 14)
    assert report.findings.all_shown() == []
    assert report.compared == ("log", "queues", "index")


def test_a_broker_starts_on_what_was_rebuilt(
    stopped: Stopped, newest: Distribution, spark: SparkSession, tmp_path: Path
) -> None:
    for part in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(stopped.root / part)
    output = stopped.root.parent / "rebuilt"
    rebuild(spark, stopped.log, output, settings=stopped.settings)
    result = apply_rebuilt(output, stopped.root)
    assert (len(result.installed), result.kept, result.warnings) == (3, (), ())
    with stopped.broker as broker:
        address = stopped.names.address
        for topic, count in stopped.visible.items():
            seen = rocketmq.consume(newest, address, topic, expect=count)
            assert (seen.distinct, seen.corrupted, seen.skipped) == (count, 0, 0), topic
        for prefix in ("Mixed", "Six"):
            found = rocketmq.query_by_key(newest, address, f"{prefix}Batch", f"batch-{ROUNDS - 1}")
            assert len(found) == 3, "each message of a batch has this key"
        broker.kill()


@pytest.mark.soak
@pytest.mark.parametrize("version", ["5.1.4", "4.9.7"])
def test_older_brokers_do_not_index_tags(version: str, spark: SparkSession, tmp_path: Path) -> None:
    distribution = rocketmq.fetch(version)
    with NameServer(distribution, tmp_path) as names, Broker(distribution, names, tmp_path, SMALL) as broker:
        rocketmq.send_mixed(distribution, names.address, rounds=ROUNDS)
        time.sleep(2)
        broker.stop()
    settings = load_broker_settings(broker.home / "broker.conf", broker_version=version)
    rebuild(spark, str(broker.commitlog_dirs[0]), tmp_path / "out", settings=settings)
    assert derived_files(tmp_path / "out") == derived_files(broker.store_root)
