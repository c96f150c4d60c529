"""A broker and its producer beside a move at the default rate, relative to the same broker without one.

Broker, producer and pool live as long as the measurement. Batches with and without a move alternate, so both see
the same state of the machine. The broker itself has written the segments that are moved, so it has them open and
mapped.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from commitlogfs.bench.broker_bench import JVM, TOPIC, WARM_UP_TOPIC, killed_at_the_end
from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_rounds import Collected, Series, Tell, in_turn
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.moves.drained_pool import DrainedPool, drained_pool
from commitlogfs.bench.moves.sizes import warm_up_messages
from commitlogfs.bench.rocketmq import BatchSender, Broker, Distribution, NameServer, SendResult
from commitlogfs.bench.targets_disks import BenchDisks

STILL: Final = "no move"
CONTROL: Final = "no move-2"
"""STILL again: the distance of its ratio from 1 is the noise of a ratio."""
MOVING: Final = "moving"
RATE: Final = {"ASYNC_FLUSH": "move-send-async", "SYNC_FLUSH": "move-send-sync"}
"""Workloads by the broker's flushDiskType."""
P99: Final = {"ASYNC_FLUSH": "move-p99-async", "SYNC_FLUSH": "move-p99-sync"}
_TIMEOUT_S: Final = 900.0


def measure_sending(
    work: Path, disks: BenchDisks, settings: Settings, distribution: Distribution, tell: Tell, found: Collected
) -> None:
    """Raises RocketmqError, CommandFailedError, OSError; WrongResultError if all segments were moved too early."""
    with (
        drained_pool(work / "sending", disks.paths, settings.broker_segment_bytes) as pool,
        NameServer(distribution, work) as names,
    ):
        found.about[STILL] = f"a broker on a mount with passthrough {pool.passthrough()}; one disk is cordoned"
        found.about[CONTROL] = "the same again: the noise of this machine"
        found.about[MOVING] = "the same broker and mount while that disk drains at the default rate"
        config: dict[str, str | int | float | bool] = {
            "storePathCommitLog": str(pool.mountpoint),
            "mappedFileSizeCommitLog": settings.broker_segment_bytes,
        }
        broker = Broker(distribution, names, work, config, jvm=JVM)
        with killed_at_the_end(broker):
            pool.fill_source_only()
            with _started(broker, "ASYNC_FLUSH"), _sender(distribution, names, settings, WARM_UP_TOPIC) as sender:
                tell("moves: the broker writes the segments that will be moved")
                sender.send(settings.cold_bytes // settings.body_bytes, _TIMEOUT_S)
                pool.fill_others_only()
            for flush in RATE:
                with _started(broker, flush):
                    _measure(
                        pool, flush, settings, lambda: _sender(distribution, names, settings, TOPIC), tell, found
                    )


def _measure(
    pool: DrainedPool,
    flush: str,
    settings: Settings,
    start_sender: Callable[[], BatchSender],
    tell: Tell,
    found: Collected,
) -> None:
    rate = Series(RATE[flush], "messages/s", f"send, {flush}", baseline=STILL)
    p99 = Series(P99[flush], "ms", f"send, {flush}, 99th percentile of the latency", baseline=STILL)
    found.series += [rate, p99]
    count = settings.messages if flush == "ASYNC_FLUSH" else settings.sync_messages
    with start_sender() as sender:
        sender.send(warm_up_messages(settings), _TIMEOUT_S)
        for turn in range(settings.rounds):
            for target in in_turn((STILL, CONTROL, MOVING), turn):
                tell(f"{rate.workload}: round {turn + 1} of {settings.rounds}, {target}")
                if target == MOVING:
                    sent, detail = _send_beside_move(pool, sender, count)
                else:
                    sent, detail = sender.send(count, _TIMEOUT_S), {}
                rate.add(target, sent.messages_per_s, {**_latencies(sent), **detail})
                p99.add(target, sent.latency_p99_ms)


def _send_beside_move(pool: DrainedPool, sender: BatchSender, count: int) -> tuple[SendResult, dict[str, float]]:
    pool.drain()
    try:
        pool.wait_until(pool.is_moving, "a move begins")
        began_s, read = time.monotonic(), pool.read_bytes()
        sent = sender.send(count, _TIMEOUT_S)
        seconds, read = time.monotonic() - began_s, pool.read_bytes() - read
        left = pool.segments_to_move()
    finally:
        pool.cancel()
    if not left:
        raise WrongResultError(
            "all segments were moved before the last message was sent; give a larger --cold, or fewer --rounds or "
            "--messages"
        )
    if not read:
        raise WrongResultError("nothing was moved while the broker took messages; give more --messages")
    return sent, {"move_read_mb_per_s": round(read / seconds / 1e6, 2)}


def _latencies(sent: SendResult) -> dict[str, float]:
    return {"p50_ms": sent.latency_p50_ms, "p99_ms": sent.latency_p99_ms, "max_ms": sent.latency_max_ms}


def _sender(distribution: Distribution, names: NameServer, settings: Settings, topic: str) -> BatchSender:
    return BatchSender(distribution, names.address, topic, size_bytes=settings.body_bytes, threads=settings.threads)


@contextmanager
def _started(broker: Broker, flush: str) -> Iterator[None]:
    """It is killed afterwards, which is faster than a clean stop and loses nothing in the page cache."""
    broker.config["flushDiskType"] = flush
    broker.start()
    yield
    broker.kill()
