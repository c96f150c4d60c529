"""Creates: on the first disk of the plan that takes the segment, within the time that a broker waits."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
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
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import (
    DiskError,
    DiskSilentError,
    NoDiskAvailableError,
    SegmentExistsError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.pool.admission import FALLBACK
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog, CreatePlan
from commitlogfs.store.segment import format_segment_name

log = logging.getLogger(__name__)

SLOW_CREATE_S = 0.01
"""The broker warns about a segment that took longer."""


@dataclass(slots=True, eq=False)
class LateFile:
    """A file that has got its name although its create has failed before."""

    plan: CreatePlan
    owner: Owner
    attempt: Attempt
    is_taken: bool = False


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
        under_way: AttemptsUnderWay,
        reclaim: Callable[[], Awaitable[bool]],
    ) -> None:
        """`reclaim` is called, with the lock of all names held, when no disk that answers takes the segment; it
        returns whether the create is worth another attempt."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.requests
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._usage = usage
        self._background = background
        self._observer = observer
        self._reclaim = reclaim
        self._last_refusal: NoDiskAvailableError | None = None
        self._under_way = under_way
        self._late: list[LateFile] = []
        """Those that wait for the lock of all names."""

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
        await self._changes.settle(name)
        is_refused = self._commitlog.admission.refuses_for_now(self._commitlog.clock.monotonic())
        if not is_refused:
            await self._usage.refresh(self._timing.usage_age_s)
        while (late := self._find_late(name, owner)) is None:
            try:
                plan = self._commitlog.plan_create(name)
            except NoDiskAvailableError as error:
                if is_refused or not error.no_space:
                    raise
                if not await self._waited(link_deadline) and not await self._reclaimed(name, owner, link_deadline):
                    raise
            else:
                return await self._create_somewhere(plan, owner, link_deadline)
        handle = self._register(self._take(late), late.plan)  # which may have the last room
        self._record_placement(late.plan, handle, [])
        return handle

    async def _waited(self, link_deadline: float) -> bool:
        """Whether a disk may yet answer to an earlier create, and give back what it has reserved for that; then a
        moment has passed."""
        again_s = self._next_round_s()
        if not self._under_way.may_answer() or again_s >= link_deadline:
            return False
        with self._under_way.waiting(again_s):
            await trio.sleep_forever()
        await self._measure(link_deadline)
        self._commitlog.admission.forget_refusal()
        return True

    async def _reclaimed(self, name: bytes, owner: Owner, link_deadline: float) -> bool:
        """Whether a segment was removed, or may have been, or a late file has come, so that the create is worth
        another attempt. Nothing is removed while a silent disk may make the file, nor if too little time is left
        for that, and for a disk to make the file after it."""
        await self._measure(link_deadline)
        await trio.lowlevel.checkpoint_if_cancelled()  # before the decision: the measurement may have hidden that
        latest = link_deadline - self._timing.round_s
        if trio.current_time() > latest - self._timing.round_s:
            return False
        if self._under_way.may_answer():  # what it reserves counts as used, so its figures may show it as full
            return False
        if self._find_late(name, owner) is not None:
            return True
        with self._under_way.waiting(latest):
            return await self._reclaim()
        return True

    async def _measure(self, link_deadline: float) -> None:
        """A disk may have given something back in this moment."""
        patience_s = min(self._timing.round_s, max(0.0, link_deadline - trio.current_time()))
        with self._under_way.waiting(trio.current_time() + patience_s):
            await self._usage.refresh_soon(0.0, patience_s)

    def _next_round_s(self) -> float:
        return min(trio.current_time() + self._timing.round_s, self._under_way.next_end_s())

    async def _create_somewhere(self, plan: CreatePlan, owner: Owner, link_deadline: float) -> Handle:
        """On the first disk of the plan that takes it. Raises NoDiskAvailableError, SegmentExistsError."""
        if not plan.order:
            await self._settle_leftovers(plan.name, link_deadline)
        await self._commit_predecessor(plan, link_deadline)
        for reason in plan.skip_reasons:
            self._observer.placement_skipped(reason)
        failures: list[str] = []

        def record_failed(disk: DiskFiles, error: DiskError) -> None:
            self._commitlog.record_disk_error(disk.number, error, self._commitlog.clock.monotonic())
            self._record_moved_on(plan, error, failures)

        def record_silent(disk: DiskFiles) -> None:
            silence = DiskSilentError(disk.path, "no answer in time")
            self._record_moved_on(plan, silence, failures)

        attempts = Attempts(
            self._commitlog,
            plan,
            owner,
            self._under_way,
            record_failed,
            record_silent,
            partial(self._take_late, plan, owner),
        )
        winner = None
        try:
            winner = await self._first_named(attempts, plan, owner, link_deadline)
        finally:
            attempts.end(winner)
        handle = self._register(winner, plan)
        self._record_placement(plan, handle, failures)
        return handle

    async def _first_named(
        self, attempts: Attempts, plan: CreatePlan, owner: Owner, link_deadline: float
    ) -> Attempt:
        """The attempt that has made the file. Raises NoDiskAvailableError if all disks have refused, or none has
        answered in time, also to an earlier create of this name; and as Attempts.named."""
        winner = await self._ask_all(attempts, plan, owner, link_deadline)
        if winner is None:
            winner = await attempts.named(link_deadline + self._timing.link_s)
        if winner is not None:
            return winner
        if attempts.is_any_silent or not attempts.asked() or trio.current_time() >= link_deadline:
            raise NoDiskAvailableError(
                f"{plan.name.decode()}: no disk made the segment in time; see `dmesg`", no_space=False, failing=True
            )
        raise self._commitlog.admission.no_disk_left(self._commitlog.clock.monotonic())

    async def _ask_all(
        self, attempts: Attempts, plan: CreatePlan, owner: Owner, link_deadline: float
    ) -> Attempt | None:
        """Ask the disks of the plan, and each one that gets room meanwhile. The oldest segments are removed for it
        if the rules decide so. Returns and raises as Attempts.named; None also if nothing more can come of it."""
        order = plan.order or self._order(plan.name, attempts)
        while trio.current_time() < link_deadline:
            late = self._find_late(plan.name, owner)
            winner = None if late is None else self._take(late)
            if winner is None:
                winner = await attempts.ask(self._in_turn(order), self._asked_by(link_deadline), link_deadline)
            if winner is None:  # each that has its blocks gets the time for its link before anything is removed
                winner = await attempts.named_soon(trio.current_time(), link_deadline)
            if winner is not None:
                return winner
            has_reclaimed = False
            with attempts.interrupting():
                has_reclaimed = await self._reclaimed(plan.name, owner, link_deadline)
            order = self._order(plan.name, attempts, has_reclaimed=has_reclaimed)
            if has_reclaimed or order:
                continue
            if attempts.is_any_silent:
                winner = await attempts.named_soon(self._next_round_s(), link_deadline)
                if winner is not None:
                    return winner
            elif not await self._waited(link_deadline):
                return None
        return None

    def _asked_by(self, link_deadline: float) -> float:
        """When the last disk has to be asked, so that each has its time before the latest removal, and the disks
        can be measured in between."""
        return link_deadline - 3 * self._timing.round_s - self._timing.patience_s

    def _in_turn(self, order: Iterable[DiskNumber]) -> list[DiskFiles]:
        """The disks that have not answered an earlier create are last."""
        return [self._disks[number] for number in sorted(order, key=self._under_way.silent().__contains__)]

    def _order(self, name: bytes, attempts: Attempts, *, has_reclaimed: bool = False) -> tuple[DiskNumber, ...]:
        """The disks to ask by the figures of now: none that is silent, nor one that has refused a moment ago but
        after a removal. If there are none, that is not the answer to the next create: disks that do not answer may
        make the file yet."""
        admission, now_s = self._commitlog.admission, self._commitlog.clock.monotonic()
        admission.forget_refusal()
        try:
            order = self._commitlog.plan_create(name).order
        except NoDiskAvailableError:
            admission.forget_refusal()
            return ()
        asked, silent = attempts.asked(), attempts.silent()

        def has_refused(number: DiskNumber) -> bool:
            return number in asked and health.is_in_backoff(self._commitlog.disks[number], now_s)

        return tuple(
            number for number in order if number not in silent and (has_reclaimed or not has_refused(number))
        )

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

    def _register(self, attempt: Attempt, plan: CreatePlan) -> Handle:
        """The file exists: it is a part of the log, and open."""
        disk = attempt.disk
        assert attempt.published is not None
        file = self._commitlog.record_created(plan, disk.number, attempt.published)
        self._changes.record(disk.number)
        log_event(log, logging.INFO, "created", segment=plan.name, disk=disk.path)
        return self._handles.add(file, attempt.fd)

    async def _take_late(self, plan: CreatePlan, owner: Owner, attempt: Attempt) -> bool:
        """Its create has failed meanwhile. If no file has got the name since, this is the file, and nobody has it
        open; otherwise it may be one that was removed meanwhile. A disk that an operator has closed meanwhile gets
        no segment. The next create of the name may take it before."""
        late = LateFile(plan, owner, attempt)
        self._late.append(late)
        try:
            async with self._changes.lock:
                if late.is_taken:
                    return True
                if not self._is_wanted(late):
                    return False
                self._take(late)
                handle = self._register(attempt, plan)
        finally:
            self._late.remove(late)
        await self._handles.release(inodes.encode(handle.file))
        return True

    def _find_late(self, name: bytes, owner: Owner) -> LateFile | None:
        """A late file of this name, which is as good as a new one."""
        for late in self._late:
            if (late.plan.name, late.owner) == (name, owner) and not late.is_taken and self._is_wanted(late):
                return late
        return None

    def _take(self, late: LateFile) -> Attempt:
        late.is_taken = True
        assert late.attempt.file is not None
        self._commitlog.record_leftover_gone(late.attempt.file)
        return late.attempt

    def _is_wanted(self, late: LateFile) -> bool:
        disk, file = self._commitlog.disks[late.attempt.disk.number], late.attempt.file
        assert file is not None
        is_open = disk.intended_state is DiskState.RW and file.role is Role.LINKING
        return is_open and self._is_free(late.plan)

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
        with self._under_way.waiting(min(trio.current_time() + self._timing.commit_s, link_deadline)) as scope:
            await self._background.committed(predecessor.disk)
        if scope.cancelled_caught:
            disk = self._disks[predecessor.disk]
            log_event(log, logging.WARNING, "commit_wait_timed_out", segment=predecessor.name, disk=disk.path)

    async def _settle_leftovers(self, name: bytes, deadline: float) -> None:
        """If no other disk takes the segment, ask the disks that may hold an empty file of this name."""

        async def ask(file: Segment) -> None:
            if await self._disks[file.disk].is_certainly_absent(name):
                self._commitlog.record_leftover_gone(file)

        with trio.move_on_at(deadline):
            async with trio.open_nursery() as nursery:
                for file in self._commitlog.others.leftovers_named(name):
                    nursery.start_soon(ask, file)
