"""Contents of files that are compared before one of them is removed (store/moves/former.py).

Each disk has its own task, which reads only files of that disk, one after the other, and gives way to moves. So a
disk that hangs, or is slow, delays only the comparisons in which it takes part.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.integrity.paced_work import Pace, PacedJob, run_watched
from commitlogfs.store.checksum import Checksum
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import SegmentChangedError
from commitlogfs.store.files.hashing import SegmentHash
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.slowness.load import THIS_MACHINE, Machine


@dataclass(slots=True)
class _Reading:
    """One file that was read, or is to be read."""

    file: Segment
    is_requested: bool = False
    found: Checksum | None = None
    """The checksum of the content that its device has returned."""
    failure: str = ""
    """Why it could not be read at the last attempt."""
    retry_at_s: float = -math.inf
    count: int = 0
    """Attempts that have ended."""
    when_read: list[Callable[[], None]] = field(default_factory=list)
    """Called after the next attempt."""


class _Worker:
    """State of one disk. A thread of the disk runs `read`; all else belongs to the event loop."""

    def __init__(self, disk: Disk, commitlog: CommitLog, machine: Machine) -> None:
        self.disk = disk
        self._clock = commitlog.clock
        self._pace = Pace(disk, commitlog, machine)
        self.readings: dict[int, _Reading] = {}
        """By inode."""
        self.job: PacedJob | None = None
        self.requested = trio.Event()

    def read(self, file: Segment, job: PacedJob) -> Checksum | None:
        """None if it was stopped. Blocks. Raises OSError, SegmentChangedError."""
        hashing = SegmentHash(self.disk.dirfd, file.name, file.ino, self._clock, is_direct=True)
        try:
            return hashing.checksum() if self._pace.read_all(job, hashing.read_chunk) else None
        finally:
            hashing.close()


class Readings:
    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        gives_way: Callable[[DiskNumber], bool],
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """`gives_way` returns whether more urgent work is done on a disk."""
        self._commitlog = commitlog
        self._timing = commitlog.timing
        self._threads = threads
        self._gives_way = gives_way
        self._workers = {number: _Worker(disk, commitlog, machine) for number, disk in commitlog.disks.items()}

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for worker in self._workers.values():
                nursery.start_soon(self._run_for, worker)

    def request(self, file: Segment, when_read: Callable[[], None]) -> str:
        """Have a file read; `when_read` is called after the attempt. Returns why the last one has failed; empty
        without one."""
        worker = self._workers[file.disk]
        reading = self._reading(file)
        if reading is None:
            reading = worker.readings[file.ino] = _Reading(file)
        reading.is_requested = True
        reading.when_read.append(when_read)
        worker.requested.set()
        return reading.failure

    def found(self, file: Segment) -> Checksum | None:
        """The checksum of the content that was read of a file, in its state then; None if it was not read."""
        reading = self._reading(file)
        return None if reading is None else reading.found

    def count(self, file: Segment) -> int:
        """Attempts to read a file that have ended."""
        reading = self._reading(file)
        return 0 if reading is None else reading.count

    def forget(self, file: Segment) -> None:
        """A file is gone, or has no more to be compared."""
        if self._reading(file) is not None:
            del self._workers[file.disk].readings[file.ino]

    def _reading(self, file: Segment) -> _Reading | None:
        reading = self._workers[file.disk].readings.get(file.ino)
        return reading if reading is not None and reading.file is file else None

    async def _run_for(self, worker: _Worker) -> None:
        while True:
            if not await self.read_next(worker.disk.number):
                with trio.move_on_after(self._timing.moves.look_s):
                    await worker.requested.wait()
                worker.requested = trio.Event()

    async def read_next(self, number: DiskNumber) -> bool:
        """Read one of the files of a disk that are asked for. False if none can be read now."""
        worker, now_s = self._workers[number], self._commitlog.clock.monotonic()
        if worker.disk.is_unresponsive or self._gives_way(number):
            return False
        worker.readings = {ino: one for ino, one in worker.readings.items() if self._is_present(one.file)}
        readings = (one for one in worker.readings.values() if one.is_requested and one.retry_at_s <= now_s)
        reading = next(readings, None)
        if reading is None:
            return False
        await self._read(worker, reading)
        return True

    async def _read(self, worker: _Worker, reading: _Reading) -> None:
        file, number = reading.file, worker.disk.number
        worker.job = job = PacedJob()

        def watch() -> None:
            job.is_paused = self._gives_way(number)
            job.sharing = sum(other.job is not None for other in self._workers.values())
            if not self._is_present(file):
                job.stopped.set()

        try:
            call = partial(self._threads.run_within, number, math.inf, partial(worker.read, file, job))
            found = await run_watched(call, watch, self._timing.pace.look_s)
        except (OSError, SegmentChangedError) as error:
            reading.failure = str(error)
            reading.retry_at_s = self._commitlog.clock.monotonic() + self._timing.moves.unreadable_retry_s
        else:
            if found is None:
                return
            reading.found, reading.failure, reading.is_requested = found, "", False
        finally:
            job.stopped.set()  # for a thread that is left behind
            worker.job = None
        reading.count += 1
        reminders, reading.when_read = reading.when_read, []
        for remind in reminders:
            remind()

    def _is_present(self, file: Segment) -> bool:
        return self._commitlog.catalog.holds(file) or self._commitlog.others.get(file.disk, file.ino) is file
