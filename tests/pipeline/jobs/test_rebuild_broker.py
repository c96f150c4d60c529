"""A rebuild writes the same bytes as RocketMQ 5.5.0, and its broker continues with the rebuilt files."""

import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from support.rebuilding import read_files, rebuild_in_process

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer
from commitlogfs.pipeline.broker.queue_entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, ENTRY_BYTES
from commitlogfs.pipeline.broker.settings import BrokerSettings, load_broker_settings
from commitlogfs.pipeline.jobs.apply import apply_rebuilt
from commitlogfs.pipeline.jobs.audit import audit
from commitlogfs.pipeline.jobs.rebuild import rebuild

pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

ROUNDS = 12
OLDER = [version for version in rocketmq.STORE_VERSIONS if version not in ("5.5.0", "4.9.7")]
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


LIGHT = rocketmq.MULTI_DISPATCH
FEW_BATCHES = {"mapperFileSizeBatchConsumeQueue": 5 * 46}
SHORT_QUEUES = {"mappedFileSizeConsumeQueue": 20 * 1000, "mapperFileSizeBatchConsumeQueue": 46 * 1000}
CONFIGURATIONS: list[rocketmq.Settings] = [
    # Not too small: index files that are made in the same millisecond get the same name, and are one.
    {"mappedFileSizeConsumeQueue": 320, **FEW_BATCHES, "maxHashSlotNum": 50, "maxIndexNum": 500},
    {**LIGHT, "mappedFileSizeConsumeQueue": 333, **FEW_BATCHES, "maxHashSlotNum": 7, "maxIndexNum": 2000},
    {**SHORT_QUEUES, "enableMultiDispatch": True, "maxHashSlotNum": 9, "maxIndexNum": 2000},
    {
        **SHORT_QUEUES,
        "enabledAppendPropCRC": True,
        "messageDelayLevel": "7s 1m 2d",
        "maxIndexNum": 1000,
        "maxHashSlotNum": 99,
    },
]
TIDY: rocketmq.Settings = {**LIGHT, **SHORT_QUEUES, "maxHashSlotNum": 99, "maxIndexNum": 5000, "tidy": True}


@dataclass
class Written:
    """A store that RocketMQ's own code has written, and what a rebuild makes of its log."""

    root: Path
    settings: BrokerSettings
    found: dict[str, bytes]
    figures: Counter[str]

    @property
    def queues(self) -> dict[str, bytes]:
        return without_index(self.found)

    @property
    def live(self) -> dict[str, bytes]:
        return derived_files(self.root)


def without_index(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.startswith("index/")}


def store_run(root: Path, settings: rocketmq.Settings, count: int = 2000, seed: int = 1) -> rocketmq.StoreRun:
    return rocketmq.StoreRun(root, {"mappedFileSizeCommitLog": 1 << 17, **settings}, count, seed)


def rebuilt(run: rocketmq.StoreRun, version: str | None = None) -> Written:
    conf = run.root.with_suffix(".conf")
    conf.write_text("".join(f"{key}={value}\n" for key, value in run.settings.items() if key != "tidy"))
    settings = load_broker_settings(conf, run.root, broker_version=version)
    building = run.root.with_suffix(".building")
    return Written(run.root, settings, *rebuild_in_process(run.root / "commitlog", building, settings, 1 << 15))


@pytest.fixture(scope="module")
def written(newest: Distribution, tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """By configuration, and at the end a tidy store that was closed and opened again: all by one JVM."""
    directory = tmp_path_factory.mktemp("stores")
    runs = [store_run(directory / str(number), given) for number, given in enumerate(CONFIGURATIONS)]
    clean_up = [store_run(directory / "tidy", TIDY, seed=seed) for seed in (1, 2)]
    rocketmq.write_stores(newest, [*runs, *clean_up])
    return [rebuilt(run) for run in [*runs, clean_up[0]]]


@pytest.mark.parametrize("number", range(len(CONFIGURATIONS)))
def test_what_only_the_store_itself_writes(written: list[Written], number: int) -> None:
    """Transactions, light queues, batches of all sizes, V2 records, hosts of both kinds, unpaired surrogates."""
    store = written[number]
    assert store.found == store.live
    # A prepared message takes an offset in each queue of its light subscribers, and a place in none.
    assert (store.figures["misplaced"] > 0) == bool(CONFIGURATIONS[number].get("enableLmq"))
    assert {name.split("/")[1] for name in store.found if name.startswith("batch")} == {
        "BatchSingles",
        "BatchMixed",
        "BatchOdd",
    }
    assert sum(name.startswith("index/") for name in store.found) > 1


def test_a_store_opened_twice_rebuilds_to_the_same_files(written: list[Written]) -> None:
    store = written[-1]
    assert store.found == store.live
    assert (store.figures["misplaced"], store.figures["left_out"]) == (0, 0)


def test_an_audit_of_batch_and_light_queues(written: list[Written], spark: SparkSession) -> None:
    """Silent about what RocketMQ has written; any one changed byte of any entry is found."""
    store = written[-1]
    names = [name for name in store.queues if re.match("batchconsumequeue/BatchSingles|consumequeue/%LMQ%a/", name)]
    assert len(names) == 4

    def audited() -> dict[str, int]:
        log = str(store.root / "commitlog")
        report = audit(spark, log, store_root=store.root, settings=store.settings)
        return {str(kind): count for kind, count in report.findings.counts.items()}

    assert audited() == {}
    for name in names:
        width = BATCH_ENTRY_BYTES if name.startswith("batch") else ENTRY_BYTES
        with (store.root / name).open("r+b") as file:
            for place in range(3, 3 + width):
                # Each byte of an entry once, in an entry of its own.
                at = place * width + place - 3
                file.seek(at)
                old = file.read(1)
                file.seek(at)
                file.write(bytes([old[0] ^ 1]))
    findings = audited()
    widths = 3 * BATCH_ENTRY_BYTES + ENTRY_BYTES
    assert findings["queue-entry-wrong"] + findings["queue-entry-missing"] == widths


@pytest.mark.parametrize("version", ["4.9.7", *(pytest.param(v, marks=pytest.mark.soak) for v in OLDER)])
def test_older_stores_rebuild_by_their_own_rules(version: str, tmp_path: Path) -> None:
    """Light queues of retried, delayed and system messages differ by version; RocketMQ 4 is recognised."""
    distribution = rocketmq.fetch(version)
    given = CONFIGURATIONS[1]
    runs = [store_run(tmp_path / "once", given), *(store_run(tmp_path / "tidy", TIDY, seed=n) for n in (1, 2))]
    rocketmq.write_stores(distribution, runs)
    for run in runs[:2]:
        store = rebuilt(run, None if version.startswith("4.") else version)
        assert store.found == store.live
        assert len(store.settings.warnings) == version.startswith("4.")


@pytest.mark.soak
@pytest.mark.parametrize("version", rocketmq.STORE_VERSIONS)
def test_queues_of_a_killed_store_are_rebuilt(version: str, tmp_path: Path) -> None:
    """Its index depends on what the broker had flushed when it was killed, which is not in the log."""
    distribution = rocketmq.fetch(version)
    runs = [store_run(tmp_path / "store", CONFIGURATIONS[1], seed=seed) for seed in (1, 2)]
    rocketmq.write_stores(distribution, runs[:1], halt=True)
    killed = rebuilt(runs[0], version)
    assert killed.queues == without_index(killed.live)
    rocketmq.write_stores(distribution, runs[1:])
    shutil.rmtree(tmp_path / "store.building")
    again = rebuilt(runs[0], version)
    assert again.queues == without_index(again.live)


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
    directory = tmp_path_factory.mktemp("mixed")
    with NameServer(newest, directory) as names:
        broker = Broker(newest, names, directory, SMALL)
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
    assert {
        "%LMQ%one",
        "%LMQ%late",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "MixedPlain",
        "SixPlain",
    } <= topics
    assert any(topic.startswith("%RETRY%") for topic in topics)
    inner = [data for name, data in stopped.live.items() if name.startswith("batchconsumequeue/MixedInner/")]
    entries = [entry for data in inner for entry in np.frombuffer(data, BATCH_ENTRY) if entry["size"]]
    assert Counter(int(entry["count"]) for entry in entries) == {2: ROUNDS, 1: 2 * ROUNDS}
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
def test_older_brokers_files_byte_for_byte(version: str, spark: SparkSession, tmp_path: Path) -> None:
    distribution = rocketmq.fetch(version)
    with NameServer(distribution, tmp_path) as names, Broker(distribution, names, tmp_path, SMALL) as broker:
        rocketmq.send_mixed(distribution, names.address, rounds=ROUNDS)
        time.sleep(2)
        broker.stop()
    by_files = load_broker_settings(broker.home / "broker.conf")
    settings = load_broker_settings(broker.home / "broker.conf", broker_version=version)
    assert (by_files.rules.multi_dispatch == settings.rules.multi_dispatch) == version.startswith("4.")
    rebuild(spark, str(broker.commitlog_dirs[0]), tmp_path / "out", settings=settings)
    assert derived_files(tmp_path / "out") == derived_files(broker.store_root)
