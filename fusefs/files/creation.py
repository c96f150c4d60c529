"""Creates: on the first disk of the plan that takes the segment, within the time that a broker waits."""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import trio

from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.attempts import Attempt, Attempts, AttemptsUnderWay
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handle, Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.decisions import Placement
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import (
    DiskError,
    DiskSilentError,
    NoDiskAvailableError,
    SegmentExistsError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner, Published
from commitlogfs.store.pool.admission import FALLBACK
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog, CreatePlan
from commitlogfs.store.segment import format_segment_name

log = logging.getLogger(__name__)

Reclaim = Callable[[Callable[[], Collection[DiskNumber]]], Awaitable[bool]]
"""As Retention.reclaim: forced deletion for a create. It asks which disks do not answer."""
SLOW_CREATE_S = 0.01
"""The broker warns about a segment that took longer."""


class Creation:
    """Makes segments and temporaries."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        changes: NameChanges,
        handles: Handles,
        usage: UsageMonitor,
        background: BackgroundSync,
        observer: Observer,
        reclaim: Reclaim,
    ) -> None:
        """`reclaim` is called, with the lock of all names held, when every disk that answers is full; it returns
        whether the create is worth another attempt."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.requests
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._usage = usage
        self._background = background
        self._observer = observer
        self._reclaim = reclaim
        self._patience_s = self._timing.create_s - self._timing.link_s - self._timing.reclaim_s
        """How long silent disks are waited for before space is reclaimed beside them: as long as it can be."""
        self._last_refusal: NoDiskAvailableError | None = None
        self._under_way = AttemptsUnderWay(disks)

    async def create(self, name: bytes, owner: Owner) -> Handle:
        """Make a segment or temporary and open it.

        Raises InvalidNameError, SegmentExistsError, NoDiskAvailableError, OSError.
        """
        started = self._commitlog.clock.monotonic()
        deadline = trio.current_time() + self._timing.create_s  # waiting for another change counts, too
        result, disk = "failed", ""
        try:
            async with self._changes.lock:
                handle = await self._create(name, owner, deadline - self._timing.link_s)
            result, disk = "ok", self._disks[handle.file.disk].path
        except SegmentExistsError:
            result = "exists"
            raise
        except NoDiskAvailableError as error:
            result = "no-space"
            self._record_refusal(name, error)
            raise
        finally:
            elapsed = self._commitlog.clock.monotonic() - started
            self._observer.segment_created(result, elapsed, disk)
        if elapsed > SLOW_CREATE_S:
            log_event(log, logging.INFO, "slow_create", segment=name, seconds=elapsed)
        return handle

    def _record_refusal(self, name: bytes, error: NoDiskAvailableError) -> None:
        """Once for all creates that get the answer of a moment ago."""
        if error is not self._last_refusal:
            self._last_refusal = error
            standings = self._commitlog.admission.standings(self._commitlog.clock.monotonic())
            self._observer.decisions.refused(name, str(error), standings)

    async def _create(self, name: bytes, owner: Owner, link_deadline: float) -> Handle:
        """`link_deadline` is the latest time to begin a link."""
        if self._changes.is_in_flight(name):
            raise SegmentExistsError(
                f"{name.decode()}: a disk does not answer to an earlier change of this name; repair that disk"
            )
        await self._usage.refresh(self._timing.usage_age_s)
        await self._changes.settle(name)
        refused_before = self._commitlog.admission.refuses_for_now(self._commitlog.clock.monotonic())
        try:
            return await self._create_somewhere(name, owner, link_deadline)
        except NoDiskAvailableError as error:
            if refused_before or not error.no_space or not await self._reclaimed(link_deadline):
                raise
        return await self._create_somewhere(name, owner, link_deadline)

    async def _reclaimed(self, link_deadline: float, attempts: Attempts | None = None) -> bool:
        """Whether segments were removed, or may have been, so that the create is worth another attempt. `attempts`
        are under way."""
        with trio.move_on_at(min(trio.current_time() + self._timing.reclaim_s, link_deadline)):
            return await self._reclaim(partial(self._silent, attempts))
        return trio.current_time() < link_deadline

    async def _create_somewhere(self, name: bytes, owner: Owner, link_deadline: float) -> Handle:
        """On the first disk of the plan that takes it. Raises NoDiskAvailableError, SegmentExistsError."""
        plan = self._commitlog.plan_create(name)
        if not plan.order and await self._settle_leftovers(name, link_deadline):
            plan = self._commitlog.plan_create(name)
        await self._commit_predecessor(plan, link_deadline)
        for reason in plan.skip_reasons:
            self._observer.placement_skipped(reason)
        failures: list[str] = []

        def record_failed(disk: DiskFiles, error: DiskError) -> None:
            self._commitlog.record_disk_error(disk.number, error, self._commitlog.clock.monotonic())
            self._record_moved_on(plan, error, failures)

        def record_silent(disk: DiskFiles) -> None:
            silence = DiskSilentError(disk.path, f"no answer within {self._timing.hedge_s:g} s")
            self._record_moved_on(plan, silence, failures)

        attempts = Attempts(
            self._commitlog,
            plan,
            owner,
            self._under_way,
            record_failed,
            record_silent,
            partial(self._take_late, plan),
        )
        winner = None
        try:
            winner = await self._first_named(attempts, plan, link_deadline)
        finally:
            attempts.end(winner)
        assert winner.published is not None
        handle = self._register(winner, plan, winner.published)
        self._record_placement(plan, handle, failures)
        return handle

    async def _first_named(self, attempts: Attempts, plan: CreatePlan, link_deadline: float) -> Attempt:
        """The attempt that has made the file. Raises NoDiskAvailableError if all disks have refused, or none has
        answered in time, also to an earlier create of this name; and as Attempts.named."""
        hung = self._under_way.silent_since_s()  # to earlier creates; these are asked last
        disks = [self._disks[number] for number in sorted(plan.order, key=hung.__contains__)]
        winner = await attempts.ask(disks, link_deadline)
        if winner is None:
            winner = await self._ask_after_reclaim(attempts, plan, link_deadline)
        if winner is None:
            winner = await attempts.named(link_deadline + self._timing.link_s)
        if winner is not None:
            return winner
        if not disks or attempts.is_any_silent or trio.current_time() >= link_deadline:
            raise NoDiskAvailableError(
                f"{plan.name.decode()}: no disk made the segment in time; see `dmesg`", no_space=False, failing=True
            )
        raise self._commitlog.admission.no_disk_left(self._commitlog.clock.monotonic())

    async def _ask_after_reclaim(
        self, attempts: Attempts, plan: CreatePlan, link_deadline: float
    ) -> Attempt | None:
        """If only silent disks have room: reclaim space on another disk, and ask that one, too, unless a silent one
        answers before. This begins as late as the time of the create allows. Returns and raises as Attempts.named.
        """
        since_s = self._under_way.silent_since_s()
        soon = max((since_s[number] + self._patience_s for number in attempts.silent()), default=-math.inf)
        latest = link_deadline - self._timing.reclaim_s
        winner = await attempts.named_soon(min(soon, latest), link_deadline)
        if winner is not None or not self._silent(attempts):
            return winner
        has_reclaimed = False
        async with attempts.cancelling():
            has_reclaimed = await self._reclaimed(link_deadline, attempts)
        winner = await attempts.named(trio.current_time())
        if winner is not None or not has_reclaimed:
            return winner
        with contextlib.suppress(NoDiskAvailableError):  # the silent ones may make it yet
            silent = self._silent(attempts)
            order = self._commitlog.plan_create(plan.name).order
            return await attempts.ask([self._disks[one] for one in order if one not in silent], link_deadline)
        return None

    def _silent(self, attempts: Attempts | None = None) -> set[DiskNumber]:
        """Disks that have not answered: for a while, or to these attempts."""
        long_ago_s = trio.current_time() - self._patience_s
        silent = {number for number, since_s in self._under_way.silent_since_s().items() if since_s <= long_ago_s}
        return silent if attempts is None else silent | attempts.silent()

    def _record_moved_on(self, plan: CreatePlan, error: DiskError, failures: list[str]) -> None:
        self._observer.placement_skipped(type(error).__name__)
        log_event(log, logging.WARNING, "create_moved_on", segment=plan.name, reason=str(error))
        failures.append(str(error))

    def _record_placement(self, plan: CreatePlan, handle: Handle, failures: list[str]) -> None:
        predecessor = self._commitlog.catalog.predecessor(plan.base_offset)
        placement = Placement(
            format_segment_name(plan.base_offset),  # also for a copy in progress, which becomes that segment
            self._disks[handle.file.disk].path,
            plan.policy,
            "" if predecessor is None else self._disks[predecessor.disk].path,
            FALLBACK in plan.skip_reasons,
            plan.standings,
            tuple(failures),
        )
        self._observer.decisions.placed(placement)

    def _register(self, attempt: Attempt, plan: CreatePlan, published: Published) -> Handle:
        """The file exists: it is a part of the log, and open."""
        disk = attempt.disk
        file = self._commitlog.record_created(plan, disk.number, published)
        self._changes.record(disk.number)
        log_event(log, logging.INFO, "created", segment=plan.name, disk=disk.path)
        return self._handles.add(file, attempt.fd)

    async def _take_late(self, plan: CreatePlan, attempt: Attempt, published: Published, names_given: int) -> bool:
        """Its create has failed meanwhile. If no file has got a name since, this is the file, and nobody has it
        open; otherwise it may be one that was removed meanwhile. A disk that an operator has closed meanwhile gets
        no segment."""
        disk = self._commitlog.disks[attempt.disk.number]
        assert attempt.file is not None
        async with self._changes.lock:
            is_first = names_given == self._commitlog.names.given
            if disk.intended_state is not DiskState.RW or not is_first or not self._is_free(plan):
                return False
            self._commitlog.record_leftover_gone(attempt.file)
            handle = self._register(attempt, plan, published)
        await self._handles.release(inodes.encode(handle.file))
        return True

    def _is_free(self, plan: CreatePlan) -> bool:
        """Whether a file may get the name now."""
        try:
            self._commitlog.names.require_free(plan.name, plan.base_offset)
        except SegmentExistsError:
            return False
        return not self._changes.is_in_flight(plan.name)

    async def _commit_predecessor(self, plan: CreatePlan, link_deadline: float) -> None:
        """Make sure that no power cut leaves a segment without the one before it. A disk that does not answer in
        time is not waited for, because the broker gives up after 5 s."""
        predecessor = self._commitlog.catalog.predecessor(plan.base_offset)
        if predecessor is None:
            return
        with trio.move_on_at(min(trio.current_time() + self._timing.commit_s, link_deadline)) as scope:
            await self._background.committed(predecessor.disk)
        if scope.cancelled_caught:
            disk = self._disks[predecessor.disk]
            log_event(log, logging.WARNING, "commit_wait_timed_out", segment=predecessor.name, disk=disk.path)

    async def _settle_leftovers(self, name: bytes, deadline: float) -> bool:
        """If no other disk takes the segment, ask the disks that may hold an empty file of this name. Returns
        whether one of them does not."""
        is_any_gone = False

        async def ask(file: Segment) -> None:
            nonlocal is_any_gone
            if await self._disks[file.disk].is_certainly_absent(name):
                is_any_gone = True
                self._commitlog.record_leftover_gone(file)

        with trio.move_on_at(deadline):
            async with trio.open_nursery() as nursery:
                for file in self._commitlog.others.leftovers_named(name):
                    nursery.start_soon(ask, file)
        return is_any_gone
