"""A piece of a pool's life, chosen by a seed: events caused by a broker, operators, disks and deaths of daemons."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import trio
from support.disk_life import set_aside
from support.simulation.broker import BROKER_S, Broker
from support.simulation.daemon import SIZE, Settings
from support.simulation.disks import LATENCY_S, SimulatedDisk
from support.simulation.world import PowerCutError, World

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.daemon.disk_changes import DiskChanges
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.daemon.rebalance_changes import RebalanceChanges
from commitlogfs.mount.daemon.scrub_requests import scrub_verbs
from commitlogfs.mount.status.document import StatusReport
from commitlogfs.mount.status.rebalance import plan_report
from commitlogfs.store.disks.membership import RebalanceMode
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.scrub.verdict import Range
from commitlogfs.store.segment import parse_segment_name
from commitlogfs.store.timing import DEFAULT, Pace, Timing

KEPT: Final = 24
"""Segments that the broker keeps."""
LEAST_DISKS, MOST_DISKS = 3, 6
SMALL: Final = 14
"""Segments for which a disk has room while the broker deletes nothing."""
CALM_S: Final = 1500.0
"""After this time without a fault, nothing is left to do."""

UNHURRIED = replace(
    DEFAULT,
    pace=Pace(idle_share=1.0, smallest_share=1.0),
    requests=replace(DEFAULT.requests, freed_s=0.0),
)
"""Background work takes all the time there is: the simulated machine is idle. Blocks are free at once."""


def slowed(timing: Timing, factor: float) -> Timing:
    """The same times with rarer checks for work, so that a month passes in seconds. What a request waits for, and
    when a disk is given up, stays."""
    rarer = {
        "health": {"remembered_s": timing.health.remembered_s * factor},
        "checks": {"interval_s": timing.checks.interval_s * factor, "confirm_s": timing.checks.confirm_s * factor},
        "requests": {"freeing_s": timing.requests.freeing_s * factor},
        "slowness": {"window_s": timing.slowness.window_s * factor},
        "members": {"compare_s": timing.members.compare_s * factor},
        "moves": {"look_s": timing.moves.look_s * factor, "source_s": timing.moves.source_s * factor / 5},
        "checksums": {"look_s": timing.checksums.look_s * factor},
        "scrub": {"look_s": timing.scrub.look_s * factor, "schedule_s": timing.scrub.schedule_s * factor},
        "lost_writes": {"look_s": timing.lost_writes.look_s * factor},
        "daemon": {"returns_look_s": timing.daemon.returns_look_s * factor / 5},
    }
    return replace(timing, **{name: replace(getattr(timing, name), **fields) for name, fields in rarer.items()})


SETTINGS = Settings(slowed(UNHURRIED, 20.0), RetentionRules(interval_s=30.0))
MONTH = Settings(slowed(UNHURRIED, 400.0), RetentionRules(interval_s=600.0))
MONTH_EVENTS, MONTH_PACE = 360, 36.0


class Life:
    """Run `live` within World.run."""

    def __init__(self, world: World, events: int, pace: float = 1.0) -> None:
        """`pace`: factor of the time between what the broker and the operators do."""
        self.world = world
        self.pace = pace
        self.broker = Broker(world)
        self.events = events
        self.done: Counter[str] = Counter()
        """Number of events, by kind."""
        self._is_over = False
        self._deletes = True
        self._ill: set[str] = set()
        """Disks that were not well since the present append began."""

    @property
    def choices(self) -> dict[Callable[[], Awaitable[None]], int]:
        return {
            self.a_disk_hangs: 3,
            self.a_disk_fails: 2,
            self.a_disk_is_slow: 1,
            self.the_daemon_dies: 2,
            self.the_daemon_dies_at_work: 6,
            self.the_power_fails: 3,
            self.a_reader_stays: 3,
            self.the_daemon_is_replaced: 1,
            self.a_disk_is_cordoned: 2,
            self.a_disk_is_drained: 3,
            self.a_disk_joins: 1,
            self.a_disk_leaves: 1,
            self.a_disk_is_released: 1,
            self.a_disk_is_pulled_out: 1,
            self.the_broker_deletes_nothing: 1,
            self.a_scrub_begins: 1,
            self.a_segment_rots: 1,
            self.a_rebalancing_begins: 1,
            self.nothing: 4,
        }

    async def live(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._delete)
            nursery.start_soon(self._read)
            for _ in range(self.events):
                await self._wait(self.world.random.expovariate(1 / 200.0))
                (event,) = self.world.random.choices(list(self.choices), list(self.choices.values()))
                self.done[event.__name__] += 1
                nursery.start_soon(event)
            self._is_over = True
        await self._calm_down()

    async def _wait(self, seconds: float) -> None:
        await trio.sleep(seconds * self.pace)

    # --- the broker ----------------------------------------------------------------------------------

    async def _write(self) -> None:
        while not self._is_over:
            could = is_well = any(self._takes_segments(number) for number in range(len(self.world.paths)))
            deaths, begun_s = self.world.deaths, self.world.clock.elapsed()
            self._ill = {path for path in self.world.paths if not self.world.disks.by_path[path].is_well}
            refused = self.broker.failed_creates
            try:
                made = await self.broker.append()
            except PowerCutError:
                await self._begin_again()
                continue
            took_s = self.world.clock.elapsed() - begun_s
            if made and took_s > BROKER_S and self.world.deaths == deaths:
                self.world.note(f"segment {self.broker.log.next_index - 1} took {took_s:.1f} s")
            is_well = is_well and self._all_are_well() and not self.broker.may_be_forced
            assert made or not is_well, "no segment, although all disks are well"
            is_refused = self.broker.failed_creates > refused and not self.broker.may_be_forced
            assert not (is_refused and could and len(self._ill) < 2), "no segment, although only one disk is ill"
            await self._wait(self.world.random.uniform(10.0, 60.0))

    async def _delete(self) -> None:
        """A broker deletes expired segments beside its appends."""
        while not self._is_over:
            await self._wait(self.world.random.uniform(10.0, 60.0))
            if self._deletes:
                with suppress(PowerCutError):
                    await self.broker.expire(KEPT)

    async def _read(self) -> None:
        while not self._is_over:
            await self._wait(self.world.random.uniform(20.0, 120.0))
            if self.broker.log.segments:
                with suppress(PowerCutError):
                    await self.broker.check(self.world.random.choice(sorted(self.broker.log.segments)))

    async def _begin_again(self) -> None:
        """The broker is started again, however often the power fails."""
        while True:
            with suppress(PowerCutError):
                return await self.broker.begin_again()

    def _takes_segments(self, index: int) -> bool:
        path = self.world.paths[index]
        disk = next((disk for disk in self.world.serving.commitlog.disks.values() if disk.path == path), None)
        return disk is not None and self.world.disk(index).is_well and disk.cordon is None and disk.drain is None

    def _all_are_well(self) -> bool:
        return all(self.world.disk(index).is_well for index in range(len(self.world.paths)))

    # --- faults --------------------------------------------------------------------------------------

    def _some_disk(self) -> SimulatedDisk:
        return self.world.disk(self.world.random.randrange(len(self.world.paths)))

    async def a_disk_hangs(self) -> None:
        disk = self._some_disk()
        self.world.note(f"{disk.path.name} hangs")
        self._ill.add(str(disk.path))
        disk.hang()
        await trio.sleep(self.world.random.choice([0.5, 2.0, 5.0, 30.0, 200.0]))
        self.world.answer(disk)
        self.world.note(f"{disk.path.name} answers")

    async def a_disk_fails(self) -> None:
        disk = self._some_disk()
        disk.fault = 5
        self._ill.add(str(disk.path))
        self.world.note(f"{disk.path.name} fails")
        seconds = self.world.random.choice([1.0, 20.0, 200.0, 1000.0])
        if seconds > DEFAULT.health.lost_after_s / 2:  # it may have failed before, for some time
            self.world.absent_once.add(str(disk.path))
        await trio.sleep(seconds)
        disk.fault = 0
        self.world.note(f"{disk.path.name} is well")

    async def a_disk_is_slow(self) -> None:
        disk = self._some_disk()
        disk.latency_s = LATENCY_S * self.world.random.choice([30, 300])
        await trio.sleep(self.world.random.uniform(10.0, 1000.0))
        disk.latency_s = LATENCY_S

    async def the_daemon_dies(self) -> None:
        for _ in range(self.world.random.randrange(1, 3)):
            for _ in range(self.world.random.randrange(200)):
                await trio.lowlevel.checkpoint()
            self.world.kill()
            await trio.sleep(self.world.random.choice([0.1, 0.31, 1.0]))

    async def the_daemon_dies_at_work(self) -> None:
        for _ in range(self.world.random.randrange(1, 4)):
            self.world.kill_at_call(self.world.random.randrange(40))
            await trio.sleep(self.world.random.uniform(0.0, 60.0))

    async def the_power_fails(self) -> None:
        """In the middle of whatever is under way."""
        for _ in range(self.world.random.randrange(1, 4)):
            self.world.kill_at_call(self.world.random.randrange(40), self.world.cut_power)
            await trio.sleep(self.world.random.uniform(0.0, 60.0))

    async def the_daemon_is_replaced(self) -> None:
        await trio.lowlevel.checkpoint()
        self.world.restart()

    async def a_reader_stays(self) -> None:
        """It has a segment open, whatever becomes of that, and reads what it has been; if all disks were full,
        perhaps zeros."""
        if not self.broker.log.segments:
            return
        index = self.world.random.choice(sorted(self.broker.log.segments))
        expected, seconds = self.broker.log.contents(index), self.world.random.choice([1.0, 100.0, 1500.0])
        try:
            content = await self.broker.read(index, seconds)
        except (FileNotFoundError, PowerCutError):
            return
        allowed = {None, *expected, *self.broker.log.contents(index)}
        if self.broker.may_be_forced:
            allowed.add(bytes(SIZE))
        assert content in allowed, f"an open segment {index} has another content"

    async def a_segment_rots(self) -> None:
        """One that is read only: at most one in a life, so that no two faults meet in a segment."""
        await trio.lowlevel.checkpoint()
        sealed = sorted(self.broker.log.segments)[:-NEWEST_KEPT]
        if sealed and self.world.is_serving and not self.broker.log.rotten:
            index = self.world.random.choice(sealed)
            if self.broker.let_rot(index):
                self.world.note(f"segment {index} rots")

    async def nothing(self) -> None:
        await trio.lowlevel.checkpoint()

    # --- operators -----------------------------------------------------------------------------------

    async def command(self, verb: str, **fields: object) -> bool:
        """Whether the daemon has done it. A command whose daemon dies gets no answer."""
        if not self.world.is_serving:
            return False
        daemon = self.world.serving
        parts = daemon.parts
        verbs = {**DiskChanges(parts, FormerDaemons()).verbs(), **scrub_verbs(parts)}
        verbs |= RebalanceChanges(parts, cast(StatusReport, _Report(parts))).verbs()
        answered: list[bool] = []

        async def ask() -> None:
            answer = await verbs[verb](fields)
            assert isinstance(answer, dict)
            answered.append("refused" not in answer and not daemon.threads.is_dead)
            self.world.note(f"{verb} {_shown(fields)}: {answer.get('refused', 'done')}")

        await daemon.while_alive(ask)
        return bool(answered and answered[0])

    async def a_disk_is_cordoned(self) -> None:
        disk = self._some_disk()
        await self.command("disk-cordon", disk=str(disk.path), reason="")
        await self._wait(self.world.random.uniform(10.0, 1000.0))
        await self.command("disk-uncordon", disk=str(disk.path))

    async def a_disk_is_drained(self) -> None:
        disk = self._some_disk()
        mode = self.world.random.choice(["copy", "copy", "expiry", "failing"])
        await self.command("disk-drain", disk=str(disk.path), mode=mode)
        await self._wait(self.world.random.choice([1.0, 20.0, 300.0, 1500.0]))
        await self.command("disk-cancel", disk=str(disk.path))

    async def a_disk_joins(self) -> None:
        """As commitlogfs disk add does it."""
        if len(self.world.paths) >= MOST_DISKS:
            return
        disk = self.world.add_disk()
        disk.capacity = self.world.disk(0).capacity
        if await self.command("disk-prepare", directory=str(disk.path)):
            self.world.paths.append(str(disk.path))
            await trio.sleep(self.world.random.choice([0.01, 1.0]))
            self.world.restart()

    async def a_disk_leaves(self) -> None:
        """As commitlogfs disk drain and disk remove do it."""
        if len(self.world.paths) <= LEAST_DISKS:
            return
        disk = self._some_disk()
        await self.command("disk-drain", disk=str(disk.path), mode="copy")
        await self._wait(self.world.random.choice([20.0, 300.0]))
        if await self.command("disk-leave", disk=str(disk.path)):
            self.world.paths.remove(str(disk.path))
            await trio.sleep(self.world.random.choice([0.01, 1.0]))
            self.world.restart()

    async def a_disk_is_released(self) -> None:
        """As commitlogfs disk offline and disk online do it."""
        disk = self._some_disk()
        await self.command("disk-cordon", disk=str(disk.path), reason="")
        await self._wait(200.0)
        if await self.command("disk-offline", disk=str(disk.path)):
            self.world.restart()
        await self._wait(self.world.random.uniform(10.0, 1000.0))
        await self.command("disk-online", disk=str(disk.path))
        await self._wait(30.0)
        await self.command("disk-uncordon", disk=str(disk.path))

    async def a_disk_is_pulled_out(self) -> None:
        disk = self._some_disk()
        if not disk.is_well:
            return
        disk.pull_out()
        self._ill.add(str(disk.path))
        self.world.note(f"{disk.path.name} is pulled out")
        await self._wait(self.world.random.choice([1.0, 30.0, 400.0]))
        disk.put_back()
        self.world.note(f"{disk.path.name} is back")

    async def the_broker_deletes_nothing(self) -> None:
        """The disks get full, and the rules remove the oldest segments."""
        self._deletes, self.broker.may_be_forced = False, True
        for index in range(len(self.world.paths)):
            self.world.disk(index).shrink(SMALL)
        await self._wait(self.world.random.uniform(500.0, 2000.0))
        self._deletes = True

    async def a_scrub_begins(self) -> None:
        await self.command("scrub-start")

    async def a_rebalancing_begins(self) -> None:
        await self.command("rebalance-start", mode=self.world.random.choice(["placement", "copy"]))
        await self._wait(self.world.random.uniform(10.0, 1000.0))
        await self.command("rebalance-cancel")

    # --- afterwards ----------------------------------------------------------------------------------

    async def _calm_down(self) -> None:
        """Everything is well, and every order has ended."""
        for index in range(len(self.world.paths)):
            disk = self.world.disk(index)
            disk.fault, disk.latency_s, disk.capacity = 0, LATENCY_S, 400
            self.world.answer(disk)
        self.world.restart()  # one may have been refused while a disk held the daemon
        for verb in ("disk-online", "disk-stay", "disk-cancel", "disk-uncordon"):
            await self._wait(60.0)
            for path in self.world.paths:
                await self.command(verb, disk=path)
        await self.command("rebalance-cancel")
        await self._wait(CALM_S)
        assert not self.world.serving.commitlog.missing
        for _ in range(5):
            assert await self.broker.append(), "no segment, although everything is well"
        for served in self.world.serving.commitlog.disks.values():
            assert served.reported_state.value == "rw", (served.path, served.reported_state)
        await self.broker.expire(KEPT)
        await self._wait(60.0)
        listed = {segment.base_offset // SIZE for segment in self.world.serving.commitlog.listed()}
        await self._require_rot_named(listed)
        astray = listed - self.broker.log.segments.keys() - self.broker.log.may_return
        assert not astray, f"listed, although they were removed: {sorted(astray)}"
        for index in sorted(self.broker.log.segments):
            await self.broker.check(index)
            contents = self.broker.log.contents(index)
            assert not contents or await self.broker.read(index) in contents
        assert self.broker.slowest_create_s < BROKER_S
        await self.broker.close()

    async def _require_rot_named(self, listed: set[int]) -> None:
        """A scrub finds each byte that rotted after the checksum of its segment was computed. A scrub of the
        messages finds each rotten message. Neither finds anything else."""
        # Also one that has come back with its disk.
        rotten = {index: rot for index, rot in self.broker.log.rotten.items() if index in listed}
        await self._scrub()
        found = self._damages()
        missed = {index for index, rot in rotten.items() if rot.had_checksum} - found.keys()
        assert not missed, f"rotten, and not reported by a scrub: {sorted(missed)}"
        assert found.keys() <= rotten.keys(), f"reported as damaged: {found}, and rotten are {sorted(rotten)}"
        await self._scrub(messages=True)
        named, expected = self._damages(), {index: (rot.message,) for index, rot in rotten.items()}
        assert named == expected, f"reported by a scrub of the messages: {named}, and rotten are {expected}"

    def _damages(self) -> dict[int, tuple[Range, ...]]:
        """The reported ranges in each damaged segment."""
        present = self.world.serving.parts.verdicts.present()
        return {segment.base_offset // SIZE: verdict.ranges for segment, verdict in present}

    async def _scrub(self, **fields: object) -> None:
        """Read everything once more, and wait for the end."""
        for _ in range(2):  # the first one may have been under way
            has_begun = await self.command("scrub-start", **fields)
            with trio.fail_after(7200.0):
                while self.world.serving.parts.scrub.is_active:  # noqa: ASYNC110 - simulated time
                    await trio.sleep(30.0)
        assert has_begun, "no scrub, although everything is well"


def _shown(fields: dict[str, object]) -> str:
    return " ".join(str(value).rpartition("/")[2] for value in fields.values())


@dataclass(frozen=True, slots=True)
class _Report:
    """The part of a StatusReport that RebalanceChanges needs, without a configuration and a mount."""

    parts: Parts

    async def rebalance_plan(self, mode: RebalanceMode, rate: int) -> dict[str, Any]:
        await self.parts.statfs_figures()
        return plan_report(self.parts, mode, rate, 0.0)


def require_right_disks(life: Life) -> None:
    """After the unmount: each segment of the log lies on one disk, and nothing else does."""
    found: dict[int, Path] = {}
    for path in map(Path, life.world.paths):
        assert not set_aside(path), f"{path.name} keeps removed files: {set_aside(path)}"
        for file in sorted(path.iterdir()):
            if not file.is_file():
                continue
            base = parse_segment_name(file.name.encode(), SIZE)
            assert base is not None, f"{file.name} is left on {path.name}"
            index = base // SIZE
            assert index not in found, f"segment {index} is on two disks"
            found[index] = file
    log, absent_once = life.broker.log, life.world.absent_once
    assert not set(log.segments) - set(found), f"lost: {sorted(set(log.segments) - set(found))}"
    known = log.segments.keys() | log.may_return
    # What was removed while its disk was away is back with that disk.
    returned = [index for index in found if index not in known and str(found[index].parent) not in absent_once]
    assert not returned, f"returned: {returned}"
    for index in log.segments:
        assert found[index].read_bytes() in log.contents(index), f"segment {index} has another content on its disk"
