"""Reading much of a disk in the background: at a rate or in idle time, with pauses, and until it is to stop."""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.moves.throttle import Throttle
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.slowness.load import Machine, MachineLoad

T = TypeVar("T")


@dataclass(slots=True)
class PacedJob:
    """One piece of work. The event loop sets the flags, and the thread of the disk follows them."""

    stopped: threading.Event = field(default_factory=threading.Event)
    is_paused: bool = False
    is_resting: bool = False
    """Set by the thread: whether it waits for the rate, or for the end of a pause, and not for the disk."""
    sharing: int = 1
    """Number of disks on which such work is done: they share the processors."""
    ended: trio.Event = field(default_factory=trio.Event)

    async def end(self) -> None:
        """Let the work end, and return when it has closed its file."""
        self.stopped.set()
        await self.ended.wait()


class Pace:
    """How fast a disk is read. For one thread; only `rate` may be changed by another one."""

    def __init__(self, disk: Disk, commitlog: CommitLog, machine: Machine) -> None:
        self._disk = disk
        self._clock = commitlog.clock
        self._timing = commitlog.timing.pace
        self._throttle = Throttle(commitlog.timing.pace)
        self._load = MachineLoad(commitlog.timing.pace.load_s, machine)
        self._rate = 0
        self.rate = 0
        """Bytes per second; 0 if none is given."""

    def read_all(self, job: PacedJob, read_chunk: Callable[[], int]) -> bool:
        """Call `read_chunk`, which returns the number of bytes that it has read, until it returns 0. False if the
        work is to end before. Raises its errors."""
        while self.may_continue(job):
            began_s, processor_s = self._clock.monotonic(), self._clock.processor()
            count = read_chunk()
            if not count:
                return True
            self.record(job, count, began_s, self._clock.processor() - processor_s)
        return False

    def may_continue(self, job: PacedJob) -> bool:
        """Wait until the next bytes may be read. False if the work is to end."""
        while not job.stopped.is_set():
            if self._rate != self.rate:
                self._rate = self.rate
                self._throttle.forget()
            pause_s = self._timing.state_s if job.is_paused else self._throttle.pause_s(self._clock.monotonic())
            job.is_resting = pause_s > 0
            if not pause_s:
                return True
            job.stopped.wait(pause_s)
        return False

    def record(self, job: PacedJob, count: int, began_s: float, processor_s: float) -> None:
        """`count` bytes were read since `began_s`, for which a processor has worked `processor_s`."""
        ended_s = self._clock.monotonic()
        # The disks work side by side, but they share the processors.
        cost_s = min(max(ended_s - began_s, processor_s * job.sharing), self._timing.longest_cost_s)
        if self._load.is_due(ended_s):
            self._load.busy([self._disk.device], ended_s)
        self._throttle.record(self._rate, count, ended_s - cost_s, ended_s, self._load.latest)


async def run_watched(work: Callable[[], Awaitable[T]], watch: Callable[[], None], interval_s: float) -> T:
    """Result of `work`, with `watch` called every `interval_s` meanwhile. Raises what `work` raises."""

    async def keep_watching() -> None:
        while True:
            watch()
            await trio.sleep(interval_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_watching)
        failure: Exception | None = None
        try:
            result = await work()
        except Exception as error:
            failure = error  # a nursery would wrap it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result
