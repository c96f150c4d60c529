"""Measurements of disk usage that are not older than the caller allows, without waiting for a hung disk."""

import errno
from functools import partial

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.disk_threads import DiskThreads, PromptCalls
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import measure_usage
from commitlogfs.store.pool.commitlog import CommitLog


class UsageMonitor:
    def __init__(self, commitlog: CommitLog, threads: DiskThreads, observer: Observer) -> None:
        self._commitlog = commitlog
        self._calls = PromptCalls(threads)
        self._observer = observer
        self._deadline_s = commitlog.timing.requests.usage_s
        self._measured_at = float("-inf")
        self._lock = trio.Lock()

    async def refresh(self, max_age_s: float) -> None:
        """Measure all disks unless the last measurement is younger than `max_age_s`."""
        async with self._lock:
            if self._is_young(max_age_s):
                return
            began_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in self._commitlog.disks:
                    nursery.start_soon(self._measure, number)
            self._measured_at = began_s  # a disk that does not answer makes the figures of the others old

    async def refresh_soon(self, max_age_s: float, patience_s: float) -> None:
        """As `refresh`, but wait for `patience_s` at most: the measurement continues without the caller."""
        if not self._is_young(max_age_s):
            with trio.move_on_after(patience_s):
                await AbandonableWork(partial(self.refresh, max_age_s)).wait()

    def _is_young(self, max_age_s: float) -> bool:
        return trio.current_time() - self._measured_at < max_age_s

    async def _measure(self, number: DiskNumber) -> None:
        disk = self._commitlog.disks[number]
        measure, late = partial(measure_usage, disk.dirfd), partial(self._commitlog.space.record_usage, number)
        try:
            usage = await self._calls.run_within(number, self._deadline_s, measure, late)
        except TimeoutError:
            self._observer.disk_error(disk.path, "statfs", "ETIMEDOUT")
            self._commitlog.space.record_usage(number, None)
        except OSError as error:
            self._observer.disk_error(disk.path, "statfs", errno.errorcode.get(error.errno or 0, "EIO"))
            self._commitlog.space.record_usage(number, None)
        else:
            self._commitlog.space.record_usage(number, usage)
