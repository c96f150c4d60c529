"""Rebuilds consume queues and index of a log: by our job, and by a broker that starts without them."""

import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from commitlogfs.bench.pipeline.errors import WrongResultError
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.jobs.rebuild import rebuild

_MOMENT = r"^(\d\d):(\d\d):(\d\d\.\d{3}) "
_LOAD_BEGINS = re.compile(_MOMENT + r".*last shutdown normally", re.MULTILINE)
_LOAD_ENDS = re.compile(_MOMENT + r".*message store recover end", re.MULTILINE)
_DAY_S = 86_400
_BROKER_DEADLINE_S = 900.0
_HEAP = ("-Xms1g", "-Xmx2g")


@dataclass(frozen=True, slots=True)
class RebuildFigures:
    """Messages per second, one value per round, and the largest memory of one of our workers."""

    ours: list[float]
    broker: list[float]
    worker_mib: float


def measure_rebuilding(
    spark: SparkSession, log: SyntheticLog, distribution: Distribution, work: Path, rounds: int
) -> RebuildFigures:
    """Measure both from the first byte of the log that is read to the last file, without their start and without
    earlier writes of other processes. The files are compared."""
    settings = BrokerSettings(segment_size=log.segment_size)
    ours, broker, largest = [], [], 0.0
    rebuild(spark, str(log.directory), work / "warm", settings=settings)
    shutil.rmtree(work / "warm")
    for number in range(rounds):
        output, root = work / f"ours-{number}", work / f"broker-{number}"
        os.sync()
        with _Watch() as watch:
            started = time.perf_counter()
            result = rebuild(spark, str(log.directory), output, settings=settings)
            ours.append(log.messages / (time.perf_counter() - started))
        largest = max(largest, watch.largest_mib)
        if (result.records, result.queue_entries) != (log.messages, log.messages):
            raise WrongResultError(f"the rebuild read {result.records:,} of {log.messages:,} messages")
        os.sync()
        broker.append(log.messages / _let_broker_rebuild(log, distribution, root))
        _compare(output, root)
        shutil.rmtree(output)
        shutil.rmtree(root)
    return RebuildFigures(ours, broker, largest)


def _let_broker_rebuild(log: SyntheticLog, distribution: Distribution, root: Path) -> float:
    """Seconds according to the broker's log."""
    store = root / "store"
    (store / "commitlog").mkdir(parents=True)
    *finished, last = sorted(log.directory.iterdir())
    for segment in finished:
        (store / "commitlog" / segment.name).hardlink_to(segment)
    # The broker appends messages of its own to the log.
    shutil.copyfile(last, store / "commitlog" / last.name)
    with NameServer(distribution, root) as names:
        broker = Broker(
            distribution,
            names,
            root,
            {
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
                "mappedFileSizeCommitLog": log.segment_size,
                "commitLogRecoverMaxNum": 1_000_000,
                "maxHashSlotNum": 5_000_000,
                "maxIndexNum": 20_000_000,
                "fileReservedTime": 1_000_000,
                "deleteWhen": "23",
            },
            jvm=_HEAP,
            log_level="INFO",
        )
        try:
            broker.spawn()
            broker.wait_ready(_BROKER_DEADLINE_S)
            broker.stop()
        finally:
            broker.kill()
        text = broker.log_text()
    begun, ended = _LOAD_BEGINS.search(text), _LOAD_ENDS.search(text)
    if begun is None or ended is None:
        raise WrongResultError("the broker's log does not show when its recovery began and ended")
    return (_seconds(ended) - _seconds(begun)) % _DAY_S


def _seconds(moment: re.Match[str]) -> float:
    return int(moment[1]) * 3600 + int(moment[2]) * 60 + float(moment[3])


def _compare(ours: Path, root: Path) -> None:
    """Every file of the consume queues, byte by byte, for the topics of the log."""
    theirs = root / "store"
    files = [path for path in (ours / "consumequeue").rglob("*") if path.is_file()]
    if not files:
        raise WrongResultError("the rebuild made no consume queues")
    for path in files:
        other = theirs / path.relative_to(ours)
        if not other.exists() or path.read_bytes() != other.read_bytes():
            raise WrongResultError(f"{path.relative_to(ours)} differs from the broker's")


class _Watch:
    """Samples the memory of Spark's Python workers."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.largest_mib = 0.0

    def _sample(self) -> None:
        while not self._over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    if any("pyspark" in word for word in process.cmdline()) and "python" in process.name():
                        self.largest_mib = max(self.largest_mib, process.memory_info().rss / (1 << 20))
                except psutil.Error:
                    continue

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
