"""The broker workload: an unmodified RocketMQ with its own multi-path mode, and on our mount, on the same disks.

Every run has a fresh store, a fresh name server and a fresh JVM, warmed up by messages to another topic. Sending,
with both kinds of flushing, and consuming alternate between the two in rounds.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.bench import targets
from commitlogfs.bench.datapath_rounds import Collected, Series, Tell, in_turn
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.rocketmq import Broker, ConsumeResult, Distribution, NameServer, SendResult, consume, send
from commitlogfs.bench.served import CommandFailedError
from commitlogfs.bench.targets_disks import BenchDisks, drop_caches

TOPIC, WARM_UP_TOPIC = "Bench", "WarmUp"
JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch")
_TIMEOUT_S = 900.0
_IDLE_TIMEOUT_S = 60.0
"""After this wait for the next message, the message is lost; a busy machine needs less."""

UNIT = "messages/s"
SEND_ASYNC = ("send-async", "send, ASYNC_FLUSH")
SEND_SYNC = ("send-sync", "send, SYNC_FLUSH")
CONSUME = ("consume", "consume from the start, just sent")
CATCH_UP = ("catch-up-cold", "consume from the start after a restart, caches dropped")


@dataclass(frozen=True, slots=True)
class _Store:
    """Location of the log for one run of the broker."""

    target: str
    paths: str
    work: Path


def measure_broker(
    work: Path, disks: BenchDisks, settings: Settings, distribution: Distribution, tell: Tell, found: Collected
) -> None:
    """Run all workloads.

    Raises RocketmqError, also for each message that is not acknowledged or not consumed with its body
    intact, CommandFailedError, OSError.
    """
    names, left_out = _choose_targets(work, disks, settings)
    found.left_out |= left_out
    series = {key: Series(key, UNIT, about) for key, about in (SEND_ASYNC, SEND_SYNC, CONSUME, CATCH_UP)}
    found.series += series.values()
    for turn in range(settings.rounds):
        for name in in_turn(names, turn):
            tell(f"broker: round {turn + 1} of {settings.rounds}, {name}")
            with _fresh_store(name, work / f"broker-{turn}-{name}", disks, settings) as store:
                _asynchronous(store, settings, distribution, series)
            with _fresh_store(name, work / f"broker-sync-{turn}-{name}", disks, settings) as store:
                _synchronous(store, settings, distribution, series)


def _choose_targets(work: Path, disks: BenchDisks, settings: Settings) -> tuple[list[str], dict[str, str]]:
    """The mount with passthrough if it is available, otherwise the plain one."""
    try:
        with _fresh_store(targets.MOUNT, work / "broker-try", disks, settings):
            return [targets.NATIVE, targets.MOUNT], {}
    except CommandFailedError as error:
        return [targets.NATIVE, targets.PLAIN], {targets.MOUNT: str(error)}


def _asynchronous(store: _Store, settings: Settings, distribution: Distribution, series: dict[str, Series]) -> None:
    count = settings.messages
    with NameServer(distribution, store.work) as names:
        broker = _broker(distribution, names, store, settings, "ASYNC_FLUSH")
        with killed_at_the_end(broker):
            broker.start()
            sent = _send(distribution, names, settings, count)
            series[SEND_ASYNC[0]].add(store.target, sent.messages_per_s, _latencies(sent))
            received = _consume(distribution, names, count)
            series[CONSUME[0]].add(store.target, received.messages_per_s)
            broker.kill()  # a clean stop takes up to 19 s; a kill loses nothing in the page cache
            drop_caches()
            broker.start()
            drop_caches()  # of all segments that the recovery has not mapped, all but the last ones
            caught_up = _consume(distribution, names, count)
            series[CATCH_UP[0]].add(store.target, caught_up.messages_per_s)


def _synchronous(store: _Store, settings: Settings, distribution: Distribution, series: dict[str, Series]) -> None:
    with NameServer(distribution, store.work) as names:
        broker = _broker(distribution, names, store, settings, "SYNC_FLUSH")
        with killed_at_the_end(broker):
            broker.start()
            sent = _send(distribution, names, settings, settings.sync_messages)
            series[SEND_SYNC[0]].add(store.target, sent.messages_per_s, _latencies(sent))


def _broker(distribution: Distribution, names: NameServer, store: _Store, settings: Settings, flush: str) -> Broker:
    config: dict[str, str | int | float | bool] = {
        "flushDiskType": flush,
        "storePathCommitLog": store.paths,
        "mappedFileSizeCommitLog": settings.broker_segment_bytes,
    }
    return Broker(distribution, names, store.work, config, jvm=JVM)


def _send(distribution: Distribution, names: NameServer, settings: Settings, count: int) -> SendResult:
    for topic, messages in ((WARM_UP_TOPIC, settings.warm_up_messages), (TOPIC, count)):
        result = send(
            distribution,
            names.address,
            topic,
            count=messages,
            size_bytes=settings.body_bytes,
            threads=settings.threads,
            timeout_s=_TIMEOUT_S,
        )
    return result


def _consume(distribution: Distribution, names: NameServer, count: int) -> ConsumeResult:
    """Consume all messages and compare each body."""
    return consume(
        distribution,
        names.address,
        TOPIC,
        expect=count,
        idle_timeout_s=_IDLE_TIMEOUT_S,
        timeout_s=_TIMEOUT_S,
    )


def _latencies(sent: SendResult) -> dict[str, float]:
    return {"p50_ms": sent.latency_p50_ms, "p99_ms": sent.latency_p99_ms, "max_ms": sent.latency_max_ms}


@contextmanager
def killed_at_the_end(broker: Broker) -> Iterator[None]:
    try:
        yield
    finally:
        broker.kill()


@contextmanager
def _fresh_store(target: str, work: Path, disks: BenchDisks, settings: Settings) -> Iterator[_Store]:
    """Empty directories on the same disks, removed afterwards."""
    directories = [disk / target for disk in disks.paths]
    try:
        if target == targets.NATIVE:
            for directory in (work, *directories):
                directory.mkdir(parents=True)
            yield _Store(target, ",".join(map(str, directories)), work)
        else:
            with targets.served(target, work / "served", disks.paths, settings.broker_segment_bytes) as served:
                yield _Store(target, str(served.directories[0]), work)
    finally:
        for directory in (work, *directories):
            shutil.rmtree(directory, ignore_errors=True)
