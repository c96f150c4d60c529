"""A simulated machine: disks, one daemon after the other, and a kernel that keeps requests until one answers."""

import contextlib
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pyfuse3 import FUSEError
from support.pooled import Kernel
from support.simulation.daemon import SIZE, Daemon, Settings
from support.simulation.disks import SimulatedClock, SimulatedDisk, SimulatedDisks
from trio.testing import MockClock

from commitlogfs.fusefs import operations as operations_module
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool import birth
from commitlogfs.store.thresholds import Thresholds

START_S = 0.3
"""A successor answers after this time."""
REFUSED_S = 5.0
"""After this time, another daemon is started for one that has refused its disks."""


@dataclass(slots=True)
class OpeningKernel(Kernel):
    """A kernel that holds the files which its processes have open."""

    opened: Counter[int] = field(default_factory=Counter)

    def holds(self, inode: int) -> bool:
        return self.opened[inode] > 0


class PowerCutError(Exception):
    """The machine has lost its power, and with it the process that waited for this answer."""


class World:
    """The machine. `simulate` makes it, and its task calls `run`."""

    def __init__(self, directory: Path, seed: int, clock: MockClock, settings: Settings) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.clock = SimulatedClock(clock)
        self.disks = SimulatedDisks(self.clock, self.random, SIZE)
        self.settings = settings
        self.kernel = OpeningKernel()
        self.paths: list[str] = []
        """The disks that the configuration names."""
        self.daemon: Daemon | None = None
        self.deaths = 0
        self.power_cuts = 0
        self.slow_endings = 0
        """Daemons that were to end, and had to wait for a disk."""
        self.absent_once: set[str] = set()
        """Paths of disks that a daemon has not served at some time."""
        self.trace: list[str] = []
        """Events with their times, and those that the daemons log."""
        self._directory = directory
        self._held: set[str] = set()
        """Paths of disks that hold a dead daemon."""
        self._table_fd: int | None = None
        self._serving = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._is_ended = False

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.elapsed():.3f} {text}")

    # --- disks ---------------------------------------------------------------------------------------

    def add_disk(self) -> SimulatedDisk:
        """A disk that the configuration does not name yet."""
        return self.disks.add(self._directory / f"disk{len(self.disks.by_path) + 1}")

    def disk(self, index: int) -> SimulatedDisk:
        return self.disks.by_path[self.paths[index]]

    def init(self, count: int) -> None:
        for _ in range(count):
            self.paths.append(str(self.add_disk().path))
        with ExitStack() as stack:
            plan = birth.plan_init(self._specs(), SIZE, RootAttributes(0o755, 0, 0), stack)
            birth.execute(plan, self._specs(), stack)

    def _specs(self) -> tuple[DiskSpec, ...]:
        return tuple(DiskSpec(path, Thresholds()) for path in self.paths)

    def answer(self, disk: SimulatedDisk) -> None:
        """The disk answers again; the daemons that it has held end."""
        disk.answer()
        self._held.discard(str(disk.path))

    # --- daemons -------------------------------------------------------------------------------------

    async def run(self, task: Callable[[], Awaitable[None]]) -> None:
        """Mount, run `task`, unmount."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep)
            nursery.start_soon(self._watch_returns)
            await self._serving.wait()
            await task()
            self._is_ended = True
            daemon = self.serving
            daemon.stop()
            await daemon.has_ended.wait()
            nursery.cancel_scope.cancel()

    @property
    def serving(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon

    async def _keep(self) -> None:
        """Start one daemon after the other, as the keeper does."""
        while not self._is_ended:
            try:
                daemon = Daemon(
                    self.disks, self._specs(), self.settings, self.kernel, self._table_fd, frozenset(self._held)
                )
            except PoolError as error:
                self.note(f"refused: {error}")
                if self._table_fd is None and not self.power_cuts:
                    raise
                await trio.sleep(REFUSED_S)
                continue
            if self._table_fd is not None:
                os.close(self._table_fd)
            self._table_fd = daemon.table_fd
            self.daemon = daemon
            self.absent_once |= {*self.paths} - {disk.path for disk in daemon.commitlog.disks.values()}
            self.note(f"serves {len(daemon.commitlog.disks)} disks, {len(daemon.commitlog.catalog)} segments")
            self._serving.set()
            await daemon.run(self._stop_taking)
            self.slow_endings += daemon.ended_slowly
            self._close_descriptors()
            await trio.sleep(START_S)

    def _close_descriptors(self) -> None:
        """As the kernel does with those of a process that has ended."""
        below = f"{self._directory}/"
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # of the directory that was listed
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith(below):
                    os.close(int(descriptor))

    @property
    def is_serving(self) -> bool:
        return self._serving.is_set()

    def _stop_taking(self) -> None:
        """Requests wait for the next daemon."""
        self._serving = trio.Event()

    async def _watch_returns(self) -> None:
        """As mount/daemon/disk_returns.py: a disk that can be served again is taken up by the next daemon."""
        while True:
            await trio.sleep(self.settings.timing.daemon.returns_look_s)
            if not self._serving.is_set():
                continue
            log = self.serving.commitlog
            served = {disk.path for disk in log.disks.values()} | {member.path for member in log.offline()}
            away = [path for path in self.paths if path not in served]
            daemon = self.serving
            await daemon.while_alive(partial(daemon.look, self.paths))
            if any(self.disks.by_path[path].is_well and path not in self._held for path in away):
                self.restart()

    def restart(self) -> None:
        """Refused while a disk holds the daemon, as by mount/daemon/hand_over.py."""
        if self._serving.is_set() and not self.serving.is_held:
            self.note("restart")
            self.serving.stop()

    def kill_at_call(self, calls: int, kill: Callable[[], None] | None = None) -> None:
        """Kill the present daemon, or call `kill`, in the middle of a call for a disk: of the first one that a disk
        answers, with `calls` 0."""
        if self._serving.is_set():
            self.serving.threads.kill_at_call(calls, kill or self.kill)

    def kill(self) -> None:
        if not self._serving.is_set():
            return
        self.deaths += 1
        held = self.serving.kill(self.random)
        self._table_fd = self.serving.table_fd
        self._stop_taking()
        self._held |= held
        self.note(f"killed; held by {sorted(Path(path).name for path in held)}")

    def cut_power(self) -> None:
        """All processes end, and what is not on the media is gone. Disks that hung answer afterwards. Not while a
        disk is pulled out, whose medium lies elsewhere."""
        if any(disk.is_away for disk in self.disks.by_path.values()):
            return
        self.kill()
        for path in self.disks.by_path.values():
            self.answer(path)
            path.medium.cut_power(self.random)
        if self._table_fd is not None:
            os.close(self._table_fd)
            self._table_fd = None
        self.kernel.opened.clear()
        self.power_cuts += 1
        self.note("the power fails")

    def require_power(self, power_cuts: int) -> None:
        """Raises PowerCutError unless their number is still the same."""
        if self.power_cuts != power_cuts:
            raise PowerCutError

    # --- requests ------------------------------------------------------------------------------------

    async def request(self, op: str, *arguments: Any) -> Any:
        """The answer of a handler, of whichever daemon gives it. Raises FUSEError, PowerCutError."""
        was_sent, power_cuts = False, self.power_cuts
        while True:
            await self._serving.wait()
            self.require_power(power_cuts)
            daemon, answer = self.serving, _Answer()
            assert self._nursery is not None
            self._nursery.start_soon(self._ask, daemon, op, arguments, was_sent, answer)
            await _first_of(answer.is_there, daemon.has_ended)
            self.require_power(power_cuts)
            if answer.error is not None:
                raise answer.error
            if answer.is_there.is_set():
                return answer.value
            was_sent = True

    async def _ask(
        self, daemon: Daemon, op: str, arguments: tuple[Any, ...], was_sent: bool, answer: "_Answer"
    ) -> None:
        error: FUSEError | None = None
        _RESENT[0] = was_sent
        try:
            answer.value = await daemon.handle(op, arguments)
        except FUSEError as raised:
            error = raised
        if not daemon.threads.is_dead:  # else the kernel gets no answer
            answer.error = error
            answer.is_there.set()


class _Answer:
    def __init__(self) -> None:
        self.is_there = trio.Event()
        self.value: Any = None
        self.error: FUSEError | None = None


_RESENT = [False]
"""Whether the request that is handed to a handler now was sent before."""


async def _first_of(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


class _Notes(logging.Handler):
    """Adds the daemons' events to the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, object] = getattr(record, "fields", {})
        self._world.note(" ".join([f"    {record.getMessage()}", *(f"{key}={fields[key]}" for key in fields)]))


@contextmanager
def _events_noted(world: World) -> Iterator[None]:
    logger, notes = logging.getLogger("commitlogfs"), _Notes(world)
    former = logger.level, logger.propagate
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.level, logger.propagate = former


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Let trio choose the order of its tasks by the seed: a switch that it has for hypothesis-trio."""
    from trio._core import _run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(operations_module, "_last_was_resent", lambda: _RESENT[0])
        _run._r.seed(seed)
        random.seed(seed)
        yield


def simulate(directory: Path, seed: int, settings: Settings, task: Callable[[World], Awaitable[None]]) -> World:
    """Run a task in a simulated world. Its seed is shown if it fails."""
    clock = MockClock(autojump_threshold=0)
    directory.mkdir()
    world = World(directory, seed, clock, settings)

    async def main() -> None:
        await task(world)

    try:
        with _events_noted(world), _deterministic(seed), world.disks.system.simulated():
            trio.run(main, clock=clock)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *world.trace[-40:]]))
        raise
    return world
