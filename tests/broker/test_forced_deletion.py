"""Small disks and a producer that writes several times their size: the broker never notices that they are full."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.brokers import IDLE_S, Stand, complaints, line_count, send_all, wait_until
from support.filling import fill_to, used_percent
from support.pools import MIB

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, ConsumeResult, Distribution

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.soak]

SEGMENT = 4 * MIB
BODY = 32 * 1024
AT_ONCE = {"interval": '"1s"', "force_after": '"0s"', "grace": '"5s"'}
QUICK = {"interval": '"1s"', "force_after": '"3s"', "grace": '"5s"'}
ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))
BY_FILESYSTEM = {**AT_ONCE, "mode": '"filesystem"', "reserved": '"72h"', "delete_when": f'"{ALL_HOURS}"'}
CLEANS_AFTER_S = 62.0
"""A broker cleans for the first time a minute after its start (DefaultMessageStore#addScheduleTask); until then it
also keeps what was removed under it."""
FAST, SLOW = 320, 160
"""Messages per second: 10 and 5 MiB. From `force` to `full` the two disks have room for 22 MiB, and a broker lets
go of what was removed under it within one of its cycles."""
EAGER = {"cleanResourceInterval": 1000, "flushDiskType": "ASYNC_FLUSH", "diskMaxUsedSpaceRatio": 75}
"""A broker that cleans each second: the disks are so small that ten seconds would fill one."""


@dataclass
class Watch:
    """Samples the fill levels of all disks continuously."""

    directories: list[Path]
    seen: list[tuple[float, ...]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._stop.wait(0.05):
            self.seen.append(tuple(used_percent(directory) for directory in self.directories))

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self.run)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def consuming(distribution: Distribution, stand: Stand, topic: str) -> Iterator[list[ConsumeResult]]:
    """A consumer that keeps up; its result is there at the end, when nothing has come for some seconds."""
    results: list[ConsumeResult] = []

    def consume() -> None:
        results.append(
            rocketmq.consume(
                distribution, stand.names.address, topic, expect=0, idle_timeout_s=10, check=False, timeout_s=600
            )
        )

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield results
    finally:
        thread.join()


def write_much(
    stand: Stand, distribution: Distribution, workdir: Path, *, times: float, rate: float, config: dict[str, Any]
) -> Watch:
    """A producer until `times` the total size was written, with a consumer that keeps up. Afterwards no send has
    failed, what the consumer has seen is all of it, and the log is whole; the broker is stopped cleanly."""
    sizes = [size_of(directory) for directory in stand.directories()]
    # At once what fills half of the smallest disk: a consumer that begins then catches up before anything goes.
    first, count = min(sizes) // BODY, round(times * sum(sizes) / BODY)
    names, topic = stand.names.address, "Much"
    acked = workdir / "acked"
    with stand.broker(distribution, {**EAGER, **config}) as broker:
        cleans_from = time.monotonic() + CLEANS_AFTER_S
        send_all(distribution, stand.names, topic, first, size_bytes=BODY)
        time.sleep(max(0.0, cleans_from - time.monotonic()))
        with (
            Watch(stand.directories()) as watch,
            consuming(distribution, stand, topic) as consumed,
            rocketmq.start_sender(
                distribution,
                names,
                topic,
                count=count - first,
                start=first,
                size_bytes=BODY,
                rate=rate,
                acked=acked,
            ) as sender,
        ):
            wait_until(
                lambda: line_count(acked) >= count - first or sender.returncode is not None, "everything sent", 400
            )
            totals = sender.stop()
        assert (totals.failed, totals.abandoned) == (0, 0), totals.last_error
        assert complaints(broker) == []
        (seen,) = consumed
        assert (seen.distinct, seen.duplicates, seen.corrupted, seen.skipped) == (count, 0, 0, 0)
        check_log(stand)
        broker.stop()
    return watch


def size_of(directory: Path) -> int:
    """Size of its filesystem in bytes."""
    figures = os.statvfs(directory)
    return figures.f_blocks * figures.f_frsize


def check_log(stand: Stand) -> list[int]:
    """The listed segments, without a hole, on the disks as in the mount."""
    names = sorted(os.listdir(stand.pool.mountpoint))
    found = [int(name) // SEGMENT for name in names]
    assert found == list(range(found[0], found[-1] + 1))
    assert (
        sorted(name for directory in stand.directories() for name in os.listdir(directory) if name.isdigit())
        == names
    )
    return found


def check_restart(stand: Stand, distribution: Distribution) -> None:
    """Clean, with the log's beginning where it is, and a late consumer begins there."""
    with stand.broker(distribution, EAGER) as broker:
        first = int(sorted(os.listdir(stand.pool.mountpoint))[0])
        wait_until(lambda: min_offset(broker) == first, "the log's beginning")
        late = rocketmq.consume(
            distribution, stand.names.address, "Much", expect=0, idle_timeout_s=IDLE_S / 3, check=False
        )
        assert late.distinct > 0
        assert (late.corrupted, late.skipped, late.pull_errors) == (0, 0, 0)
        assert late.first is not None
        assert first <= late.first.log_offset < first + SEGMENT
        assert complaints(broker) == []
        broker.stop()


def min_offset(broker: Broker) -> int:
    """-1 from a broker that has only just started."""
    with contextlib.suppress(OSError):
        return int(broker.runtime_info()["commitLogMinOffset"])
    return -1


@pytest.fixture
def make(new_stand: Callable[..., Stand]) -> Callable[..., Stand]:
    def make(retention: dict[str, str], settings: dict[str, str] | None = None) -> Stand:
        stand = new_stand(
            ("ext4", "xfs"),
            segment_size=SEGMENT,
            sizes=(128 * MIB, 320 * MIB),
            retention=retention,
            settings=settings or {},
        )
        stand.pool.init()
        stand.pool.start()
        return stand

    return make


@pytest.mark.parametrize(
    ("retention", "settings", "config", "by"),
    [
        pytest.param(QUICK, {}, {}, "broker", id="cooperative"),
        pytest.param(BY_FILESYSTEM, {}, {}, "filesystem", id="filesystem"),
        pytest.param(QUICK, {"trigger": '"any"'}, {}, "broker", id="cooperative-any"),
        pytest.param(BY_FILESYSTEM, {"trigger": '"any"'}, {}, "filesystem", id="filesystem-any"),
        pytest.param(
            AT_ONCE,
            {},
            {"cleanFileForciblyEnable": "false"},
            "filesystem",
            id="broker-that-does-not",
        ),
    ],
)
def test_several_times_the_capacity(
    make: Callable[..., Stand],
    newest: Distribution,
    workdir: Path,
    retention: dict[str, str],
    settings: dict[str, str],
    config: dict[str, Any],
    by: str,
) -> None:
    stand = make(retention, settings)
    rate = FAST if by == "broker" else SLOW
    watch = write_much(stand, newest, workdir, times=2.2, rate=rate, config=config)
    for number, directory in enumerate(stand.directories()):
        # No disk takes a segment from `full` on; the broker has one made ahead.
        highest = max(seen[number] for seen in watch.seen)
        assert highest <= 90 + 100 * SEGMENT / size_of(directory) < 100
    removed = stand.pool.status()["retention"]["removed"]
    if by == "filesystem":
        assert sum(removed.values()) > 10
    else:
        assert removals_asked_for(stand) > 10
    check_restart(stand, newest)
    stand.pool.stop()


def removals_asked_for(stand: Stand) -> int:
    """By the broker."""
    lines = stand.pool.log_since_start().splitlines()
    return sum(" event=removed " in line and " reason=unlink" in line for line in lines)


def test_one_disk_is_full_of_other_data(make: Callable[..., Stand], newest: Distribution, workdir: Path) -> None:
    """The full disk takes no segment, an alert reports it, and the log on the other disk is not emptied because of
    it."""
    stand = make(QUICK, {"trigger": '"all"'})
    fill_to(stand.disks[0].path, 93)
    watch = write_much(stand, newest, workdir, times=1.5, rate=FAST, config={})
    assert max(seen[1] for seen in watch.seen) < 95
    assert used_percent(stand.directories()[1]) > 70
    alerts = stand.pool.status()["retention"]["alerts"]
    assert str(stand.directories()[0]) in {alert["disk"] for alert in alerts}
    check_restart(stand, newest)
    stand.pool.stop()


def test_all_disks_are_full_of_other_data(make: Callable[..., Stand], newest: Distribution, workdir: Path) -> None:
    """Deleting would not help, so nothing is deleted: messages are refused, until there is room again."""
    stand = make(AT_ONCE)
    names, topic, first = stand.names, "Much", 300
    for disk in stand.disks:
        fill_to(disk.path, 60)
    acked = workdir / "acked"
    with stand.broker(newest, EAGER) as broker:
        send_all(newest, names, topic, first, size_bytes=BODY)
        for disk in stand.disks:
            fill_to(disk.path, 97)
        wait_until(lambda: "all-full" in alert_codes(stand), "an alert")
        with rocketmq.start_sender(
            newest, names.address, topic, start=first, size_bytes=BODY, rate=SLOW, acked=acked
        ) as sender:
            wait_until(lambda: "op=create errno=ENOSPC" in stand.pool.log_since_start(), "a create refused")
            time.sleep(3)  # until the active segment is written full, and messages are refused, too
            assert check_log(stand)[0] == 0
            assert sum(stand.pool.status()["retention"]["removed"].values()) == 0
            for disk in stand.disks:
                fill_to(disk.path, 50)
            goal = line_count(acked) + 500
            wait_until(lambda: line_count(acked) >= goal, "messages taken again")
            totals = sender.stop()
        assert totals.failed > 0
        assert totals.abandoned == 0
        assert check_log(stand)[0] == 0
        seen = rocketmq.consume(newest, names.address, topic, expect=first + totals.sent, idle_timeout_s=IDLE_S)
        assert (seen.distinct, seen.corrupted, seen.skipped) == (first + totals.sent, 0, 0)
        assert not any("InternalError" in line or "SIGBUS" in line for line in complaints(broker))
        broker.stop()
    stand.pool.stop()


def alert_codes(stand: Stand) -> set[str]:
    return {alert["code"] for alert in stand.pool.status()["retention"]["alerts"]}


def test_what_goes_while_the_broker_is_stopped(make: Callable[..., Stand], newest: Distribution) -> None:
    """Only as many segments as needed are removed, and their space is free at once; the broker starts cleanly with
    a log that begins later."""
    stand = make(QUICK)
    for disk in stand.disks:
        fill_to(disk.path, 40)
    with stand.broker(newest, EAGER) as broker:
        send_all(newest, stand.names, "Much", 2000, size_bytes=BODY)
        broker.stop()
    before = check_log(stand)
    for disk in stand.disks:
        fill_to(disk.path, 87)
    wait_until(lambda: sum(stand.pool.status()["retention"]["removed"].values()), "removals")
    wait_until(lambda: stand.pool.status()["retention"]["force_in_seconds"] is None, "an end")
    removed = stand.pool.status()["retention"]["removed"]["force"]
    assert check_log(stand) == before[removed:]
    assert 0 < removed < len(before) / 2
    resume, one = 83, 100 * SEGMENT / size_of(stand.directories()[0])
    assert resume - one < min(map(used_percent, stand.directories())) < resume
    check_restart(stand, newest)
    stand.pool.stop()


def test_a_hung_broker_is_no_reason_to_wait(
    make: Callable[..., Stand], newest: Distribution, workdir: Path
) -> None:
    """Stopped by a signal, with every segment mapped: what is needed goes, not more, and it notices nothing."""
    stand = make({**QUICK, "punch": "false"})
    names, topic = stand.names.address, "Hung"
    with stand.broker(newest, EAGER) as broker:
        index = 0
        while min(map(used_percent, stand.directories())) < 80:
            rocketmq.send(newest, names, topic, count=1000, start=index, size_bytes=BODY, retry=True)
            index += 1000
        before = check_log(stand)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for disk in stand.disks:
                fill_to(disk.path, 87)
            wait_until(lambda: sum(stand.pool.status()["retention"]["removed"].values()), "removals")
            wait_until(lambda: stand.pool.status()["retention"]["force_in_seconds"] is None, "an end")
            removed = stand.pool.status()["retention"]["removed"]["force"]
            cycles = stand.pool.status()["retention"]["cycles"]
            wait_until(lambda: stand.pool.status()["retention"]["cycles"] > cycles + 3, "some more cycles")
            assert stand.pool.status()["retention"]["removed"]["force"] == removed
            assert check_log(stand) == before[removed:]
            assert min(map(used_percent, stand.directories())) > 86  # held: nothing is free yet
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        wait_until(lambda: not stand.pool.status()["retention"]["held_open"]["segments"], "the broker to let go")
        for disk in stand.disks:  # or the broker deletes what the consumer is about to read
            fill_to(disk.path, 0)
        sent = rocketmq.send(newest, names, topic, count=200, start=index, size_bytes=BODY, retry=True)
        assert sent.abandoned == 0
        seen = rocketmq.consume(newest, names, topic, expect=0, idle_timeout_s=10, check=False)
        assert seen.highest == index + 199
        assert (seen.corrupted, seen.skipped) == (0, 0)
        assert complaints(broker) == []
        broker.stop()
    stand.pool.stop()
