"""A real broker on a real mount over loop disks, and what tests ask of it."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.flaky_disks import AgeingDisk, BadBlocksDisk, FlakyDisk
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount
from support.timings import PATIENT_REQUESTS
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, ConsumeResult, Distribution, NameServer, SendResult

_COMPLAINT = re.compile(r"^\S+ ERROR |InternalError|SIGBUS|MappedFileException|Exception in thread")
_UNRELATED = (
    # 5.x: its clients' own connections, and RocksDB's and the timer's threads at a kill or stop.
    "RocketmqRemoting",
    "io.netty",
)


IDLE_S = 60.0
"""How long a consumer waits for a next message: a broker that was killed and started again may be unknown to the
name server until it repeats its registration after 10 s."""


class Stand:
    """Loop disks, a pool on them (`DISK/commitlog` each) and one broker on its mount."""

    def __init__(self, disks: Sequence[LoopDisk], pool: PoolMount, names: NameServer) -> None:
        self.disks = disks
        self.pool = pool
        self.names = names
        self._brokers: list[Broker] = []

    def broker(self, distribution: Distribution, config: dict[str, Any] | None = None, **options: Any) -> Broker:
        """A broker (not yet started) whose store root holds the mountpoint; killed with the stand."""
        broker = make_broker(self.pool, self.names, distribution, config, **options)
        self._brokers.append(broker)
        return broker

    def directories(self) -> list[Path]:
        return [Path(disk) for disk in self.pool.disks]

    def close(self) -> None:
        for broker in self._brokers:
            broker.kill()
        self.pool.abandon()


@contextmanager
def make_stand(
    workdir: Path,
    names: NameServer,
    fstypes: Sequence[str] = ("ext4", "xfs", "ext4"),
    *,
    segment_size: int = 4 * MIB,
    disk_bytes: int | None = None,
    sizes: Sequence[int] | None = None,
    flaky: Sequence[int] = (),
    bad_blocks: Sequence[int] = (),
    ageing: Sequence[int] = (),
    **options: Any,
) -> Iterator[Stand]:
    """Disks made, pool described but not yet born. Those whose number (0, 1, ...) is in `flaky` are FlakyDisks, in
    `bad_blocks` BadBlocksDisks, in `ageing` AgeingDisks. Without any of these, a request is late only because the
    machine is busy, so that it gets the time of PATIENT_REQUESTS."""
    kinds = {
        **dict.fromkeys(flaky, FlakyDisk),
        **dict.fromkeys(bad_blocks, BadBlocksDisk),
        **dict.fromkeys(ageing, AgeingDisk),
    }
    variables = {} if kinds else PATIENT_REQUESTS
    workdir.mkdir(exist_ok=True)
    with DiskFarm(workdir / "disks") as farm:
        wanted = sizes or [disk_bytes] * len(fstypes)
        disks = [
            farm.add_of(kinds.get(number, LoopDisk), fstype, size)
            for number, (fstype, size) in enumerate(zip(fstypes, wanted, strict=True))
        ]
        pool = PoolMount(workdir, [disk.path / "commitlog" for disk in disks], segment_size, **options)
        pool.variables = variables | pool.variables
        stand = Stand(disks, pool, names)
        try:
            yield stand
        finally:
            stand.close()


def make_broker(
    pool: PoolMount,
    names: NameServer,
    distribution: Distribution,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Broker:
    """Its home is named after the pool's work directory, so that no two brokers of a name server are alike."""
    name = options.pop("name", f"broker-{pool.workdir.name.replace('.', '-')}")
    placed: dict[str, Any] = {
        "storePathRootDir": str(pool.mountpoint.parent),
        "storePathCommitLog": str(pool.mountpoint),
        "mappedFileSizeCommitLog": pool.segment_size,
    }
    return Broker(distribution, names, pool.workdir, {**placed, **(config or {})}, name=name, **options)


def send_all(distribution: Distribution, names: NameServer, topic: str, count: int, **options: Any) -> SendResult:
    """Every message acknowledged. On a busy machine a cold JVM's first ones may pass the client's 3 s and are
    sent again: tests of what a fault does to a producer count failures themselves."""
    sent = rocketmq.send(distribution, names.address, topic, count=count, retry=True, **options)
    assert (sent.sent, sent.abandoned) == (count, 0), sent.last_error
    return sent


def check_all(distribution: Distribution, names: NameServer, topic: str, sent: SendResult) -> ConsumeResult:
    """Everything sent is consumed, its body unchanged; twice only what was sent twice."""
    seen = rocketmq.consume(distribution, names.address, topic, expect=sent.sent, idle_timeout_s=IDLE_S)
    assert (seen.distinct, seen.corrupted, seen.skipped) == (sent.sent, 0, 0), topic
    assert seen.duplicates <= sent.failed, topic
    return seen


def complaints(broker: Broker) -> list[str]:
    """Errors that the broker logged since its last start."""
    lines = broker.log_text().splitlines()
    return [line for line in lines if _COMPLAINT.search(line) and not any(word in line for word in _UNRELATED)]


def mapped_segments(broker: Broker, directory: Path) -> set[str]:
    """The segments the broker works with: it keeps every one of them mapped."""
    prefix = f"{directory}/"
    maps = Path(f"/proc/{broker.pid}/maps").read_text()
    return {
        line.split()[5].removeprefix(prefix) for line in maps.splitlines() if line.split()[5:6] and prefix in line
    }


def digest(directory: Path) -> dict[str, str]:
    """Path -> checksum of every file below a directory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """As `eventually`, with a name for what is waited for."""
    eventually(condition, timeout_s, lambda: what)


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fill(directory: Path, percent: float, name: str = "filler") -> Path:
    """Fill a disk with foreign data up to `percent` of used / (used + available); returns the file."""
    filler = directory / name
    st = os.statvfs(directory)
    used = (st.f_blocks - st.f_bfree) * st.f_frsize
    entire = used + st.f_bavail * st.f_frsize
    wanted = int(entire * percent / 100) - used
    fd = os.open(filler, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, max(1, wanted))
    finally:
        os.close(fd)
    return filler


def notable(stand: Stand) -> list[str]:
    """The latest lines of the daemon's log that are more than details."""
    return [line for line in stand.pool.log_since_start().splitlines() if " debug " not in line][-200:]


@contextmanager
def appending(
    stand: Stand, broker: Broker, distribution: Distribution, topic: str, workdir: Path
) -> Iterator[None]:
    """A producer at work; afterwards no send has failed, and everything is consumed."""
    acked = workdir / "acked"
    with rocketmq.start_sender(
        distribution, stand.names.address, topic, size_bytes=4096, rate=1500, acked=acked
    ) as sender:
        wait_until(lambda: line_count(acked) >= 200, "sending")
        yield
        totals = sender.stop()
    assert (totals.failed, totals.abandoned) == (0, 0), totals.last_error
    seen = rocketmq.consume(distribution, stand.names.address, topic, expect=totals.sent, idle_timeout_s=IDLE_S)
    assert (seen.distinct, seen.duplicates, seen.corrupted, seen.skipped) == (totals.sent, 0, 0, 0)
    found = complaints(broker)
    assert not found, "\n".join([*found, *notable(stand)])


def slave_of(stand: Stand, distribution: Distribution, master: Broker, directory: Path) -> Broker:
    """A broker on plain files that replicates the master's log; not started."""
    directory.mkdir()
    settings: dict[str, str | int | float | bool] = {
        "brokerId": 1,
        "brokerRole": "SLAVE",
        "brokerName": master.config["brokerName"],
        "mappedFileSizeCommitLog": stand.pool.segment_size,
    }
    return Broker(distribution, stand.names, directory, settings, name="slave")


def roll(stand: Stand, count: int = 12) -> list[int]:
    """Wait for that many new segments; the disk (0, 1 ...) of each."""
    newest = max(os.listdir(stand.pool.mountpoint))

    def made() -> list[str]:
        return sorted(name for name in os.listdir(stand.pool.mountpoint) if name > newest)

    wait_until(lambda: len(made()) >= count, f"{count} more segments")
    return [
        next(number for number, directory in enumerate(stand.directories()) if (directory / name).exists())
        for name in made()[:count]
    ]
