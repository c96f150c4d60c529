"""Carries out what the rules of forced deletion decide: one removal at a time, measured after each."""

import errno
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import trio

from commitlogfs.fusefs.disks.disk_probes import DiskProbes
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.freeing import Freeing
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.files.removal import Removals
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.errors import DiskError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.commitlog import CommitLog, Removal
from commitlogfs.store.retention import (
    PAUSE_S,
    Alert,
    Decision,
    EngineState,
    HeldFacts,
    Mode,
    Moment,
    RefusedFacts,
    RetentionRules,
    Snapshot,
    all_full,
    decide,
    is_pressed,
)
from commitlogfs.store.retention.clocks import ClockWatch
from commitlogfs.store.retention.observe import observe
from commitlogfs.store.retention.plan import removable_prefix

log = logging.getLogger(__name__)

FRESH_S = 0.05
"""A measurement this old is taken for the one after the last removal, which has noted its own disk's."""


def read_clocks() -> Moment:
    return Moment(time.time_ns(), time.clock_gettime(time.CLOCK_BOOTTIME), time.localtime().tm_hour)


class ClockMemory(Protocol):
    """Of the wall clock's lead, as long as the mount lasts, whichever daemon serves it."""

    @property
    def clock_lead_s(self) -> float | None: ...

    def record_clock_lead(self, lead_s: float | None) -> None: ...


class Retention:
    """Owns the rules' memory. All methods run in the event loop."""

    def __init__(
        self,
        rules: RetentionRules,
        commitlog: CommitLog,
        changes: NameChanges,
        removals: Removals,
        freeing: Freeing,
        attributes: BackingAttributes,
        usage: UsageMonitor,
        look: Callable[[], Awaitable[None]],
        probes: DiskProbes,
        memory: ClockMemory,
        clocks: Callable[[], Moment] = read_clocks,
    ) -> None:
        """`look` refreshes the attributes of every segment."""
        self.rules = rules
        self._alerts: tuple[Alert, ...] = ()
        """Of the last cycle."""
        self.cycles = 0
        """Since the daemon started, those that failed included."""
        self._commitlog = commitlog
        self._changes = changes
        self._removals = removals
        self._freeing = freeing
        self._attributes = attributes
        self._usage = usage
        self._look = look
        self._probes = probes
        self._memory = memory
        self._refused: RefusedFacts | None = None
        self._clocks = clocks
        self._state = EngineState()
        self._held_since_s: dict[tuple[DiskNumber, int], float] = {}

    async def run(self) -> None:
        """A cycle per interval, until cancelled."""
        while True:
            next_cycle = trio.current_time() + self.rules.interval_s
            try:
                await self.cycle()
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "retention_failed", reason=str(error))
            self.cycles += 1
            await trio.sleep_until(next_cycle)

    async def cycle(self) -> None:
        """At most a batch of removals. One that fails ends the batch: the next cycle begins with the same segment
        again."""
        await self._probes.look(self._to_be_looked_at())
        await self._look_at_links()
        for _ in range(self.rules.batch):
            await self._usage.refresh(FRESH_S)
            await self._look_at_oldest()
            async with self._changes.lock:
                is_removed = await self._remove(self._choose())
            if not is_removed:
                break
            await trio.sleep(PAUSE_S)
        await self._punch()

    def _to_be_looked_at(self) -> frozenset[DiskNumber]:
        """Besides those in trouble: at first all, since a former daemon's knowledge may be old, or lost."""
        if not self.cycles:
            return frozenset(self._commitlog.disks)
        return frozenset() if self._refused is None else frozenset({self._refused.disk})

    async def reclaim(self) -> bool:
        """Remove segments for a create that found no disk and holds the lock of all names. Returns whether any
        went."""
        is_any_removed = False
        while await self._remove(self._choose_for_create()):
            is_any_removed = True
        return is_any_removed

    async def _remove(self, removal: Removal | None) -> bool:
        """Carry out what a rule has decided; False if it has decided nothing, or the removal failed. A failure is
        reported as long as space is needed."""
        if removal is not None:
            try:
                await self._removals.carry_out(removal)
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "retention_failed", reason=str(error))
                self._refused = RefusedFacts(removal.file.base_offset, removal.file.disk, _why(error))
                return False
        if removal is not None or not self.is_full:
            self._refused = None
        return removal is not None

    def preview(self) -> Decision:
        """What would be done now, by the last measurements; nothing is remembered of it."""
        return decide(self.rules, self._state, self._observe())[0]

    def foresee(self) -> Decision:
        """What would be done if the pressure had held long enough, and its hour had come for what is expired."""
        hours = frozenset(range(24)) if self.rules.delete_when else frozenset()
        return decide(replace(self.rules, force_after_s=0.0, delete_when=hours), self._state, self._observe())[0]

    def held(self) -> tuple[HeldFacts, ...]:
        """What was removed by force and is still open."""
        return self._observe().held

    @property
    def is_full(self) -> bool:
        """Whether every disk that takes segments is at `full`."""
        return all_full(self._observe())

    @property
    def forced_are_open(self) -> bool:
        return self._commitlog.others.has_retired and bool(self.held())

    def _choose(self) -> Removal | None:
        """The next removal of a cycle. Here, and for a create, the caller holds the lock of all names: the removal
        is carried out before any name changes."""
        decision = self._decide()
        self._tell(decision.alerts)
        return self._first_of(decision)

    def _choose_for_create(self) -> Removal | None:
        return self._first_of(self._decide(for_create=True))

    def reset_clock_baseline(self) -> None:
        """The next daemon is to take the present time for granted: somebody restarts this one on purpose."""
        self._memory.record_clock_lead(None)

    def _decide(self, *, for_create: bool = False) -> Decision:
        if self._state.clock is None:
            self._state = replace(self._state, clock=self._known_clock())
        decision, self._state = decide(self.rules, self._state, self._observe(), for_create=for_create)
        return decision

    def _known_clock(self) -> ClockWatch:
        """What a former daemon of this mount has found, which a jump since then must not change."""
        lead_s = self._memory.clock_lead_s
        if lead_s is not None:
            return ClockWatch(lead_s)
        clock = ClockWatch.begin(self._clocks())
        self._memory.record_clock_lead(clock.lead_s)
        return clock

    def _first_of(self, decision: Decision) -> Removal | None:
        if not decision.planned:
            return None
        planned = decision.planned[0]
        file = self._commitlog.catalog.get(planned.segment.base_offset)
        return None if file is None else Removal(file, planned.rule.value, planned.reason)

    async def _punch(self) -> None:
        """As many as are needed, each decided anew."""
        while True:
            await self._usage.refresh(FRESH_S)
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

    async def _look_at_links(self) -> None:
        """Under pressure: what somebody has given another name frees nothing, for the rules nor for a broker."""
        await self._usage.refresh(FRESH_S)
        if is_pressed(self._observe()):
            await self._look()
            self._commitlog.space.count_links()

    async def _look_at_oldest(self) -> None:
        """Their times of change, which decide about their age: the kernel may have written without asking us."""
        if self.rules.mode is Mode.FILESYSTEM:
            for segment in itertools.islice(removable_prefix(self._observe()), self.rules.batch):
                file = self._commitlog.catalog.get(segment.base_offset)
                if file is not None:
                    await self._attributes.refresh(file)

    def _observe(self) -> Snapshot:
        moment = self._clocks()
        present = {(file.disk, file.ino) for file in self._commitlog.others.retired()}
        self._held_since_s = {key: self._held_since_s.get(key, moment.steady_s) for key in present}
        return observe(self._commitlog, moment, lambda file: self._held_since_s[file.disk, file.ino], self._refused)

    def _tell(self, alerts: tuple[Alert, ...]) -> None:
        """What begins and what ends, once."""
        before = {(alert.code, alert.disk) for alert in self._alerts}
        now = {(alert.code, alert.disk) for alert in alerts}
        for alert in alerts:
            if (alert.code, alert.disk) not in before:
                code, disk = alert.code.value, alert.disk or None
                log_event(log, logging.ERROR, "alert", code=code, disk=disk, text=alert.text)
        for ended, path in sorted(before - now, key=str):
            log_event(log, logging.WARNING, "alert_over", code=ended.value, disk=path or None)
        self._alerts = alerts


def _why(error: DiskError | OSError) -> str:
    """With the errno in front, where there is one."""
    cause = error if isinstance(error, OSError) else error.__cause__
    code = errno.errorcode.get(cause.errno or 0, "") if isinstance(cause, OSError) else ""
    return f"{code}: {error}" if code else str(error)
