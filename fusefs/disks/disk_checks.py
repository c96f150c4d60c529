"""Checks of every disk at intervals: with passthrough, the daemon does not see what the disks answer to others."""

import errno
import logging
import os
import random
from collections.abc import Callable
from functools import partial

import trio

from commitlogfs.fusefs.disks.check_child import CheckChild
from commitlogfs.fusefs.disks.disk_probes import DiskProbes
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.slow_disks import PROBE_CHECKS, SlowDisks
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.checks.check import BLOCKS_READ, DiskCheck, Stage
from commitlogfs.store.checks.check_policy import CheckPolicy
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk, DiskState, translate
from commitlogfs.store.disks.membership import DiskNumber, DrainMode
from commitlogfs.store.errors import DiskError, DiskFullError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.slowness.load import EndedRequests, Machine

log = logging.getLogger(__name__)


class DiskChecks:
    def __init__(
        self,
        commitlog: CommitLog,
        child: CheckChild,
        probes: DiskProbes,
        observer: Observer,
        save: Callable[[], None],
        threads: DiskThreads,
        machine: Machine,
    ) -> None:
        """`save` keeps what is known of the disks for the next daemon."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.checks
        self._probes = probes
        self._observer = observer
        self._save = save
        self._child = child
        self._threads = threads
        self._machine = machine
        self._slow = SlowDisks(commitlog, save, threads, machine)

    async def run(self, delay_s: float = 0.0) -> None:
        """Check all disks until cancelled."""
        await trio.sleep(delay_s)
        disks, interval_s = list(self._commitlog.disks.values()), self._timing.interval_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._child.run)
            nursery.start_soon(self._slow.run)
            for index, disk in enumerate(disks):
                nursery.start_soon(self._check_at_intervals, disk, index * interval_s / len(disks))

    async def finish(self, disk: DiskNumber) -> None:
        """As CheckChild.finish."""
        await self._child.finish(disk)

    async def _check_at_intervals(self, disk: Disk, delay_s: float) -> None:
        await trio.sleep(delay_s)
        policy = CheckPolicy(is_unreadable=disk.is_unreadable)
        while True:
            pause_s = await self._check(disk, policy)
            await trio.sleep(pause_s)

    async def _check(self, disk: Disk, policy: CheckPolicy) -> float:
        """Check a disk if that is due; the seconds until the next time."""
        is_suspected = disk.is_troubled or disk.is_unresponsive
        ended = await self._ended_requests(disk)
        if self._slow.probe_is_due(disk):
            await self._probe_slow(disk, policy)
        elif policy.is_due(ended, is_suspected=is_suspected):
            await self._ask(disk, policy, ended)
        if disk.is_troubled and not disk.is_unresponsive:
            await self._probes.probe(disk, self._timing.interval_s / 2)
        self._save()
        return self._timing.confirm_s if policy.is_confirming else self._timing.interval_s

    async def _probe_slow(self, disk: Disk, policy: CheckPolicy) -> None:
        await self._slow.begin_probe(disk)
        for _ in range(PROBE_CHECKS):
            if not await self._ask(disk, policy, await self._ended_requests(disk)):
                return  # it is slow until it answers
        await self._slow.end_probe(disk)

    # --- asking --------------------------------------------------------------------------------------

    async def _ask(self, disk: Disk, policy: CheckPolicy, ended: EndedRequests | None) -> bool:
        """Check a disk; whether there is an answer."""
        policy.begin(ended)
        answer = await self._answer(disk, policy)
        if answer is not None:
            self._record(disk, policy, answer)
        return answer is not None

    async def _answer(self, disk: Disk, policy: CheckPolicy) -> DiskCheck | None:
        """The answer, however long it takes; None if there is no child process, or it has ended."""
        asked_at_s = self._commitlog.clock.monotonic()
        asked = await self._child.ask(disk.number, self._samples(disk), may_write=_may_write(disk))
        while asked is not None:
            with trio.move_on_after(self._timing.observe_s):
                await asked.has_ended.wait()
            if asked.has_ended.is_set():
                return asked.answer
            ended, is_blocked = await self._ended_requests(disk), await self._child.is_blocked(asked)
            if asked.stage is not None and policy.observe(asked.stage, ended, is_blocked=is_blocked):
                self._record_silence(disk, asked.stage, asked_at_s)
        return None

    def _samples(self, disk: Disk) -> list[bytes]:
        """Names of segments to read, if possible without those to which a broker writes."""
        segments = self._commitlog.catalog.on_disk(disk.number)
        newest = self._commitlog.catalog.newest(NEWEST_KEPT)
        chosen = random.sample(segments, min(len(segments), BLOCKS_READ + len(newest)))
        settled = [segment for segment in chosen if segment not in newest]
        return [segment.name for segment in (settled or chosen)[:BLOCKS_READ]]

    async def _ended_requests(self, disk: Disk) -> EndedRequests | None:
        return await self._threads.aside(partial(self._machine.ended_requests, disk.device))

    # --- results -------------------------------------------------------------------------------------

    def _record_silence(self, disk: Disk, stage: Stage, asked_at_s: float) -> None:
        now_s = self._commitlog.clock.monotonic()
        if not disk.is_unresponsive:
            self._observer.disk_error(disk.path, f"check-{stage.value}", "ETIMEDOUT")
            log_event(
                log,
                logging.ERROR,
                "disk_unresponsive",
                disk=disk.path,
                stage=stage.value,
                seconds=now_s - asked_at_s,
            )
        health.record_silence(disk, asked_at_s, now_s, self._commitlog.timing.health)
        self._save()

    def _record(self, disk: Disk, policy: CheckPolicy, check: DiskCheck) -> None:
        now_s = self._commitlog.clock.monotonic()
        if disk.is_unresponsive:
            health.record_answer(disk)
            log_event(log, logging.WARNING, "disk_responsive", disk=disk.path)
        if check.failed:
            self._observer.disk_error(disk.path, "check-reading", _name(check.read_errno))
        if policy.record_reads(check):
            reason = os.strerror(check.read_errno) if policy.is_unreadable else ""
            health.record_unreadable(disk, reason)
            if reason:
                log_event(log, logging.ERROR, "disk_unreadable", disk=disk.path, reason=reason)
            else:
                log_event(log, logging.WARNING, "disk_readable", disk=disk.path)
        error = translate(disk.path, OSError(check.write_errno, "")) if check.write_errno else None
        if isinstance(error, DiskError) and not isinstance(error, DiskFullError):
            self._observer.disk_error(disk.path, "check-writing", _name(check.write_errno))
            if not disk.is_troubled:
                log_event(log, logging.WARNING, "disk_check_failed", disk=disk.path, reason=str(error))
            health.record_error(disk, error, now_s, self._commitlog.timing.health)


def _name(code: int) -> str:
    return errno.errorcode.get(code, "EIO")


def _may_write(disk: Disk) -> bool:
    """Not a disk that is only being saved, or that was unmounted, and not one that is known to refuse it: probes
    tell when it is well."""
    is_saved = disk.drain is not None and disk.drain.mode is DrainMode.FAILING
    refuses = (disk.is_failing or disk.is_read_only) and not disk.is_unresponsive
    return disk.state is DiskState.RW and not (is_saved or refuses or disk.is_vanished)
