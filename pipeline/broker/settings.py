"""Settings of the broker that a rebuild needs, from broker.conf and config/topics.json.

Names and defaults are the broker's (MessageStoreConfig of RocketMQ 5.5.0). These files say what the log does not:
the existing topics, which of them have queues of inner batches, the delays of the levels.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.broker.consume_queue import DEFAULT_BATCH_FILE_SIZE, DEFAULT_FILE_SIZE
from commitlogfs.pipeline.broker.dispatch import SCHEDULE_TOPIC, DispatchRules, MultiDispatch
from commitlogfs.pipeline.broker.index_file import DEFAULT_CAPACITY, DEFAULT_SLOTS
from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.store.broker_conf import BrokerConf, PropertiesError, parse_properties
from commitlogfs.store.broker_store import COMMITLOG, TOPICS_FILE

NEWEST_VERSION = "5.5.0"
_DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NEWEST_OF_4 = "4.9.8"
_ANY_PATCH = 999
_INDEX_TAGS_SINCE = (5, 4, 0)
_INNER_BATCHES_SINCE = (5, 0, 0)
_INDEX_ELSEWHERE_SINCE = (5, 4, 0)
"""Earlier versions ignore indexFileWriteEnable and indexRocksDBEnable."""
_ROCKSDB_STORE = "defaultrocksdb"
"""storeType of a broker with consume queues and topics in RocksDB, in lower case."""
_TOPIC_DATABASES = ("config/rdb", "config/topics", "config/metadata")
"""With configManagerVersion=v2; with the storeType of RocksDB; the same with useSingleRocksDBForAllConfigs."""
_MULTI_DISPATCH_SINCE = (
    ((5, 2, 0), MultiDispatch()),
    ((5, 1, 2), MultiDispatch(("%RETRY%",), frozenset({"rmq_sys_wheel_timer", SCHEDULE_TOPIC}))),
    ((5, 1, 1), MultiDispatch(("%RETRY%",), frozenset(), skips_slashes=False)),
    ((4, 9, 3), MultiDispatch((), frozenset(), skips_slashes=False)),
)
"""Newest first (ConsumeQueue#checkMultiDispatchQueue, MultiDispatchUtils); earlier versions have none."""

_KNOWN_KEYS = (
    "storePathRootDir",
    "storePathCommitLog",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "messageDelayLevel",
    "messageIndexEnable",
    "indexFileWriteEnable",
    "indexRocksDBEnable",
    "enableMultiDispatch",
    "enableLmq",
    "enableConsumeQueueExt",
    "enableDLegerCommitLog",
    "storeType",
    "configManagerVersion",
    "rocksdbCQDoubleWriteEnable",
    "combineCQUseRocksdbForLmq",
)


class Version(NamedTuple):
    """A version of RocketMQ."""

    major: int
    minor: int
    patch: int


class BrokerSettingsError(PipelineError):
    """A broker.conf or topics.json that cannot be used for a rebuild."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Picklable."""

    rules: DispatchRules = field(default_factory=DispatchRules)
    queue_file_size: int = DEFAULT_FILE_SIZE
    batch_queue_file_size: int = DEFAULT_BATCH_FILE_SIZE
    index_slots: int = DEFAULT_SLOTS
    index_capacity: int = DEFAULT_CAPACITY
    index_refused: str = ""
    """Why this broker has no index files, in one line; empty if it has."""
    queues_refused: str = ""
    """Why consume queues cannot be rebuilt for this broker, in one line; empty if they can."""
    store_root: Path | None = None
    topics: frozenset[str] | None = None
    """All existing topics; None if they are unknown."""
    commitlog: str | None = None
    """Location of the log, as in `segments.list_segments`."""
    segment_size: int | None = None
    warnings: tuple[str, ...] = field(default=())


def load_broker_settings(
    broker_conf: Path | None = None,
    store_root: Path | None = None,
    *,
    broker_version: str | None = None,
    live_topics_only: bool = False,
    topic_starts: Mapping[str, int] | None = None,
) -> BrokerSettings:
    """The settings of a broker with this configuration file and store; defaults for settings not given.

    `store_root` overrides the file's storePathRootDir. `broker_version` decides whether tags are in the index,
    whether there are batch queues, and which records enter light queues. Without it, the version is 4.9 if RocketMQ
    4 wrote topics.json, otherwise the newest. `live_topics_only`: topics that are not in topics.json get no queues.
    `topic_starts`: topic -> log offset before which its records belong to a deleted topic with the same name. The
    log contains neither. Raises BrokerSettingsError.
    """
    conf = _read_conf(broker_conf)
    root = store_root or _path(conf, "storePathRootDir")
    database = _topics_database(root, conf)
    topics, is_of_4 = _read_topics(root, conf)
    if database is not None:
        is_of_4 = False  # RocketMQ 4 has no such database
        conf.warn(
            f"{database}: the broker has its topics in this RocksDB database, so config/topics.json may be out of "
            "date; topics that it lacks are assumed to exist, with ordinary queues"
        )
    elif root is not None and topics is None:
        conf.warn(f"{root}: has no config/topics.json; every topic is assumed to have ordinary queues")
    if broker_version is None and is_of_4:
        conf.warn(
            f"{root}/config/topics.json: was written by RocketMQ 4, so queues and index are those of 4.9; use "
            "--broker-version for another version"
        )
    version = _version(broker_version or (_NEWEST_OF_4 if is_of_4 else NEWEST_VERSION))
    live_topics = _live_topics(topics, database, root) if live_topics_only else None
    rules = DispatchRules(
        delays_ms=_delays(conf.raw_text("messageDelayLevel", _DEFAULT_DELAY_LEVELS)),
        index_tags=version >= _INDEX_TAGS_SINCE,
        inner_batches=version >= _INNER_BATCHES_SINCE,
        batch_topics=_batch_topics(topics, version),
        multi_dispatch=_multi_dispatch(conf, version),
        lmq=conf.boolean("enableLmq", False),
        topics=live_topics,
        topic_starts=dict(topic_starts or {}),
    )
    return BrokerSettings(
        rules,
        queue_file_size=_positive(conf, "mappedFileSizeConsumeQueue", DEFAULT_FILE_SIZE),
        batch_queue_file_size=_positive(conf, "mapperFileSizeBatchConsumeQueue", DEFAULT_BATCH_FILE_SIZE),
        index_slots=_positive(conf, "maxHashSlotNum", DEFAULT_SLOTS),
        index_capacity=_capacity(conf),
        index_refused=_index_refusal(conf, version),
        queues_refused=_refusal(conf),
        store_root=root,
        topics=None if topics is None or database is not None else frozenset(topics),
        commitlog=_commitlog(conf, root),
        segment_size=conf.integer("mappedFileSizeCommitLog", 1 << 30),
        warnings=tuple(conf.warnings),
    )


# --- broker.conf -----------------------------------------------------------------------------------------


def _read_conf(path: Path | None) -> BrokerConf:
    if path is None:
        return BrokerConf({})
    try:
        entries = parse_properties(path.read_text("latin-1"))
    except OSError as error:
        raise BrokerSettingsError(
            f"{path}: cannot be read ({error.strerror}); name the broker's broker.conf"
        ) from error
    except PropertiesError as error:
        raise BrokerSettingsError(f"{path}, {error}") from error
    conf = BrokerConf(dict(entries))
    conf.warn_of_other_keys([key for key, _ in entries], _KNOWN_KEYS)
    return conf


def _path(conf: BrokerConf, key: str) -> Path | None:
    text = conf.text(key)
    return None if text is None else Path(text)


def _commitlog(conf: BrokerConf, root: Path | None) -> str | None:
    return conf.text("storePathCommitLog") or (None if root is None else str(root / COMMITLOG))


def _positive(conf: BrokerConf, key: str, default: int) -> int:
    value = conf.integer(key, default)
    if value is None:
        return default
    if value <= 0:
        raise BrokerSettingsError(f"{key} = {value}: a broker makes no files of that size; correct it")
    return value


def _capacity(conf: BrokerConf) -> int:
    capacity = _positive(conf, "maxIndexNum", DEFAULT_CAPACITY)
    if capacity < 2:
        raise BrokerSettingsError("maxIndexNum = 1: an index file of that size holds no key; correct it")
    return capacity


def _multi_dispatch(conf: BrokerConf, version: Version) -> MultiDispatch | None:
    elsewhere = conf.boolean("rocksdbCQDoubleWriteEnable", False) and conf.boolean(
        "combineCQUseRocksdbForLmq", False
    )
    if elsewhere or not conf.boolean("enableMultiDispatch", False):
        return None
    return next((rules for since, rules in _MULTI_DISPATCH_SINCE if version >= since), None)


def _refusal(conf: BrokerConf) -> str:
    if conf.boolean("enableConsumeQueueExt", False):
        return (
            "enableConsumeQueueExt = true: its consume queues point into files made from live subscriptions, which "
            "are not in the log"
        )
    if conf.raw_text("storeType", "default").lower() == _ROCKSDB_STORE:
        return "storeType = defaultRocksDB: its consume queues are in a RocksDB database"
    if conf.boolean("enableDLegerCommitLog", False):
        return "enableDLegerCommitLog = true: DLedger writes a log in its own format, which is not supported"
    return ""


def _index_refusal(conf: BrokerConf, version: Version) -> str:
    if not conf.boolean("messageIndexEnable", True):
        return "messageIndexEnable = false: this broker makes no index"
    if version < _INDEX_ELSEWHERE_SINCE or conf.boolean("indexFileWriteEnable", True):
        return ""
    if conf.boolean("indexRocksDBEnable", False):
        return "indexFileWriteEnable = false: the index of this broker is in a RocksDB database"
    return "indexFileWriteEnable = false: this broker makes no index"


def _delays(text: str) -> tuple[int, ...]:
    """The delays that DefaultMessageStore#parseDelayLevel reads; a broker does not start if it cannot parse the
    text."""
    delays = []
    for word in text.split(" "):
        match = re.fullmatch(r"([+-]?[0-9]{1,15})([smhd])", word)
        if match is None:
            raise BrokerSettingsError(f"messageDelayLevel: {word!r} is not a time; write 10s, 5m, 2h or 1d")
        delays.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(delays)


def _version(text: str) -> Version:
    """The version in `text`; the newest patch release if it names none."""
    match = re.match(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?", text)
    if match is None:
        raise BrokerSettingsError(f"broker version {text!r}: is not a version; write it like {NEWEST_VERSION}")
    return Version(int(match[1]), int(match[2]), int(match[3] or _ANY_PATCH))


# --- topics.json -----------------------------------------------------------------------------------------


def _read_topics(root: Path | None, conf: BrokerConf) -> tuple[dict[str, Any] | None, bool]:
    """Topic -> its settings, or None without the file; and whether RocketMQ 4 wrote it.

    The broker itself falls back to the .bak.
    """
    if root is None:
        return None, False
    for path in root / TOPICS_FILE, root / f"{TOPICS_FILE}.bak":
        try:
            content = json.loads(path.read_text())
            table = content["topicConfigTable"]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BrokerSettingsError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            conf.warn(f"{path}: is not valid ({error}) and is ignored, as the broker does")
            continue
        if isinstance(table, dict):
            written = content.get("dataVersion")
            # RocketMQ 5.0 added the field; every later broker writes it.
            return table, isinstance(written, dict) and "stateVersion" not in written
    return None, False


def _topics_database(root: Path | None, conf: BrokerConf) -> Path | None:
    """The RocksDB database that has the topics instead of topics.json; None if the broker has none."""
    if root is None:
        return None
    found = [path for path in (root / name for name in _TOPIC_DATABASES) if path.is_dir()]
    if conf.text("configManagerVersion") == "v2":
        found.append(root / _TOPIC_DATABASES[0])
    elif conf.raw_text("storeType", "").lower() == _ROCKSDB_STORE:
        found.append(root / _TOPIC_DATABASES[1])
    return found[0] if found else None


def _live_topics(topics: dict[str, Any] | None, database: Path | None, root: Path | None) -> frozenset[str]:
    """The existing topics. Raises BrokerSettingsError if they are unknown."""
    if database is not None:
        raise BrokerSettingsError(
            f"{database}: the broker has its topics in this RocksDB database, not in config/topics.json, so the "
            "existing topics are unknown; leave out live_topics_only"
        )
    if topics is None:
        raise BrokerSettingsError(
            f"{root}: has no config/topics.json, so the existing topics are unknown; name the broker's store root, "
            "or leave out live_topics_only"
        )
    return frozenset(topics)


def _batch_topics(topics: dict[str, Any] | None, version: Version) -> frozenset[str] | None:
    if version < _INNER_BATCHES_SINCE:
        return frozenset()
    return None if topics is None else frozenset(name for name, topic in topics.items() if _is_batch(topic))


def _is_batch(topic: Any) -> bool:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"
