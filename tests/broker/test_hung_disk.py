"""A disk hangs again and again under a broker that flushes each message, while others read old segments of all
disks. Beside it a broker with plain multi-path has the same load, and a disk that hangs at the same times."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from support import open_reader, spark_driver
from support.broker_load import Acknowledgements, Creates, busy, copy_cold, hash_cold, read_cold, repeated
from support.brokers import IDLE_S, Stand, line_count, send_all, wait_until
from support.flaky_disks import FlakyDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.open_reader import OpenReader
from support.pools import MIB

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer

pytestmark = [
    pytest.mark.broker,
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.soak,
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available()),
    pytest.mark.timeout(3 * 3600),
]

HANGS = int(os.environ.get("COMMITLOGFS_SOAK_HANGS", "20"))
HANG_S = float(os.environ.get("COMMITLOGFS_SOAK_HANG_S", "60"))
BUSY = int(os.environ.get("COMMITLOGFS_SOAK_BUSY", "4"))
REST_S, CALM_S = 25.0, 60.0
"""Time after each hang, and time without any."""
DISKS, DISK_BYTES, SIZE = 4, 4096 * MIB, 4 * MIB
RATE = 250
"""Messages of 4 KiB per second: a segment in four seconds."""
COLD, OLD = 24, 6
"""Segments that nobody but the readers uses, and those of a topic of old messages."""
BODY = 60_000
OPEN = 6
ORDINARY_GAP_S = 1.0
"""Also a busy machine that has no fault acknowledges something each second."""
CREATE_MORE_MS, READ_MORE_MS, SERVES_WITHIN_S, RIGHT_WITHIN_S = 500.0, 200.0, 0.5, 1.0


@dataclass(frozen=True)
class Party:
    """One of the two brokers."""

    name: str
    log: Sequence[Path]
    """The directories of its log, as its users see them."""
    directories: Sequence[Path]
    """Those on the disks. The first one hangs."""
    bad: FlakyDisk
    broker: Broker
    names: NameServer
    """Its own: each broker of a name server makes a topic that a client asks for."""

    @property
    def topic(self) -> str:
        return f"{self.name}-hot"

    def cold(self) -> list[Path]:
        found = {path.name: path for one in self.log for path in one.iterdir() if path.name.isdigit()}
        return [found[name] for name in sorted(found)[: COLD - OPEN]]

    def is_on_bad(self, segment: Path) -> bool:
        return (self.directories[0] / segment.name).exists()

    def end(self) -> int:
        """Where the log ends now."""
        return int(self.broker.runtime_info()["commitLogMaxOffset"])

    def is_written_on_bad(self, since: int) -> bool:
        """Whether the disk that hangs has a segment that ends after this log offset: a disk of which nobody knows
        yet that it hangs gets segments, too."""
        return any(int(name) + SIZE > since for name in os.listdir(self.directories[0]) if name.isdigit())


@dataclass(frozen=True)
class Load:
    party: Party
    sender: rocketmq.Sender
    acks: Acknowledgements
    reader: OpenReader
    creates: Creates = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "creates", Creates(self.party.broker))


class Slowest(NamedTuple):
    """The slowest of each kind in some time."""

    create_ms: float
    read_ms: float
    gap_s: float


@dataclass(frozen=True)
class Hang:
    """The effects of one hang on a party."""

    is_harmless: bool
    """The broker wrote elsewhere all the time, and had made nothing ahead on the disk."""
    slowest: Slowest
    silence_s: float
    right_s: float
    """Time until a cold segment of the disk could be read, after it answered."""
    serves_s: float
    """Time until the next daemon answered."""


# --- the two ---------------------------------------------------------------------------------------------


@pytest.fixture
def kept(new_stand: Callable[..., Stand]) -> tuple[Stand, KeptMount]:
    stand = new_stand(("ext4",) * DISKS, segment_size=SIZE, disk_bytes=DISK_BYTES, flaky=[0])
    stand.pool.init()
    stand.pool.start("--watchdog", "10")
    wait_until(lambda: "event=daemon_ready " in stand.pool.log_since_start(), "the keeper")
    kept = KeptMount(stand.pool)
    kept.newest_daemon()
    return stand, kept


@pytest.fixture
def parties(
    kept: tuple[Stand, KeptMount], disk_farm: DiskFarm, newest: Distribution, workdir: Path
) -> Iterator[list[Party]]:
    """Ours and the native one, which work."""
    stand, _ = kept
    kinds: list[type[LoopDisk]] = [FlakyDisk, *[LoopDisk] * (DISKS - 1)]
    natives = [disk_farm.add_of(kind, "ext4", DISK_BYTES, f"native{n}") for n, kind in enumerate(kinds)]
    paths = [disk.path / "commitlog" for disk in natives]
    for path in paths:
        path.mkdir()
    settings: dict[str, str | int | float | bool] = {
        "flushDiskType": "SYNC_FLUSH",
        "storePathRootDir": str(workdir / "native-store"),
        "storePathCommitLog": ",".join(map(str, paths)),
        "mappedFileSizeCommitLog": SIZE,
    }
    bad, native_bad = stand.disks[0], natives[0]
    assert isinstance(bad, FlakyDisk)
    assert isinstance(native_bad, FlakyDisk)
    home = workdir / "native-home"
    home.mkdir()
    with ExitStack() as stack:
        ours = stack.enter_context(stand.broker(newest, {"flushDiskType": "SYNC_FLUSH"}, name="ours"))
        names = stack.enter_context(NameServer(newest, home))
        native = stack.enter_context(Broker(newest, names, home, settings, name="native"))
        yield [
            Party("ours", [stand.pool.mountpoint], stand.directories(), bad, ours, stand.names),
            Party("native", paths, paths, native_bad, native, names),
        ]


def prepare(party: Party, distribution: Distribution, old: int) -> None:
    """Gives the log cold segments. `old`: number of topics for consumers of old messages."""
    topics = {f"{party.name}-cold": COLD, **{f"{party.name}-old{number}": OLD for number in range(old)}}
    for topic, segments in topics.items():
        send_all(distribution, party.names, topic, segments * SIZE // BODY, size_bytes=BODY)
    party.broker.stop()
    party.broker.start()  # it maps them anew, and has touched no page of them
    send_all(distribution, party.names, f"{party.name}-first", 100)


@contextmanager
def loaded(party: Party, distribution: Distribution, workdir: Path) -> Iterator[Load]:
    """A producer, a consumer of what is new, and readers of what is old."""
    cold = party.cold()
    others = [path for path in cold if not party.is_on_bad(path)]
    assert len(others) < len(cold)
    acked, target = workdir / f"{party.name}.acked", workdir / f"{party.name}-copy"
    target.mkdir()

    def consume() -> None:
        rocketmq.consume(
            distribution,
            party.names.address,
            party.topic,
            expect=1 << 30,
            idle_timeout_s=2 * HANG_S,
            check=False,
            timeout_s=4 * 3600.0,
        )

    with ExitStack() as stack:
        sender = rocketmq.start_sender(
            distribution, party.names.address, party.topic, size_bytes=4096, threads=8, rate=RATE, acked=acked
        )
        stack.enter_context(sender)
        wait_until(lambda: line_count(acked) >= 200, "sending")
        acks = Acknowledgements(acked)
        stack.callback(acks.close)
        reader = stack.enter_context(open_reader.reading(others[:OPEN]))
        for work in (lambda: hash_cold(cold), lambda: copy_cold(cold, target), consume):
            stack.enter_context(repeated(work))
        stack.enter_context(sender)  # it ends first, or its consumer would not end
        yield Load(party, sender, acks, reader)


@contextmanager
def reading_old(distribution: Distribution, names: NameServer, topic: str) -> Iterator[None]:
    """A consumer of old messages, which begins when a disk has hung for some seconds."""
    consumer = threading.Timer(
        5.0,
        lambda: rocketmq.consume(
            distribution, names.address, topic, expect=1, group="old", idle_timeout_s=2 * HANG_S, check=False
        ),
    )
    consumer.start()
    yield
    consumer.join()


# --- hangs -----------------------------------------------------------------------------------------------


def slowest_of(load: Load, begin_s: float) -> Slowest:
    gap_s = load.acks.longest_gap_s(begin_s, time.monotonic())
    return Slowest(load.creates.slowest_ms(), load.reader.slowest_ms(), gap_s)


def calm(loads: Sequence[Load]) -> dict[str, Slowest]:
    """The slowest of the same load without a hang."""
    began_s = time.monotonic()
    for load in loads:
        slowest_of(load, began_s)
    time.sleep(CALM_S)
    return {load.party.name: slowest_of(load, began_s) for load in loads}


def hang(loads: Sequence[Load], kills: KeptMount | None) -> list[Hang]:
    """The bad disk of each hangs for HANG_S, and in the middle of that the daemon of `kills` dies."""
    ends = [load.party.end() for load in loads]
    cold = [next(path for path in load.party.cold() if load.party.is_on_bad(path)) for load in loads]
    began_s, serves_s = time.monotonic(), 0.0
    for load in loads:
        slowest_of(load, began_s)
    with ExitStack() as hanging:
        for load in loads:
            hanging.enter_context(load.party.bad.hanging())
        time.sleep(HANG_S / 2)
        if kills is not None:
            os.kill(kills.newest_daemon(), signal.SIGKILL)
            serves_s = timed(lambda: os.statvfs(kills.pool.mountpoint))
        time.sleep(HANG_S / 2)
        slowest = [slowest_of(load, began_s) for load in loads]
    written = [load.party.is_written_on_bad(end) for load, end in zip(loads, ends, strict=True)]
    right = [timed(lambda: read_at_last(path)) for path in cold]  # noqa: B023 - called at once
    time.sleep(REST_S)
    ended_s = time.monotonic()
    return [
        Hang(
            not written[number],
            slowest[number],
            load.acks.silence_s(began_s, ended_s, ORDINARY_GAP_S),
            right[number],
            serves_s,
        )
        for number, load in enumerate(loads)
    ]


def read_at_last(path: Path) -> None:
    """A segment of the disk, as soon as it is served again."""

    def is_read() -> bool:
        try:
            read_cold(path)
        except OSError:
            return False
        return True

    wait_until(is_read, f"{path} to be read")


def timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


@dataclass
class Found:
    calm: Mapping[str, Slowest]
    hangs: dict[str, list[Hang]]
    sent: Mapping[str, rocketmq.SendResult]


def hang_again_and_again(
    parties: Sequence[Party],
    kept: KeptMount,
    distribution: Distribution,
    workdir: Path,
    *,
    dies: bool,
    reads_old: bool,
) -> Found:
    mountpoint = kept.pool.mountpoint
    with ExitStack() as stack:
        stack.enter_context(busy(BUSY))
        loads = [stack.enter_context(loaded(party, distribution, workdir)) for party in parties]
        stack.enter_context(repeated(lambda: spark_driver.run("count", "local[1]", mountpoint, timeout_s=1800.0)))
        found = Found(calm(loads), {party.name: [] for party in parties}, {})
        print(f"without a hang: {found.calm}", flush=True)
        for number in range(HANGS):
            with ExitStack() as readers:
                for party in parties if reads_old else ():
                    readers.enter_context(reading_old(distribution, party.names, f"{party.name}-old{number}"))
                hangs = hang(loads, kept if dies else None)
            for party, one in zip(parties, hangs, strict=True):
                found.hangs[party.name].append(one)
                print(f"hang {number + 1}, {party.name}: {one}", flush=True)
        found.sent = {load.party.name: load.sender.stop() for load in loads}
        print(found.sent, flush=True)
    return found


@pytest.mark.parametrize("dies", [False, True], ids=["same daemon", "killed"])
@pytest.mark.parametrize("reads_old", [False, True], ids=["new", "old"])
def test_a_disk_hangs_under_a_producing_broker(
    kept: tuple[Stand, KeptMount],
    parties: list[Party],
    newest: Distribution,
    workdir: Path,
    dies: bool,
    reads_old: bool,
) -> None:
    """A JVM stands still while one of its threads waits for a page of the disk, on any filesystem. So consumers of
    old messages stop the broker on both sides, and the time of its creates says nothing then."""
    stand, mount = kept
    daemon = mount.daemon
    for party in parties:
        prepare(party, newest, HANGS if reads_old else 0)
    found = hang_again_and_again(parties, mount, newest, workdir, dies=dies, reads_old=reads_old)
    for party in parties:
        sent = found.sent[party.name]
        seen = rocketmq.consume(
            newest, party.names.address, party.topic, expect=sent.sent, idle_timeout_s=IDLE_S, timeout_s=1800.0
        )
        assert (seen.distinct, seen.corrupted, seen.skipped) == (sent.sent, 0, 0)
        assert seen.duplicates <= sent.failed
    assert dies or mount.newest_daemon() == daemon, stand.pool.log_since_start()[-4000:]
    usual, mine = found.calm["ours"], found.hangs["ours"]
    assert max(one.slowest.read_ms for one in mine) <= usual.read_ms + READ_MORE_MS
    assert max(one.serves_s for one in mine) <= SERVES_WITHIN_S
    assert max(one.right_s for one in mine) <= RIGHT_WITHIN_S
    assert sum(one.silence_s for one in mine) <= sum(one.silence_s for one in found.hangs["native"])
    if not reads_old:
        harmless = [one.slowest for one in mine if one.is_harmless]
        assert all(one.create_ms <= usual.create_ms + CREATE_MORE_MS for one in harmless)
        assert all(one.gap_s <= usual.gap_s + CREATE_MORE_MS / 1000 for one in harmless)
