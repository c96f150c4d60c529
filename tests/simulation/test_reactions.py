"""When a pool reacts to its disks, exactly, in simulated time."""

import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import trio
from prometheus_client import CollectorRegistry
from pyfuse3 import EntryAttributes, FUSEError, SetattrFields
from support.simulation.broker import CONTEXT, Broker
from support.simulation.daemon import SIZE, Settings
from support.simulation.disks import LATENCY_S, SimulatedDisk
from support.simulation.life import UNHURRIED
from support.simulation.world import World, simulate

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.mount.config.model import parse_config
from commitlogfs.mount.daemon.disk_changes import DiskChanges
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.metrics.state import StateCollector
from commitlogfs.mount.status.document import StatusReport
from commitlogfs.mount.views.status_text import describe_disk
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.segment import format_segment_name
from commitlogfs.store.timing import DEFAULT, Timing

SEED = 1
DISKS = 4
SEGMENTS = 12
LONG_S = 2 * 3600.0


class Pool:
    """Four disks, some segments, and a broker that goes on writing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broker = Broker(world)
        self.sick = world.disk(0)
        self.slowest_create_s = 0.0

    @property
    def disk(self) -> Disk:
        """The sick disk, as the daemon knows it."""
        return next(d for d in self.world.serving.commitlog.disks.values() if d.path == str(self.sick.path))

    @property
    def state(self) -> DiskState:
        return self.disk.reported_state

    async def when(self, condition: Callable[[], bool]) -> float:
        """Seconds until that is so."""
        began_s = self.world.clock.elapsed()
        while not condition():
            await trio.sleep(0.1)
            assert self.world.clock.elapsed() < began_s + LONG_S, "it never happens"
        return self.world.clock.elapsed() - began_s

    async def fill(self) -> None:
        for _ in range(SEGMENTS):
            assert await self.broker.append()

    async def write_on(self) -> None:
        """A segment every 5 s, and what the kernel writes and reads by itself meanwhile."""
        async with trio.open_nursery() as nursery:
            for index in range(DISKS):
                nursery.start_soon(self._use, self.world.disk(index))
            while True:
                await self.broker.append()
                await trio.sleep(5.0)

    async def _use(self, disk: SimulatedDisk) -> None:
        while True:
            await disk.serve(writes=True)
            await disk.serve(writes=False)
            await trio.sleep(0.1)


def with_pool(
    directory: Path, task: Callable[[Pool], Awaitable[None]], *, writes: bool = False, timing: Timing = UNHURRIED
) -> None:
    async def run(world: World) -> None:
        world.init(DISKS)

        async def life() -> None:
            pool = Pool(world)
            await pool.fill()
            async with trio.open_nursery() as nursery:
                if writes:
                    nursery.start_soon(pool.write_on)
                await task(pool)
                nursery.cancel_scope.cancel()
            await pool.broker.close()

        await world.run(life)

    simulate(directory / "pool", SEED, Settings(timing), run)


def test_a_disk_that_hangs_is_found_within_half_a_minute(memory_directory: Path) -> None:
    async def task(pool: Pool) -> None:
        pool.sick.hang()
        assert await pool.when(lambda: pool.state is DiskState.UNRESPONSIVE) < 30.0
        pool.world.answer(pool.sick)
        assert await pool.when(lambda: pool.state is DiskState.RW) < DEFAULT.checks.interval_s + 1.0

    with_pool(memory_directory, task)


def test_a_disk_whose_reads_fail_is_found_within_half_a_minute(memory_directory: Path) -> None:
    async def task(pool: Pool) -> None:
        pool.sick.fault = 5
        assert await pool.when(lambda: pool.disk.is_unreadable) < 30.0
        pool.sick.fault = 0
        assert await pool.when(lambda: pool.state is DiskState.RW) < 30.0

    with_pool(memory_directory, task)


@pytest.mark.parametrize("factor", [pytest.param(30.0, marks=pytest.mark.full), 100.0])
def test_a_slow_disk_is_found_within_a_minute_and_is_back_after_eleven(
    memory_directory: Path, factor: float
) -> None:
    async def task(pool: Pool) -> None:
        await trio.sleep(120.0)  # the usual times are known by then
        pool.sick.latency_s = LATENCY_S * factor
        assert await pool.when(lambda: pool.disk.is_slow) < 60.0
        log = pool.world.serving.commitlog
        count = log.catalog.count_on_disk(pool.disk.number)
        await trio.sleep(300.0)
        assert log.catalog.count_on_disk(pool.disk.number) == count
        pool.sick.latency_s = LATENCY_S
        assert await pool.when(lambda: not pool.disk.is_slow) < 11 * 60.0
        await pool.when(lambda: log.catalog.count_on_disk(pool.disk.number) > count)

    with_pool(memory_directory, task, writes=True)


class Trouble(NamedTuple):
    """A fault of a disk, and how the daemon tells it."""

    begin: Callable[[World, SimulatedDisk], None]
    end: Callable[[World, SimulatedDisk], None]
    state: DiskState
    event: str
    event_at_end: str
    says: str
    """In the line of the disk, after the reason."""
    beside_writes: bool = False


TROUBLES = {
    "hangs": Trouble(
        lambda _, disk: disk.hang(),
        lambda world, disk: world.answer(disk),
        DiskState.UNRESPONSIVE,
        "disk_unresponsive",
        "disk_responsive",
        "gets no new segments until it does",
    ),
    "fails": Trouble(
        lambda _, disk: setattr(disk, "fault", errno.EIO),
        lambda _, disk: setattr(disk, "fault", 0),
        DiskState.FAILED,
        "disk_unreadable",
        "disk_readable",
        "in backoff for a moment: ",
    ),
    "is slow": Trouble(
        lambda _, disk: setattr(disk, "latency_s", LATENCY_S * 100.0),
        lambda _, disk: setattr(disk, "latency_s", LATENCY_S),
        DiskState.SLOW,
        "disk_slow",
        "disk_not_slow",
        "gets no new segments, next probe in",
        beside_writes=True,
    ),
    "is away": Trouble(
        lambda _, disk: disk.pull_out(),
        lambda _, disk: disk.put_back(),
        DiskState.VANISHED,
        "disk_vanished",
        "disk_returned",
        "gets no new segments until it is mounted there again",
    ),
}


class Told:
    """The parts of `status` and of the metrics that show a disk."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self._pool = pool
        mountpoint = directory / "store" / "commitlog"
        mountpoint.mkdir(parents=True)
        disks = "".join(f'[[disks]]\npath = "{path}"\n' for path in pool.world.paths)
        self._config = parse_config(
            f'mountpoint = "{mountpoint}"\nsegment_size = "16KiB"\n{disks}', "demo", "demo.toml"
        )

    async def state_and_line(self) -> tuple[str, str, float | None]:
        """State and line of the sick disk in `status`, and the metric of that state."""
        parts = self._pool.world.serving.parts
        document = await StatusReport(self._config, parts, str, list).compose()
        path = str(self._pool.sick.path)
        disk = next(one for one in document["disks"] if one["path"] == path)
        registry, collector = CollectorRegistry(), StateCollector(parts, "demo")
        registry.register(collector)
        collector.document = document
        labels = {"pool": "demo", "disk": path, "state": disk["state"]}
        metric = registry.get_sample_value("commitlogfs_disk_state", labels)
        return disk["state"], describe_disk(disk, document), metric

    def events(self, event: str) -> int:
        """How often the daemons have logged it."""
        return sum(line.split()[1] == event for line in self._pool.world.trace)


@pytest.mark.parametrize("trouble", list(TROUBLES.values()), ids=list(TROUBLES))
def test_trouble_is_told_once_by_event_metric_and_status(memory_directory: Path, trouble: Trouble) -> None:
    async def task(pool: Pool) -> None:
        told = Told(pool, memory_directory)
        await trio.sleep(120.0)  # the usual times are known by then
        assert (await told.state_and_line())[::2] == ("rw", 1.0)
        trouble.begin(pool.world, pool.sick)
        await pool.when(lambda: pool.state is trouble.state)
        for _ in range(4):
            state, line, metric = await told.state_and_line()
            assert (state, metric) == (trouble.state.value, 1.0)
            assert trouble.says in line
            await trio.sleep(30.0)
        assert (told.events(trouble.event), told.events(trouble.event_at_end)) == (1, 0)
        trouble.end(pool.world, pool.sick)
        await pool.when(lambda: pool.state is DiskState.RW)
        await trio.sleep(60.0)
        assert (told.events(trouble.event), told.events(trouble.event_at_end)) == (1, 1)
        assert (await told.state_and_line())[::2] == ("rw", 1.0)

    with_pool(memory_directory, task, writes=trouble.beside_writes)


def test_a_create_beside_a_disk_that_begins_to_hang_is_in_time(memory_directory: Path) -> None:
    """A broker gives up after five seconds."""

    async def task(pool: Pool) -> None:
        for index in range(DISKS):
            disk = pool.world.disk(index)
            disk.hang()
            began_s = pool.world.clock.elapsed()
            made = await pool.broker.append()
            took_s = pool.world.clock.elapsed() - began_s
            pool.world.answer(disk)
            assert made
            assert took_s < DEFAULT.requests.create_s

    with_pool(memory_directory, task)


class Answers:
    """Requests beside a disk that hangs, and after how many seconds each was answered with an error; None if it was
    not."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._began_s = pool.world.clock.elapsed()
        self.after_s: dict[str, float | None] = {}
        self.errors: set[int] = set()

    async def ask(self, label: str, op: str, *arguments: Any) -> None:
        try:
            await self._pool.world.request(op, *arguments)
        except FUSEError as error:
            self.errors.add(error.errno)
            self.after_s[label] = self._pool.world.clock.elapsed() - self._began_s
        else:
            self.after_s[label] = None


def changed(**fields: int) -> tuple[EntryAttributes, SetattrFields]:
    """The arguments of a setattr for these attributes."""
    attributes = EntryAttributes()
    for name, value in fields.items():
        setattr(attributes, f"st_{name}", value)
    names = ("size", "mode", "uid", "gid", "atime", "mtime")
    updates = SimpleNamespace(**{f"update_{name}": name in fields for name in names})
    return attributes, cast("SetattrFields", updates)


def test_an_open_and_a_change_on_a_disk_that_hangs_have_three_seconds(memory_directory: Path) -> None:
    """Also those that wait for each other."""

    async def task(pool: Pool) -> None:
        log, number = pool.world.serving.commitlog, pool.disk.number
        file = next(segment for segment in log.catalog if segment.disk == number)
        inode = inodes.encode(file)
        pool.sick.hang()
        answers = Answers(pool)
        async with trio.open_nursery() as nursery:
            for index in range(3):
                attributes, fields = changed(mode=0o600)
                nursery.start_soon(
                    answers.ask, f"chmod {index}", "setattr", inode, attributes, fields, None, CONTEXT
                )
                nursery.start_soon(answers.ask, f"open {index}", "open", inode, os.O_RDONLY, CONTEXT)
        limit_s = pytest.approx(DEFAULT.requests.open_s)
        assert answers.after_s == {f"{kind} {index}": limit_s for kind in ("chmod", "open") for index in range(3)}
        assert answers.errors == {errno.EIO}
        pool.world.answer(pool.sick)
        await pool.world.request("open", inode, os.O_RDONLY, CONTEXT)
        await pool.world.request("release", inode)

    with_pool(memory_directory, task)


def test_a_close_on_a_disk_that_hangs_has_three_seconds(memory_directory: Path) -> None:
    async def task(pool: Pool) -> None:
        log, number = pool.world.serving.commitlog, pool.disk.number
        others = [disk for disk in log.disks.values() if disk.number != number]
        for disk in others:
            disk.retry_at_s = float("inf")
        name = format_segment_name(100 * SIZE)
        flags = os.O_RDWR | os.O_CREAT
        copy, _ = await pool.world.request("create", inodes.ROOT, b"." + name + b".x1", 0o640, flags, CONTEXT)
        empty, _ = await pool.world.request("create", inodes.ROOT, b"." + name + b".x2", 0o640, flags, CONTEXT)
        for disk in others:
            disk.retry_at_s = 0.0
        assert await pool.world.request("write", copy.fh, 0, b"x") == 1
        pool.sick.hang()
        answers = Answers(pool)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers.ask, "copy", "flush", copy.fh)
            nursery.start_soon(answers.ask, "copy, once more", "flush", copy.fh)
            nursery.start_soon(answers.ask, "empty", "flush", empty.fh)
        limit_s = pytest.approx(DEFAULT.requests.flush_s)
        assert answers.after_s == {"copy": limit_s, "copy, once more": limit_s, "empty": None}
        assert answers.errors == {errno.EIO}
        pool.world.answer(pool.sick)
        await pool.world.request("flush", copy.fh)
        for info in (copy, empty):
            await pool.world.request("release", info.fh)

    with_pool(memory_directory, task)


def test_a_segment_is_made_elsewhere_if_its_disk_refuses_its_size(memory_directory: Path) -> None:
    """Nobody has written to it yet: a broker gets an error, tries again, and the name is free."""

    async def task(pool: Pool) -> None:
        for _ in range(DISKS):
            number = pool.world.serving.commitlog.preview_next()[0]
            chosen = pool.world.disks.by_path[pool.world.serving.commitlog.disks[number].path]
            assert not await pool.broker.append(between=partial(setattr, chosen, "fault", errno.EIO))
            assert await pool.broker.append()
            chosen.fault = 0
            newest = pool.world.serving.commitlog.catalog.last
            assert newest is not None
            assert newest.disk != number
            await trio.sleep(60.0)

    with_pool(memory_directory, task)


def test_segments_of_a_disk_that_nobody_can_read_are_absent_after_five_minutes(memory_directory: Path) -> None:
    async def task(pool: Pool) -> None:
        pool.sick.fault = 5

        def is_lost() -> bool:
            return health.is_lost(pool.disk, pool.world.clock.monotonic(), DEFAULT.health)

        lost_s = await pool.when(is_lost)
        assert DEFAULT.health.lost_after_s < lost_s < DEFAULT.health.lost_after_s + 30.0
        pool.sick.fault = 0
        assert await pool.when(lambda: not is_lost()) < 30.0

    with_pool(memory_directory, task)


def test_a_scrub_leaves_a_disk_out_that_does_not_answer_for_half_an_hour(memory_directory: Path) -> None:
    async def task(pool: Pool) -> None:
        scrub = pool.world.serving.parts.scrub
        pool.sick.hang()
        began_s = pool.world.clock.elapsed()
        await scrub.begin(0, follows_chains=False)
        await pool.when(lambda: not scrub.is_active)
        took_s = pool.world.clock.elapsed() - began_s
        assert DEFAULT.scrub.give_up_s <= took_s < DEFAULT.scrub.give_up_s + 60.0
        pool.world.answer(pool.sick)

    with_pool(memory_directory, task)


def test_a_drain_keeps_its_rate_and_ends_soon_when_it_is_cancelled(memory_directory: Path) -> None:
    rate = SIZE // 10
    """Bytes read and written: each segment takes twenty seconds."""

    async def task(pool: Pool) -> None:
        verbs = DiskChanges(pool.world.serving.parts, FormerDaemons()).verbs()
        log, number = pool.world.serving.commitlog, pool.disk.number
        before, began_s = log.counters.moved, pool.world.clock.elapsed()
        answer = await verbs["disk-drain"]({"disk": str(number), "mode": "copy", "rate": rate})
        assert isinstance(answer, dict)
        assert "refused" not in answer
        await pool.when(lambda: log.counters.moved == before + 2)
        took_s = pool.world.clock.elapsed() - began_s
        assert took_s == pytest.approx(2 * 2 * SIZE / rate, rel=0.05)
        await trio.sleep(3.0)
        await verbs["disk-cancel"]({"disk": str(number)})
        assert await pool.when(lambda: pool.world.serving.parts.mover.progress is None) < 1.0

    with_pool(memory_directory, task)


def test_what_is_known_of_a_disk_is_known_to_the_next_daemon(memory_directory: Path) -> None:
    async def task(pool: Pool) -> None:
        pool.sick.fault = 5
        await pool.when(lambda: pool.disk.is_unreadable)
        former = pool.world.serving
        pool.world.kill()
        await pool.when(lambda: pool.world.serving is not former)
        assert pool.disk.is_unreadable
        assert pool.disk.is_troubled
        pool.sick.fault = 0

    with_pool(memory_directory, task)


def test_what_was_removed_beside_a_disk_that_hangs_does_not_come_back_with_another_one(
    memory_directory: Path,
) -> None:
    """Nor after the death of the daemon that knew it."""
    kept = SEGMENTS - DISKS

    async def task(pool: Pool) -> None:
        world, broker = pool.world, pool.broker
        away, hanging = world.disk(1), world.disk(2)
        away.pull_out()
        world.kill()
        await pool.when(lambda: world.is_serving)
        assert world.serving.commitlog.missing == (str(away.path),)
        hanging.hang()
        await broker.expire(kept)
        assert sorted(broker.log.segments)[0] == 2, "its removal has no answer"
        await broker.expire(kept)
        assert sorted(broker.log.segments)[0] == DISKS
        world.kill()
        world.answer(hanging)
        away.put_back()
        await pool.when(lambda: world.is_serving and not world.serving.commitlog.missing)
        listed = {segment.base_offset // SIZE for segment in world.serving.commitlog.listed()}
        assert listed - {2} == set(range(DISKS, SEGMENTS))

    with_pool(memory_directory, task)


@pytest.mark.parametrize(("index", "errors"), [(0, set()), (DISKS, {errno.EIO})])
def test_a_removal_that_is_sent_again_beside_its_missing_disk_is_done_only_if_that_is_on_record(
    memory_directory: Path, index: int, errors: set[int]
) -> None:
    """The oldest segment is away for good, as the other disks record where the log begins. Another one may still be
    on the disk that held the former daemon."""

    async def task(pool: Pool) -> None:
        world, answers = pool.world, Answers(pool)
        pool.sick.hang()
        async with trio.open_nursery() as nursery:
            name = format_segment_name(index * SIZE)
            nursery.start_soon(answers.ask, "removal", "unlink", inodes.ROOT, name, CONTEXT)
            await trio.sleep(1.0)
            world.kill()
        assert world.serving.commitlog.missing == (str(pool.sick.path),)
        assert answers.errors == errors
        world.answer(pool.sick)
        await pool.when(lambda: world.is_serving and not world.serving.commitlog.missing)
        listed = {segment.base_offset // SIZE for segment in world.serving.commitlog.listed()}
        assert (index in listed) == bool(errors)

    with_pool(memory_directory, task)
