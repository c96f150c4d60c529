"""A broker and its producer beside work of the daemon, relative to the same broker without it.

Broker, producer and pool live as long as the measurement. Batches with and without the work alternate, so both see
the same state of the machine. The broker itself has written the segments in question: it has them open and mapped.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlogfs.bench.broker_bench import JVM, TOPIC, WARM_UP_TOPIC, killed_at_the_end
from commitlogfs.bench.datapath_rounds import Collected, Series, Tell, in_turn
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.rocketmq import BatchSender, Broker, Distribution, NameServer, SendResult

FLUSHES: Final[Mapping[str, str]] = {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}
"""The broker's flushDiskType, and its name in a workload."""
MADE_AHEAD: Final = 4
"""Segments that a broker fills until it uses those that were made after a change of the disks."""
_STORED_WITH_BODY: Final = 256
"""Upper bound of the bytes of a message in the log beside its body."""
_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Work:
    """Names of one comparison."""

    name: str
    still: str
    """The target without the work."""
    working: str

    @property
    def control(self) -> str:
        """`still` again: the distance of its ratio from 1 is the noise of a ratio."""
        return f"{self.still}-2"

    def rate(self, flush: str) -> str:
        return f"{self.name}-send-{FLUSHES[flush]}"

    def p99(self, flush: str) -> str:
        return f"{self.name}-p99-{FLUSHES[flush]}"


SendBeside = Callable[[BatchSender, int], tuple[SendResult, dict[str, float]]]
"""Sends so many messages beside the work, and returns figures of the work, too."""


@dataclass(frozen=True, slots=True)
class Site:
    """A broker that writes its log through a mount, and its producer."""

    names: NameServer
    distribution: Distribution
    broker: Broker
    settings: Settings

    @contextmanager
    def started(self, flush: str) -> Iterator[None]:
        """It is killed afterwards, which is faster than a clean stop and loses nothing in the page cache."""
        self.broker.config["flushDiskType"] = flush
        self.broker.start()
        yield
        self.broker.kill()

    def write_cold(self, after: Callable[[], None] = lambda: None) -> None:
        """Write the segments that will be worked on. `after` is called while the broker still runs."""
        with self.started("ASYNC_FLUSH"), self._sender(WARM_UP_TOPIC) as sender:
            sender.send(self.settings.cold_bytes // self.settings.body_bytes, _TIMEOUT_S)
            after()

    def compare(self, work: Work, send_beside: SendBeside, tell: Tell, found: Collected) -> None:
        """Adds the workloads of `work`. Raises RocketmqError, and what `send_beside` raises."""
        for flush in FLUSHES:
            with self.started(flush):
                self._compare(work, flush, send_beside, tell, found)

    def _compare(self, work: Work, flush: str, send_beside: SendBeside, tell: Tell, found: Collected) -> None:
        rate = Series(work.rate(flush), "messages/s", f"send, {flush}", baseline=work.still)
        about = f"send, {flush}, 99th percentile of the latency"
        p99 = Series(work.p99(flush), "ms", about, baseline=work.still)
        found.series += [rate, p99]
        count = self.settings.messages if flush == "ASYNC_FLUSH" else self.settings.sync_messages
        with self._sender(TOPIC) as sender:
            sender.send(warm_up_messages(self.settings), _TIMEOUT_S)
            for turn in range(self.settings.rounds):
                for target in in_turn((work.still, work.control, work.working), turn):
                    tell(f"{rate.workload}: round {turn + 1} of {self.settings.rounds}, {target}")
                    if target == work.working:
                        sent, detail = send_beside(sender, count)
                    else:
                        sent, detail = send(sender, count), {}
                    rate.add(target, sent.messages_per_s, {**_latencies(sent), **detail})
                    p99.add(target, sent.latency_p99_ms)

    def _sender(self, topic: str) -> BatchSender:
        body_bytes, threads = self.settings.body_bytes, self.settings.threads
        return BatchSender(self.distribution, self.names.address, topic, size_bytes=body_bytes, threads=threads)


@contextmanager
def broker_on(mountpoint: Path, work: Path, settings: Settings, distribution: Distribution) -> Iterator[Site]:
    """The broker is not started, and has ended afterwards."""
    config: dict[str, str | int | float | bool] = {
        "storePathCommitLog": str(mountpoint),
        "mappedFileSizeCommitLog": settings.broker_segment_bytes,
    }
    with NameServer(distribution, work) as names:
        broker = Broker(distribution, names, work, config, jvm=JVM)
        with killed_at_the_end(broker):
            yield Site(names, distribution, broker, settings)


def send(sender: BatchSender, count: int) -> SendResult:
    return sender.send(count, _TIMEOUT_S)


def warm_up_messages(settings: Settings) -> int:
    """Number of messages that a broker takes before each measurement."""
    return max(settings.warm_up_messages, MADE_AHEAD * settings.broker_segment_bytes // settings.body_bytes)


def cold_log_bytes(settings: Settings) -> int:
    """Bytes of the log that `Site.write_cold` makes, and of the segments made ahead."""
    return (
        _logged(settings, settings.cold_bytes // settings.body_bytes) + MADE_AHEAD * settings.broker_segment_bytes
    )


def compared_log_bytes(settings: Settings) -> int:
    """Bytes of the log that `Site.compare` makes."""
    each = settings.messages + settings.sync_messages
    return _logged(settings, 2 * warm_up_messages(settings) + 3 * settings.rounds * each)


def _logged(settings: Settings, messages: int) -> int:
    return messages * (settings.body_bytes + _STORED_WITH_BODY)


def _latencies(sent: SendResult) -> dict[str, float]:
    return {"p50_ms": sent.latency_p50_ms, "p99_ms": sent.latency_p99_ms, "max_ms": sent.latency_max_ms}
