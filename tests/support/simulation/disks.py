"""Simulated disks: real directories, whose calls take simulated time, fail, hang, and return.

A disk's directory is ordinary, so the product's own functions work on it. What is simulated is when a call ends and
whether it fails: every call of a daemon for a disk passes through SimulatedThreads.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import trio
from support.simulation.power import Medium, Recorder
from support.simulation.system_calls import SystemCalls
from trio.testing import MockClock

from commitlogfs.fusefs.disks.check_child import Asked, CheckChild
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.kernel_waits import Wait
from commitlogfs.store.checks.check import BLOCKS_READ, DiskCheck, Stage
from commitlogfs.store.checks.place import NOWHERE, Place, look
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.slowness.load import DeviceCounters, EndedRequests, Machine, WholeDevice

T = TypeVar("T")

BEGIN_S = 1_900_000_000.0
"""Wall clock at the beginning of each simulation: later than the times of real files, which are all old then."""
UPTIME_S = 5000.0
LATENCY_S = 0.001
_DEVICES = 1_000_000


class SimulatedClock:
    """Times of a MockClock, from a fixed moment on."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self._begin_s = clock.current_time()

    def elapsed(self) -> float:
        return self._clock.current_time() - self._begin_s

    def monotonic(self) -> float:
        return UPTIME_S + self.elapsed()

    def boottime(self) -> float:
        return self.monotonic()

    def wall_ns(self) -> int:
        return round(self.wall() * 1e9)

    def wall(self) -> float:
        return BEGIN_S + self.elapsed()

    def processor(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a thread would wait, but there are none")


@dataclass(eq=False)
class SimulatedDisk:
    path: Path
    clock: SimulatedClock
    random: random.Random
    medium: Medium
    latency_s: float = LATENCY_S
    """Mean time of a request."""
    fault: int = 0
    """Error of every request; 0 for none."""
    capacity: int = 400
    """Segments for which it has room."""
    is_away: bool = False
    """Whether its path leads nowhere: it was pulled out."""
    reads: int = 0
    writes: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    busy_s: float = 0.0
    under_way: int = 0
    _answers: trio.Event | None = None
    """Set when a disk that hangs answers again; None for another one."""
    _busy_since_s: float = 0.0

    @property
    def hangs(self) -> bool:
        return self._answers is not None

    @property
    def is_well(self) -> bool:
        return not (self.hangs or self.fault or self.is_away)

    def shrink(self, capacity: int) -> None:
        """Have room for `capacity` segments only, but for those that are there."""
        self.capacity = max(capacity, self.used() + 1)

    def used(self) -> int:
        return _count_files(self.path)

    def pull_out(self) -> None:
        """Requests of those that have it open fail."""
        self.is_away = True
        self.path.rename(self._elsewhere)

    def put_back(self) -> None:
        self._elsewhere.rename(self.path)
        self.is_away = False

    @property
    def _elsewhere(self) -> Path:
        return self.path.with_name(f"{self.path.name}.away")

    def hang(self) -> None:
        if self._answers is None:
            self._answers = trio.Event()

    def answer(self) -> None:
        """Answer again, also what was asked meanwhile."""
        if self._answers is not None:
            self._answers.set()
            self._answers = None

    async def serve(self, *, writes: bool) -> None:
        """One request."""
        began_s = self.clock.elapsed()
        if not self.under_way:
            self._busy_since_s = began_s
        self.under_way += 1
        try:
            await trio.sleep(self.latency_s * self.random.uniform(0.5, 1.5))
            while self._answers is not None:
                await self._answers.wait()
        finally:
            self.under_way -= 1
            now_s = self.clock.elapsed()
            if not self.under_way:
                self.busy_s += now_s - self._busy_since_s
        if writes:
            self.writes += 1
            self.write_s += now_s - began_s
        else:
            self.reads += 1
            self.read_s += now_s - began_s

    @property
    def error(self) -> int:
        """Error of each request that it ends now; 0 for none."""
        return errno.EIO if self.is_away else self.fault

    def counters(self) -> DeviceCounters:
        busy_s = self.busy_s + (self.clock.elapsed() - self._busy_since_s if self.under_way else 0.0)
        return DeviceCounters(
            reads=self.reads,
            read_bytes=self.reads * 4096,
            read_ms=round(self.read_s * 1000),
            writes=self.writes,
            write_bytes=self.writes * 4096,
            write_ms=round(self.write_s * 1000),
            flush_ms=0,
            busy_ms=round(busy_s * 1000),
            under_way=self.under_way,
        )


def _count_files(directory: str | Path) -> int:
    """Files below a directory; 0 if it is not there. A life asks thousands of times."""
    try:
        with os.scandir(directory) as entries:
            return sum(_count_files(one.path) if one.is_dir() else 1 for one in entries)
    except FileNotFoundError:
        return 0


class SimulatedDisks(Machine):
    """All disks of a simulation, and the machine that has them."""

    def __init__(self, clock: SimulatedClock, seed: random.Random, segment_size: int) -> None:
        self.clock = clock
        self.segment_size = segment_size
        self.random = seed
        self.system = SystemCalls(self._room, Recorder(self._medium))
        self.by_path: dict[str, SimulatedDisk] = {}
        self._paths: list[str] = []

    def add(self, path: Path) -> SimulatedDisk:
        path.mkdir()
        medium = Medium(path, path.with_name(f"{path.name}.removed"), self.clock.elapsed)
        disk = self.by_path[str(path)] = SimulatedDisk(path, self.clock, self.random, medium)
        self._paths.append(str(path))
        return disk

    def _room(self, path: str) -> tuple[int, int] | None:
        """Bytes of the disk on which a file lies, and those of them that are free."""
        disk = next((disk for key, disk in self.by_path.items() if path == key or path.startswith(f"{key}/")), None)
        if disk is None:
            return None
        return disk.capacity * self.segment_size, max(0, disk.capacity - disk.used()) * self.segment_size

    def _medium(self, path: str) -> Medium | None:
        return next((disk.medium for disk in self.by_path.values() if disk.medium.has(path)), None)

    def device(self, path: str) -> int:
        """A device number for each disk, as they share the filesystem of their directories."""
        return _DEVICES + self._paths.index(path)

    def whole_device(self, device: int) -> WholeDevice | None:
        return WholeDevice(device, is_rotational=False)

    def ended_requests(self, device: int) -> EndedRequests | None:
        counters = self.device_counters(device)
        return EndedRequests(counters.reads, counters.writes)

    def device_counters(self, device: int) -> DeviceCounters:
        return self.by_path[self._paths[device - _DEVICES]].counters()

    def processor_times(self) -> tuple[int, int]:
        return 0, round(self.clock.elapsed() * 100)


@dataclass(eq=False)
class _Call:
    """A call that a disk has not answered."""

    work: Callable[[], object]
    limiter: trio.CapacityLimiter
    began_s: float
    ended: trio.Event = field(default_factory=trio.Event)
    result: list[object] = field(default_factory=list)
    error: Exception | None = None


class SimulatedThreads(DiskThreads):
    """The threads of one daemon. After its death no call has an effect, and each fails."""

    def __init__(self, disks: dict[DiskNumber, SimulatedDisk], clock: SimulatedClock, system: SystemCalls) -> None:
        super().__init__(disks)
        self._clock = clock
        self._simulated = disks
        self._system = system
        self._left = 0
        """Calls until it is killed, if `_kill` says how."""
        self._kill: Callable[[], None] | None = None
        self._calls: dict[DiskNumber, list[_Call]] = {number: [] for number in disks}
        """In the order in which they began."""
        self.is_dead = False

    async def aside(self, function: Callable[[], T], *, may_be_abandoned: bool = False) -> T:
        await self._require_alive()
        return function()

    def longest_s(self, disk: DiskNumber) -> float:
        """How long the oldest call under way on a disk lasts; 0 without one."""
        begun_s = min((call.began_s for call in self._calls[disk]), default=None)
        return 0.0 if begun_s is None else self._clock.monotonic() - begun_s

    def waits(self) -> set[Wait]:
        return {Wait(id(call), f"disk-{number}", 0) for number, calls in self._calls.items() for call in calls}

    async def _call(
        self, disk: DiskNumber, limiter: trio.CapacityLimiter, function: Callable[[], T], *, may_be_abandoned: bool
    ) -> T:
        await self._require_alive()
        call = _Call(function, limiter, self._clock.monotonic())
        await limiter.acquire_on_behalf_of(call)
        if self.is_dead:
            raise _of_the_dead()
        self._calls[disk].append(call)
        trio.lowlevel.spawn_system_task(self._make, disk, call)
        with trio.CancelScope(shield=not may_be_abandoned):
            await call.ended.wait()
        if call.error is not None:
            raise call.error
        return cast("T", call.result[0])

    async def _make(self, disk: DiskNumber, call: _Call) -> None:
        """The work of a thread."""
        try:
            await self._simulated[disk].serve(writes=True)
            self._count_down()
            if not self.is_dead:
                with self._system.failing(self._simulated[disk].error):
                    call.result.append(call.work())
        except Exception as error:
            call.error = call.error or error
        finally:
            self._calls[disk].remove(call)
            call.limiter.release_on_behalf_of(call)
            call.ended.set()

    def kill_at_call(self, calls: int, kill: Callable[[], None]) -> None:
        self._left, self._kill = calls, kill

    def _count_down(self) -> None:
        if self._kill is not None and not self.is_dead:
            self._left -= 1
            if self._left < 0:
                self._kill()

    async def _require_alive(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_dead:
            raise _of_the_dead()

    def die(self, seed: random.Random) -> set[DiskNumber]:
        """The daemon is killed. Each of its calls has had its effect already, a part of it, or never has one.
        Returns the disks that hold threads of it."""
        held = {number for number, calls in self._calls.items() if calls and self._simulated[number].hangs}
        for number in sorted(self._calls):
            disk = self._simulated[number]
            for call in self._calls[number]:
                if not disk.error:
                    self._system.make_partly(call.work, seed.choice([0, 0, 1, 2, 3, 100]))
                call.error = _of_the_dead()
                call.ended.set()
        self.is_dead = True
        return held


def _of_the_dead() -> OSError:
    """A task of a dead daemon that has not ended yet gets this."""
    return OSError(errno.EIO, "this daemon is dead")


class SimulatedChild(CheckChild):
    """Checks simulated disks."""

    def __init__(self, disks: dict[DiskNumber, SimulatedDisk], machine: SimulatedDisks) -> None:
        self._simulated = disks
        self._machine = machine
        self._under_way: dict[int, DiskNumber] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def ask(self, disk: DiskNumber, names: Sequence[bytes], *, may_write: bool) -> Asked | None:
        if self._nursery is None:
            return None
        asked = Asked(0)
        self._under_way[id(asked)] = disk
        self._nursery.start_soon(partial(self._check, asked, disk, len(names), may_write=may_write))
        return asked

    async def _check(self, asked: Asked, number: DiskNumber, names: int, *, may_write: bool) -> None:
        disk, read, failed, read_errno, write_errno = self._simulated[number], 0, 0, 0, 0
        asked.stage = Stage.READING
        for _ in range(BLOCKS_READ if names else 0):
            await disk.serve(writes=False)
            read, failed, read_errno = (
                (read, failed + 1, disk.error) if disk.error else (read + 1, failed, read_errno)
            )
        if may_write:
            asked.stage = Stage.WRITING
            await disk.serve(writes=True)
            write_errno = disk.error
            if not read and not failed:  # then what was written is read back
                read, failed, read_errno = (0, 0, 0) if disk.error else (1, 0, 0)
        asked.answer = DiskCheck(read, failed, read_errno, write_errno)
        asked.has_ended.set()
        del self._under_way[id(asked)]

    async def finish(self, disk: DiskNumber) -> None:
        while disk in self._under_way.values():  # noqa: ASYNC110 - simulated time
            await trio.sleep(LATENCY_S)

    async def is_blocked(self, asked: Asked) -> bool:
        await trio.lowlevel.checkpoint()
        return id(asked) in self._under_way and self._simulated[self._under_way[id(asked)]].hangs

    def waits(self) -> set[tuple[DiskNumber, Wait]]:
        return {(disk, Wait(asked, "check", 0)) for asked, disk in self._under_way.items()}

    async def look(self, path: str, patience_s: float) -> Place | None:
        disk = self._machine.by_path.get(path)
        if disk is None or disk.is_away:
            await trio.lowlevel.checkpoint()
            return NOWHERE
        with trio.move_on_after(patience_s):
            await disk.serve(writes=False)
            if disk.error:
                return None
            found = look(path)
            return Place(self._machine.device(path), found.inode, found.pool_id, found.disk_id, found.number)
        return None
