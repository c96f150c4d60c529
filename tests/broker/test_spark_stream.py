"""A Spark stream beside a live broker: exactly the sent messages, once each, whatever happens to its driver."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support import spark_driver
from support.brokers import make_broker, send_all
from support.pools import MIB, PoolMount
from support.waiting import eventually

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer

pytestmark = [pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(3600)]

SEGMENT = MIB


@contextmanager
def streaming(log: Path, directory: Path, *options: str) -> Iterator[Any]:
    """A driver that streams into directory/table; killed at the end, with its JVM, at once."""
    driver = spark_driver.start("stream", log, directory, *options)
    try:
        yield driver
    finally:
        spark_driver.kill(driver)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The rows of the files that the sink has committed: those in its own log count, not those on the disk."""
    committed = set()
    for entry in sorted((directory / "table" / "_spark_metadata").glob("[0-9]*")):
        for line in entry.read_text().splitlines()[1:]:
            committed.add(line.split('"path":"')[1].split('"')[0].rpartition("/")[2])
    rows: list[dict[str, Any]] = []
    for name in committed:
        rows += pq.read_table(directory / "table" / name).to_pylist()
    return rows


def committed_batches(directory: Path) -> int:
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))


def require_each_once(rows: list[dict[str, Any]], topic: str, sent: int) -> None:
    """By the broker's own numbering: each queue's offsets from 0 on without a gap, each message once."""
    mine = [row for row in rows if row["topic"] == topic]
    places = Counter(row["commitLogOffset"] for row in rows)
    assert [place for place, times in places.items() if times > 1] == []
    queues: dict[int, list[int]] = {}
    for row in mine:
        queues.setdefault(row["queueId"], []).append(row["queueOffset"])
    assert len(mine) == sent
    for offsets in queues.values():
        assert sorted(offsets) == list(range(len(offsets)))


@pytest.fixture
def broker(workdir: Path, names: NameServer, newest: Distribution) -> Iterator[Broker]:
    """On a plain directory of its own, as every broker without the filesystem."""
    name = f"broker-{workdir.name.replace('.', '-')}"
    with Broker(newest, names, workdir, {"mappedFileSizeCommitLog": SEGMENT}, name=name) as running:
        yield running


def kill_drivers_while_sending(
    log: Path, workdir: Path, newest: Distribution, names: NameServer, topic: str, *, kills: int = 3
) -> int:
    """A producer sends all the while; the driver is killed after each few batches. How many were sent."""
    acked = workdir / "acked"
    with rocketmq.start_sender(newest, names.address, topic, rate=400, size_bytes=700, acked=acked) as sender:
        for _ in range(kills):
            before = committed_batches(workdir)
            with streaming(log, workdir, "maxOffsetsPerTrigger=900") as driver:

                def gone_on(before: int = before, driver: Any = driver) -> bool:
                    spark_driver.require_running(driver)
                    return committed_batches(workdir) > before + 1

                eventually(gone_on, spark_driver.BUSY_S)
                time.sleep(0.3)  # into the middle of some batch
        sent = sender.stop()
    assert (sent.failed, sent.abandoned) == (0, 0), sent.last_error
    return sent.sent


def test_each_message_once_although_the_driver_is_killed(
    broker: Broker, workdir: Path, newest: Distribution, names: NameServer
) -> None:
    (log,) = broker.commitlog_dirs
    sent = kill_drivers_while_sending(log, workdir, newest, names, "Killed")
    assert len(list(log.iterdir())) > 3
    spark_driver.run("drain", log, workdir)
    require_each_once(rows_of(workdir), "Killed", sent)


def test_each_message_once_on_a_mount(
    workdir: Path, make_pool: Callable[..., PoolMount], newest: Distribution, names: NameServer
) -> None:
    pool = make_pool(3, segment_size=SEGMENT)
    pool.start()
    with make_broker(pool, names, newest) as running:
        sent = kill_drivers_while_sending(pool.mountpoint, workdir, newest, names, "Mounted", kills=1)
        spark_driver.run("drain", pool.mountpoint, workdir)
        require_each_once(rows_of(workdir), "Mounted", sent)
        assert running.is_running


def test_segments_deleted_in_between(
    broker: Broker, workdir: Path, newest: Distribution, names: NameServer
) -> None:
    """Under the live broker, as a forced deletion does it: an error, or what is left, and nothing twice."""
    (log,) = broker.commitlog_dirs
    topic = "Deleted"
    send_all(newest, names, topic, 2000, size_bytes=700)
    spark_driver.run("drain", log, workdir)
    require_each_once(rows_of(workdir), topic, 2000)
    read_to = max(row["commitLogOffset"] for row in rows_of(workdir))

    send_all(newest, names, topic, 6000, size_bytes=700, start=2000)
    segments = sorted(log.iterdir())
    doomed = [path for path in segments if int(path.name) < read_to + 2 * SEGMENT]
    assert len(doomed) < len(segments) - 1
    for path in doomed:
        path.unlink()
    begin = int(doomed[-1].name) + SEGMENT

    refused = spark_driver.start("drain", log, workdir)
    _, err = refused.communicate(timeout=spark_driver.BUSY_S)
    assert refused.returncode != 0
    assert "DataLossError: log offsets" in err
    assert f"not in the log (the log begins at {begin}" in err

    spark_driver.run("drain", log, workdir, "failOnDataLoss=false")
    rows = rows_of(workdir)
    assert max(Counter(row["commitLogOffset"] for row in rows).values()) == 1
    mine = [row for row in rows if row["topic"] == topic]
    after = [row for row in mine if row["commitLogOffset"] > read_to]
    assert min(row["commitLogOffset"] for row in after) == begin
    assert len(mine) - len(after) == 2000
    for queue in {row["queueId"] for row in mine}:
        offsets = sorted(row["queueOffset"] for row in after if row["queueId"] == queue)
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), "from there on without a gap"
    last = {row["queueId"]: row["queueOffset"] for row in sorted(mine, key=lambda row: int(row["queueOffset"]))}
    assert sum(last.values()) + len(last) == 8000
