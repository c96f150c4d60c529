"""Carries out what the rules of forced deletion decide: one removal at a time, measured after each."""

import errno
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

import trio

from commitlogfs.fusefs.disks.disk_probes import DiskProbes
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.freeing import Freeing
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.files.removal import Removals
from commitlogfs.store.clock import Clock
from commitlogfs.store.disks.lost_writes import LostWrite
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.commitlog import CommitLog, Removal
from commitlogfs.store.retention import (
    Alert,
    Decision,
    EngineState,
    HeldFacts,
    Mode,
    Moment,
    RefusedFacts,
    RetentionRules,
    Rule,
    Snapshot,
    all_full,
    decide,
    is_pressed,
)
from commitlogfs.store.retention.clocks import ClockWatch
from commitlogfs.store.retention.observe import observe
from commitlogfs.store.retention.plan import removable_prefix

log = logging.getLogger(__name__)

_RULES = frozenset(rule.value for rule in Rule)


def read_clocks(clock: Clock) -> Moment:
    return Moment(clock.wall_ns(), clock.boottime(), time.localtime(clock.wall()).tm_hour)


class ClockMemory(Protocol):
    """Keeps the lead of the wall clock as long as the mount lasts, whichever daemon serves it."""

    @property
    def clock_lead_s(self) -> float | None: ...

    def record_clock_lead(self, lead_s: float | None) -> None: ...


class Retention:
    """Asks the rules, carries out what they decide, and owns their memory. All methods run in the event loop."""

    def __init__(
        self,
        rules: RetentionRules,
        commitlog: CommitLog,
        changes: NameChanges,
        removals: Removals,
        freeing: Freeing,
        attributes: BackingAttributes,
        usage: UsageMonitor,
        refresh_all: Callable[[], Awaitable[None]],
        probes: DiskProbes,
        memory: ClockMemory,
        lost_writes: Callable[[], Mapping[DiskNumber, tuple[LostWrite, ...]]],
        silent: Callable[[], Collection[DiskNumber]],
    ) -> None:
        """`refresh_all` reads the attributes of every segment. `lost_writes` returns those of the disks that have
        lost some. `silent`: as of AttemptsUnderWay."""
        self.rules = rules
        self._alerts: tuple[Alert, ...] = ()
        """Alerts of the last cycle."""
        self.cycles = 0
        """Number of cycles since the daemon started, including those that failed."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.retention
        self._changes = changes
        self._removals = removals
        self._freeing = freeing
        self._attributes = attributes
        self._usage = usage
        self._refresh_all = refresh_all
        self._probes = probes
        self._memory = memory
        self._lost_writes = lost_writes
        self._silent = silent
        self._refused: RefusedFacts | None = None
        self._refused_s = -math.inf
        self._state = EngineState()
        self._held_since_s: dict[tuple[DiskNumber, int], float] = {}

    async def run(self) -> None:
        """Run one cycle per interval, until cancelled."""
        while True:
            next_cycle = trio.current_time() + self.rules.interval_s
            try:
                await self.cycle()
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "retention_failed", reason=str(error))
            self.cycles += 1
            await trio.sleep_until(next_cycle)

    async def cycle(self) -> None:
        """Remove at most a batch of segments. A removal that fails ends the batch: the next cycle begins with the
        same segment again."""
        await self._probes.run(self._disks_to_probe())
        await self._count_links()
        for _ in range(self.rules.batch):
            await self._usage.refresh(self._timing.usage_age_s)
            await self._refresh_oldest()
            async with self._changes.lock:
                is_removed = await self._remove(self._choose())
            if not is_removed:
                break
            await trio.sleep(self._timing.pause_s)
        await self._punch()

    def _disks_to_probe(self) -> frozenset[DiskNumber]:
        """Disks to probe besides those in trouble: at first all, because a former daemon's knowledge may be old, or
        lost."""
        if not self.cycles:
            return frozenset(self._commitlog.disks)
        return frozenset() if self._refused is None else frozenset({self._refused.disk})

    async def reclaim(self) -> bool:
        """Remove the oldest segment, if that helps a create that found no disk and holds the lock of all names.
        Returns whether it went. A removal that is under way has its time first. After one that failed, none is
        tried for a moment: a broker repeats a create about every millisecond."""
        if self._commitlog.is_removing:
            return await self._changes.outlast()
        if self._commitlog.clock.monotonic() < self._refused_s + self._commitlog.timing.requests.no_disk_s:
            return False
        return await self._remove(self._choose_for_create())

    async def _remove(self, removal: Removal | None) -> bool:
        """Carry out what a rule has decided; False if it has decided nothing, or the removal failed. A failure is
        reported as long as space is needed."""
        if removal is not None:
            try:
                await self._removals.carry_out(removal)
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "retention_failed", reason=str(error))
                self.record_refused(removal, error)
                return False
        if removal is not None or not all_full(self._observe_for_create()):
            self._refused = None
        return removal is not None

    def record_refused(self, removal: Removal, error: Exception) -> None:
        """A removal has failed, also one that nobody waits for any more."""
        if removal.reason in _RULES:
            self._refused = RefusedFacts(removal.file.base_offset, removal.file.disk, _why(error))
            self._refused_s = self._commitlog.clock.monotonic()

    def preview(self) -> Decision:
        """The decision of the rules as of now, by the last measurements; it changes nothing."""
        return decide(self.rules, self._state, self._observe())[0]

    def foresee(self) -> Decision:
        """The decision of the rules if the pressure had held long enough, in the hour of `delete_when`."""
        hours = frozenset(range(24)) if self.rules.delete_when else frozenset()
        return decide(replace(self.rules, force_after_s=0.0, delete_when=hours), self._state, self._observe())[0]

    def held(self) -> tuple[HeldFacts, ...]:
        """Segments that were removed by force and are still open."""
        return self._observe().held

    @property
    def is_full(self) -> bool:
        """Whether every disk that takes segments is at `full`."""
        return all_full(self._observe())

    @property
    def forced_are_open(self) -> bool:
        """Whether a segment that was removed by force is still open."""
        return self._commitlog.others.has_retired and bool(self.held())

    def _choose(self) -> Removal | None:
        """The next removal of a cycle. Here, and for a create, the caller holds the lock of all names: the removal
        is carried out before any name changes."""
        decision = self._decide()
        self._report(decision.alerts)
        return self._first_of(decision)

    def _choose_for_create(self) -> Removal | None:
        """The pressure is not followed: to the rules of a cycle, the figures of silent disks count."""
        return self._first_of(decide(self.rules, self._state, self._observe_for_create(), for_create=True)[0])

    def _observe_for_create(self) -> Snapshot:
        return self._observe().beside(self._silent())

    def reset_clock_baseline(self) -> None:
        """Make the next daemon accept the present time: an operator restarts this one on purpose."""
        self._memory.record_clock_lead(None)

    def _decide(self) -> Decision:
        if self._state.clock is None:
            self._state = replace(self._state, clock=self._known_clock())
        decision, self._state = decide(self.rules, self._state, self._observe())
        return decision

    def _known_clock(self) -> ClockWatch:
        """The clock as a former daemon of this mount has found it, so that a jump since then is noticed."""
        lead_s = self._memory.clock_lead_s
        if lead_s is not None:
            return ClockWatch(lead_s)
        clock = ClockWatch.begin(read_clocks(self._commitlog.clock))
        self._memory.record_clock_lead(clock.lead_s)
        return clock

    def _first_of(self, decision: Decision) -> Removal | None:
        if not decision.planned:
            return None
        planned = decision.planned[0]
        file = self._commitlog.catalog.get(planned.segment.base_offset)
        return None if file is None else Removal(file, planned.rule.value, planned.reason)

    async def _punch(self) -> None:
        """Free the blocks of as many held segments as needed, each decided anew."""
        while True:
            await self._usage.refresh(self._timing.usage_age_s)
            held = self._decide().punch
            if held is None:
                return
            file = next(
                file for file in self._commitlog.others.retired() if (file.disk, file.ino) == (held.disk, held.ino)
            )
            log_event(
                log,
                logging.WARNING,
                "punching",
                segment=file.name,
                disk=self._commitlog.disk_of(file).path,
                bytes=held.allocated_bytes,
                reason="every disk is full, and somebody still has this removed segment open",
            )
            await self._freeing.punch(file)

    async def _count_links(self) -> None:
        """Under pressure, count the segments that have another name: removing them frees nothing, whether by a rule
        or by a broker."""
        await self._usage.refresh(self._timing.usage_age_s)
        if is_pressed(self._observe()):
            await self._refresh_all()
            self._commitlog.space.count_links()

    async def _refresh_oldest(self) -> None:
        """Read when the oldest segments were last changed, which decides about their age: with passthrough, the
        kernel writes without a request to the daemon."""
        if self.rules.mode is Mode.FILESYSTEM:
            for segment in itertools.islice(removable_prefix(self._observe()), self.rules.batch):
                file = self._commitlog.catalog.get(segment.base_offset)
                if file is not None:
                    await self._attributes.refresh(file)

    def _observe(self) -> Snapshot:
        moment = read_clocks(self._commitlog.clock)
        present = {(file.disk, file.ino) for file in self._commitlog.others.retired()}
        self._held_since_s = {key: self._held_since_s.get(key, moment.steady_s) for key in present}
        return observe(
            self._commitlog,
            moment,
            lambda file: self._held_since_s[file.disk, file.ino],
            self._lost_writes(),
            self._refused,
        )

    def _report(self, alerts: tuple[Alert, ...]) -> None:
        """Log each alert once when it begins, and once when it ends."""
        before = {(alert.code, alert.disk) for alert in self._alerts}
        now = {(alert.code, alert.disk) for alert in alerts}
        for alert in alerts:
            if (alert.code, alert.disk) not in before:
                code, disk = alert.code.value, alert.disk or None
                log_event(log, logging.ERROR, "alert", code=code, disk=disk, text=alert.text)
        for ended, path in sorted(before - now, key=str):
            log_event(log, logging.WARNING, "alert_over", code=ended.value, disk=path or None)
        self._alerts = alerts


def _why(error: Exception) -> str:
    """The error as text, after its errno where it has one."""
    cause = error if isinstance(error, OSError) else error.__cause__
    code = errno.errorcode.get(cause.errno or 0, "") if isinstance(cause, OSError) else ""
    return f"{code}: {error}" if code else str(error)
