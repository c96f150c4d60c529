"""Probes of disks in trouble: they end a suspicion without waiting for the next create, and confirm a loss."""

import math
from collections.abc import Callable

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads, SingleCalls
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.checks.probe import DiskProbe, probe_disk
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFullError
from commitlogfs.store.pool.commitlog import CommitLog

SAMPLES = 3
"""Number of segments that a probe reads, evenly spread from the oldest to the newest. One bad block is not a lost
disk."""


class DiskProbes:
    def __init__(
        self, commitlog: CommitLog, threads: DiskThreads, observer: Observer, save: Callable[[], None]
    ) -> None:
        """`save` keeps what is known of the disks for the next daemon."""
        self._commitlog = commitlog
        self._clock = commitlog.clock
        self._save = save
        self._calls = SingleCalls(threads)
        self._observer = observer
        self._locks = {number: trio.Lock() for number in commitlog.disks}
        self._probed_at_s: dict[DiskNumber, float] = {}
        """Monotonic times of the latest probes."""

    async def run(self, also: frozenset[DiskNumber] = frozenset()) -> None:
        """Probe every disk that is in trouble or not rw, and those in `also`."""
        async with trio.open_nursery() as nursery:
            for disk in self._commitlog.disks.values():
                is_suspected = disk.is_troubled or disk.unreadable_since_s is not None
                if is_suspected or disk.state is not DiskState.RW or disk.number in also:
                    nursery.start_soon(self.probe, disk)

    async def probe(self, disk: Disk, max_age_s: float = 0.0) -> None:
        """Probe a disk, unless its latest probe is younger than `max_age_s`."""
        async with self._locks[disk.number]:
            now_s = self._clock.monotonic()
            if now_s - self._probed_at_s.get(disk.number, -math.inf) >= max_age_s:
                self._probed_at_s[disk.number] = now_s
                await self._probe(disk)
                self._save()

    async def _probe(self, disk: Disk) -> None:
        number, path, dirfd = disk.number, disk.path, disk.dirfd
        size, names = self._commitlog.segment_size, self._samples(number)
        may_write = disk.state is DiskState.RW  # a cordoned disk is not written, not even by a probe
        if disk.is_unresponsive or self._calls.is_under_way(number):  # a thread that hangs would hold the daemon
            health.record_no_answer(disk, self._clock.monotonic(), self._commitlog.timing.health)
            return

        def work() -> DiskProbe:
            return probe_disk(path, dirfd, names, size, may_write=may_write)

        try:
            probe = await self._calls.run_within(number, self._commitlog.timing.checks.probe_s, work)
        except TimeoutError:
            self._observer.disk_error(path, "probe", "ETIMEDOUT")
            health.record_no_answer(disk, self._clock.monotonic(), self._commitlog.timing.health)
            return
        now_s = self._clock.monotonic()
        disk.is_read_only = probe.is_read_only
        if may_write:
            health.record_attempt(disk, probe.error, now_s)
        is_well = may_write and (probe.error is None or isinstance(probe.error, DiskFullError))
        if not is_well and not probe.is_readable:
            self._observer.disk_error(path, "probe", "EIO")
        health.record_readability(disk, is_readable=is_well or probe.is_readable, now_s=now_s)

    def _samples(self, number: DiskNumber) -> tuple[bytes, ...]:
        segments = self._commitlog.catalog.on_disk(number)
        if len(segments) > SAMPLES:
            step = (len(segments) - 1) / (SAMPLES - 1)
            segments = [segments[round(index * step)] for index in range(SAMPLES)]
        return tuple(segment.name for segment in segments)
