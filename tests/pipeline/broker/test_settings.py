"""Settings that a rebuild reads from broker.conf and topics.json, as the broker reads them."""

import json
from pathlib import Path

import pytest

from commitlogfs.pipeline.broker.dispatch import DEFAULT_DELAYS_MS, DispatchRules, MultiDispatch
from commitlogfs.pipeline.broker.settings import BrokerSettings, BrokerSettingsError, load_broker_settings


def conf(directory: Path, text: str) -> Path:
    path = directory / "broker.conf"
    path.write_text(text)
    return path


def store(directory: Path, topics: dict[str, object], name: str = "topics.json") -> Path:
    (directory / "store/config").mkdir(parents=True, exist_ok=True)
    (directory / "store/config" / name).write_text(json.dumps({"topicConfigTable": topics}))
    return directory / "store"


def test_without_anything_it_is_the_brokers_default() -> None:
    assert load_broker_settings() == BrokerSettings()
    assert load_broker_settings().rules == DispatchRules(delays_ms=DEFAULT_DELAYS_MS)


def test_without_a_topics_json_nobody_knows_which_topics_there_are(tmp_path: Path) -> None:
    assert load_broker_settings(store_root=tmp_path).topics is None
    assert load_broker_settings(store_root=store(tmp_path, {})).topics == frozenset()


def test_the_values_of_a_broker_conf(tmp_path: Path) -> None:
    root = store(tmp_path, {"Plain": {}, "Batch": {"attributes": {"queue.type": "BatchCQ"}}})
    path = conf(
        tmp_path,
        f"storePathRootDir={root}\nstorePathCommitLog=/data1/commitlog,/data2/commitlog\n"
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=333\nmapperFileSizeBatchConsumeQueue=92\n"
        "maxHashSlotNum=7\nmaxIndexNum=70\nmessageDelayLevel=5s 2m 1h 1d\nmessageIndexEnable=false\n"
        "enableMultiDispatch=true\nenableLmq=true\n",
    )
    assert load_broker_settings(path) == BrokerSettings(
        DispatchRules(
            delays_ms=(5_000, 120_000, 3_600_000, 86_400_000),
            batch_topics=frozenset({"Batch"}),
            multi_dispatch=MultiDispatch(),
            lmq=True,
        ),
        queue_file_size=333,
        batch_queue_file_size=92,
        index_slots=7,
        index_capacity=70,
        index_refused="messageIndexEnable = false: this broker makes no index",
        store_root=root,
        topics=frozenset({"Plain", "Batch"}),
        commitlog="/data1/commitlog,/data2/commitlog",
        segment_size=65536,
    )


def test_an_int_that_the_broker_ignores_is_its_default_and_told(tmp_path: Path) -> None:
    settings = load_broker_settings(conf(tmp_path, "maxIndexNum=70 \nmaxHashSlotNums=3\n"))
    assert (settings.index_capacity, settings.index_slots) == (20_000_000, 5_000_000)
    assert any("maxIndexNum = '70 ' is ignored by the broker" in warning for warning in settings.warnings)
    assert any("did you mean maxHashSlotNum" in warning for warning in settings.warnings)


@pytest.mark.parametrize(
    ("version", "tags"), [("5.5.0", True), ("5.4.0", True), ("5.3.3", False), ("4.9.7", False), ("10.0.0", True)]
)
def test_tags_are_in_the_index_from_5_4_on(version: str, tags: bool) -> None:
    assert load_broker_settings(broker_version=version).rules.index_tags == tags


@pytest.mark.parametrize(
    ("version", "exempt"),
    [
        ("4.9.2", None),
        ("4.9.4", ""),
        ("4.9", ""),
        ("5.0.0", ""),
        ("5.1.1", "%RETRY%g"),
        ("5.1.2", "%RETRY%g rmq_sys_wheel_timer SCHEDULE_TOPIC_XXXX"),
        ("5.1", "%RETRY%g rmq_sys_wheel_timer SCHEDULE_TOPIC_XXXX"),
        ("5.2.0", "%RETRY%g rmq_sys_wheel_timer rmq_sys_x SCHEDULE_TOPIC_XXXX"),
        ("5.5.0", "%RETRY%g rmq_sys_wheel_timer rmq_sys_x SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_topics_without_multi_dispatch_by_version(tmp_path: Path, version: str, exempt: str | None) -> None:
    path = conf(tmp_path, "enableMultiDispatch=true\n")
    rules = load_broker_settings(path, broker_version=version).rules.multi_dispatch
    topics = ("T", "%RETRY%g", "rmq_sys_wheel_timer", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX")
    found = None if rules is None else " ".join(topic for topic in topics if not rules.spreads(topic))
    assert found == exempt
    assert rules is None or rules.skips_slashes == (version not in ("4.9.4", "4.9", "5.0.0", "5.1.1"))


def test_a_topics_json_of_rocketmq_4_stands_for_its_version(tmp_path: Path) -> None:
    root = store(tmp_path, {"T": {"attributes": {"queue.type": "BatchCQ"}}})
    file, path = root / "config/topics.json", conf(tmp_path, "enableMultiDispatch=true\n")
    table = json.loads(file.read_text())
    of_4 = load_broker_settings(path, root, broker_version="4.9.8").rules
    assert (of_4.index_tags, of_4.inner_batches, of_4.batch_topics) == (False, False, frozenset())
    newest = load_broker_settings(path, root)
    assert (newest.rules.batch_topics, newest.warnings) == (frozenset({"T"}), ())
    file.write_text(json.dumps(table | {"dataVersion": {"counter": 1, "timestamp": 2}}))
    recognised = load_broker_settings(path, root)
    assert recognised.rules == of_4
    assert "was written by RocketMQ 4" in recognised.warnings[0]
    assert load_broker_settings(path, root, broker_version="5.5.0") == newest
    file.write_text(json.dumps(table | {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 2}}))
    assert load_broker_settings(path, root) == newest


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("enableConsumeQueueExt=true", "live subscriptions"),
        ("storeType=defaultRocksDB", "in a RocksDB database"),
        ("enableDLegerCommitLog=true", "a log in its own format"),
    ],
)
def test_queues_that_cannot_be_rebuilt(tmp_path: Path, line: str, why: str) -> None:
    assert why in load_broker_settings(conf(tmp_path, line)).queues_refused


@pytest.mark.parametrize(
    ("lines", "version", "why"),
    [
        ("indexFileWriteEnable=false\nindexRocksDBEnable=true", "5.5.0", "in a RocksDB database"),
        ("indexFileWriteEnable=false\nindexRocksDBEnable=true", "5.4", "in a RocksDB database"),
        ("indexFileWriteEnable=false\nindexRocksDBEnable=true", "5.3.3", ""),
        ("indexFileWriteEnable=false", "5.5.0", "makes no index"),
        ("indexRocksDBEnable=true", "5.5.0", ""),
        ("messageIndexEnable=false\nindexRocksDBEnable=true", "5.5.0", "makes no index"),
        ("messageIndexEnable=false", "4.9.7", "makes no index"),
    ],
)
def test_whether_a_broker_has_index_files(tmp_path: Path, lines: str, version: str, why: str) -> None:
    refused = load_broker_settings(conf(tmp_path, lines), broker_version=version).index_refused
    assert why in refused
    assert bool(refused) == bool(why)


def test_light_queues_in_rocksdb_are_no_files(tmp_path: Path) -> None:
    text = "enableMultiDispatch=true\nrocksdbCQDoubleWriteEnable=true\ncombineCQUseRocksdbForLmq=true\n"
    assert load_broker_settings(conf(tmp_path, text)).rules.multi_dispatch is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("messageDelayLevel=1s soon", "'soon' is not a time"),
        ("messageDelayLevel=1s  2s", "'' is not a time"),
        ("maxIndexNum=1", "holds no key"),
        ("maxHashSlotNum=0", "maxHashSlotNum = 0"),
        ("storePathRootDir=\\u12", "line 1"),
    ],
)
def test_what_no_broker_works_with_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(BrokerSettingsError, match=r"^[^\n]+$") as caught:
        load_broker_settings(conf(tmp_path, line))
    assert said in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BrokerSettingsError, match=r"absent\.conf: cannot be read"):
        load_broker_settings(tmp_path / "absent.conf")
    with pytest.raises(BrokerSettingsError, match="the existing topics are unknown"):
        load_broker_settings(store_root=tmp_path, live_topics_only=True)
    with pytest.raises(BrokerSettingsError, match="broker version 'new'"):
        load_broker_settings(broker_version="new")


def test_the_copy_of_topics_json_counts_where_the_file_is_broken(tmp_path: Path) -> None:
    root = store(tmp_path, {"Live": {}}, "topics.json.bak")
    (root / "config/topics.json").write_text('{"topicConfigTable": ')
    settings = load_broker_settings(store_root=root, live_topics_only=True)
    assert settings.rules.topics == frozenset({"Live"})
    assert len(settings.warnings) == 1
    assert settings.commitlog == str(root / "commitlog")


@pytest.mark.parametrize("database", ["rdb", "topics", "metadata"])
def test_topics_in_rocksdb_make_topics_json_uncertain(tmp_path: Path, database: str) -> None:
    """They are there since 5.1.4, so a file of RocketMQ 4 does not show the version any more."""
    root = store(tmp_path, {"Old": {}, "Batch": {"attributes": {"queue.type": "BatchCQ"}}})
    file = root / "config/topics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dataVersion": {"counter": 1}}))
    (root / "config" / database).mkdir()
    settings = load_broker_settings(store_root=root)
    (warning,) = settings.warnings
    assert warning.startswith(f"{root}/config/{database}: the broker has its topics in this RocksDB database, so")
    assert settings.topics is None, "which topics exist is not known"
    assert settings.rules.batch_topics == {"Batch"}
    assert settings.rules.index_tags
    with pytest.raises(BrokerSettingsError, match=rf"config/{database}: .*existing topics are unknown; leave out"):
        load_broker_settings(store_root=root, live_topics_only=True)


@pytest.mark.parametrize("line", ["configManagerVersion=v2", "storeType=defaultRocksDB"])
def test_a_broker_conf_may_say_that_topics_are_in_rocksdb(tmp_path: Path, line: str) -> None:
    root = store(tmp_path, {"Old": {}})
    settings = load_broker_settings(conf(tmp_path, line), root)
    assert settings.topics is None
    assert any("the broker has its topics in this RocksDB database" in warning for warning in settings.warnings)
    assert load_broker_settings(conf(tmp_path, "configManagerVersion=v1"), root).topics == {"Old"}


def test_without_a_topics_json_the_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "config/rdb").mkdir(parents=True)
    (warning,) = load_broker_settings(store_root=tmp_path).warnings
    assert "config/rdb: the broker has its topics in this RocksDB database" in warning


def test_where_deleted_topics_ended(tmp_path: Path) -> None:
    assert load_broker_settings(topic_starts={"Again": 777}).rules.topic_starts == {"Again": 777}
