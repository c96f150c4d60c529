"""One simulated daemon: the real parts and request handlers of a mount, without a kernel and without threads."""

import contextlib
import math
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import trio
from support.pooled import Kernel
from support.simulation.disks import SimulatedChild, SimulatedDisk, SimulatedDisks, SimulatedThreads

from commitlogfs.fusefs import connection
from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.mount.daemon import start_cleanup
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import OnMissing, find_retired, open_pool, require_mountable
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.timing import Timing

SIZE = 16 * 1024
"""Bytes of a segment."""
LONG_S = 1.0
"""A call that lasts as long is held by its disk."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a configuration file, and the times."""

    timing: Timing
    retention: RetentionRules = field(default_factory=RetentionRules)
    scrub: ScrubRules = field(default_factory=ScrubRules)
    placement: str = "round-robin"


async def _nothing() -> bytes:
    return b""


@contextlib.contextmanager
def _pardoned(threads: SimulatedThreads) -> Iterator[None]:
    """Ignore errors of the tasks of a dead daemon: in truth they have ended before."""
    try:
        yield
    except Exception:
        if not threads.is_dead:
            raise


class Daemon:
    """Serves the disks `specs`. Raises PoolError if it refuses them."""

    def __init__(
        self,
        disks: SimulatedDisks,
        specs: tuple[DiskSpec, ...],
        settings: Settings,
        kernel: Kernel,
        table_fd: int | None,
        held: frozenset[str],
    ) -> None:
        """`table_fd`: the backing table that former daemons of this mount have left, None for a new mount. `held`:
        paths of disks that still hold one of them."""
        self.takes_over = table_fd is not None
        table = BackingTable.create(0) if table_fd is None else BackingTable.open(os.dup(table_fd), 0)
        opened = (inodes.decode(inode) for inode, _ in table)
        pool = open_pool(
            specs,
            SIZE,
            check_in_use=False,
            is_mounted=self.takes_over,
            opened={(file.disk, file.ino) for file in opened if file is not None},
            held=held,
            dying=(1,) if held else (),
            clock=disks.clock,
        )
        self.commitlog = CommitLog(pool, POLICIES[settings.placement], disks.clock, settings.timing)
        require_mountable(pool, OnMissing.DEGRADED, takes_over=self.takes_over)
        for disk in pool.disks:
            disk.device = disks.device(disk.path)
        if not self.takes_over:
            start_cleanup.clean_up(pool)
        for file in find_retired(pool):
            self.commitlog.record_found_retired(file)
        self.pool = pool
        served: dict[DiskNumber, SimulatedDisk] = {disk.number: disks.by_path[disk.path] for disk in pool.disks}
        self.threads = SimulatedThreads(served, disks.clock, disks.system)
        self.parts = Parts(
            self.commitlog,
            settings.retention,
            settings.scrub,
            SilentObserver(),
            kernel,
            threads=self.threads,
            child=SimulatedChild(served, disks),
            machine=disks,
        )
        self.operations = CommitLogOperations(self.parts, ControlContents(_nothing, _nothing))
        self.parts.backing.begin(table, None, "simulated")
        self.table_fd = os.dup(table.fd)
        if self.takes_over:
            connection.take_up(self.operations, state_lost=False, resend=lambda: None)
        else:
            connection.begin(self.operations)
        self.has_ended = trio.Event()
        self.ended_slowly = False
        self._stopped_s = math.inf
        self._in_hand = 0
        self._answered = trio.Event()
        self._scope = trio.CancelScope()
        self._stops = trio.Event()

    async def run(self, stop_taking: Callable[[], None]) -> None:
        """Serve until `stop` or `kill`. `stop_taking` is called when no further request may come."""
        with closing(self.commitlog), _pardoned(self.threads):
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.parts.start(nursery, is_successor=self.takes_over)
                    if self.takes_over:
                        start_cleanup.clean_up_after_takeover(self.pool)
                    await self._stops.wait()
                    stop_taking()
                    while self._in_hand:
                        await self._answered.wait()
                        self._answered = trio.Event()
                    await self.parts.finish()
                    nursery.cancel_scope.cancel()
                await self.parts.sources.finish()
            self.parts.close()
        self.ended_slowly = self.commitlog.clock.monotonic() - self._stopped_s > LONG_S
        self.has_ended.set()

    async def handle(self, op: str, arguments: tuple[Any, ...]) -> Any:
        """The answer to a request. Raises FUSEError."""
        self._in_hand += 1
        try:
            return await getattr(self.operations, op)(*arguments)
        finally:
            self._in_hand -= 1
            self._answered.set()

    async def while_alive(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task of this daemon, which ends with it."""

        async def end_with_it() -> None:
            await self.has_ended.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_with_it)
            await task()
            nursery.cancel_scope.cancel()

    async def look(self, paths: list[str]) -> None:
        """As mount/daemon/disk_returns.py does at intervals."""
        await self.parts.disk_places.look(paths)

    @property
    def is_held(self) -> bool:
        """Whether a disk holds a thread, so that the daemon cannot end."""
        return any(self.threads.longest_s(number) > LONG_S for number in self.commitlog.disks)

    def stop(self) -> None:
        """End as for `restart`: what was promised is finished."""
        self._stopped_s = self.commitlog.clock.monotonic()
        self._stops.set()

    def kill(self, seed: random.Random) -> frozenset[str]:
        """As SIGKILL does. Returns the paths of disks that hold threads of it."""
        held = self.threads.die(seed)
        # What tasks of the dead daemon still do to its table has no effect.
        size, former, self.table_fd = os.fstat(self.table_fd).st_size, self.table_fd, os.memfd_create("table")
        os.pwrite(self.table_fd, os.pread(former, size, 0), 0)
        os.close(former)
        self._scope.cancel()
        return frozenset(self.commitlog.disks[number].path for number in held)
