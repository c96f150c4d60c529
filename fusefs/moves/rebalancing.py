"""The rebalance of a pool: until its disks are about equally full, by placement or by moves.

It is recorded in the list of members on all disks, so the next daemon continues it. Where segments go is decided in
store/moves/balance.py, and for new ones in store/placement/emptier_first.py; here it is carried out, and ended.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import trio

from commitlogfs.fusefs.disks.member_records import MemberRecords
from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import DiskNumber, Rebalance, RebalanceMode
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.balance import Flow, Level, balance, order_for_target, spread, tolerance
from commitlogfs.store.moves.targets import segments_below_force
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Levels:
    """How full the disks are that take part in a rebalance, and why others do not."""

    levels: tuple[Level, ...]
    segment_size: int
    left_out: dict[DiskNumber, str]
    """By operator or configuration: their states."""
    awaited: dict[DiskNumber, str]
    """Troubles of disks that would take part if they were well. A rebalance does not end before they
    are well, or have been taken out of use."""

    @property
    def spread(self) -> float:
        return float(spread(self.levels))

    @property
    def goal(self) -> float:
        """The largest spread at which a rebalance ends."""
        return float(tolerance(self.levels, self.segment_size))

    @property
    def is_reached(self) -> bool:
        return spread(self.levels) <= tolerance(self.levels, self.segment_size)


@dataclass(frozen=True, slots=True)
class Ended:
    """A rebalance that has ended by itself."""

    since_s: int
    """When it began: seconds since 1970."""
    is_reached: bool
    spread: float


class Rebalancing:
    """Carries out the recorded rebalance, after all drains."""

    def __init__(self, commitlog: CommitLog, drains: Drains, member_records: MemberRecords) -> None:
        self._commitlog = commitlog
        self._drains = drains
        self._member_records = member_records
        self._seems_done: Rebalance | None = None
        """The rebalance that the latest step has found to be done. The next one confirms it: a disk that is
        measured while a file is removed there looks emptier than it is."""
        self.last_ended: Ended | None = None
        """The last one of this daemon. The next new segment may make the spread larger again."""

    def levels(self) -> Levels:
        """By the latest measurements. The sources of moves count as gone, although a broker may keep them open:
        else a disk would give segments for ever without becoming emptier."""
        eligible = {target.number: target for target in self._drains.targets()}
        size, catalog = self._commitlog.segment_size, self._commitlog.catalog
        newest = [segment.disk for segment in catalog.newest(NEWEST_KEPT) if segment.size == size]
        usages = self._commitlog.space.usages_when_closed()
        taking_part: list[Level] = []
        left_out, awaited = {}, {}
        for number, disk in self._commitlog.disks.items():
            usage = usages[number]
            if disk.intended_state not in (DiskState.RW, DiskState.JOINING):
                left_out[number] = disk.intended_state.value
            elif disk.is_joining or disk.is_troubled or usage is None or usage.entire_bytes <= 0:
                awaited[number] = _trouble(disk)
            else:
                target = eligible.get(number)
                movable = catalog.whole_count_on_disk(number) - newest.count(number)
                room = 0 if target is None else segments_below_force(target, size)
                taking_part.append(Level(number, usage.used_bytes, usage.entire_bytes, movable, room))
        return Levels(tuple(taking_part), size, left_out, awaited)

    async def step(self) -> bool:
        """Move one segment if the rebalance needs that, or end it if it has reached its goal. Returns whether a
        segment was moved."""
        rebalance = self._commitlog.membership.rebalance
        if rebalance is None:
            return False
        await self._drains.measure_targets()
        found = self.levels()
        flows: tuple[Flow, ...] = ()
        if rebalance.mode is RebalanceMode.COPY:
            flows = balance(found.levels, found.segment_size).flows
        is_done = not flows if rebalance.mode is RebalanceMode.COPY else found.is_reached
        if not is_done or found.awaited:
            self._seems_done = None
        elif self._seems_done != rebalance:
            self._seems_done = rebalance
        else:
            await self._end(rebalance, found)
        for flow in flows:
            segment = self._drains.first_movable(self._candidates(flow))
            if segment is not None:
                return await self._move(rebalance, segment, flow.target)
            await trio.lowlevel.checkpoint()  # the search among thousands of segments takes milliseconds
        return False

    def _candidates(self, flow: Flow) -> Iterator[Segment]:
        """The segments of the source in the order in which they are to be moved to the target."""
        catalog = self._commitlog.catalog
        offered: dict[int, Segment] = {
            s.base_offset: s for s in self._drains.waiting(self._commitlog.disks[flow.source])
        }
        on_target = (segment.base_offset for segment in catalog.on_disk(flow.target))
        begin = 0 if catalog.first is None else catalog.first.base_offset
        for offset in order_for_target(offered, on_target, begin):
            if not self._commitlog.expires_within(offered[offset], self._commitlog.timing.moves.life_left_s):
                yield offered[offset]

    async def _move(self, rebalance: Rebalance, segment: Segment, target: DiskNumber) -> bool:
        disks, drains = self._commitlog.disks, self.copied_away()

        def is_wanted() -> bool:
            present = self._commitlog.membership.rebalance
            is_same = present is not None and (present.since_s, present.mode) == (rebalance.since_s, rebalance.mode)
            take_part = all(disks[number].intended_state is DiskState.RW for number in (segment.disk, target))
            return is_same and take_part and self.copied_away() <= drains  # a new drain comes first

        def rate() -> int:
            present = self._commitlog.membership.rebalance
            return 0 if present is None else present.rate

        return await self._drains.attempt(segment, target, rate, is_wanted)

    def copied_away(self) -> set[DiskNumber]:
        """Disks with a drain by copying, which comes first."""
        draining = self._drains.draining()
        return {disk.number for disk in draining if disk.drain and disk.drain.mode.copies}

    async def _end(self, rebalance: Rebalance, found: Levels) -> None:
        """Its goal is reached, or nothing that it may do gets nearer to it."""
        async with self._member_records.changing:
            membership = self._commitlog.membership
            if membership.rebalance != rebalance:
                return
            self.last_ended = Ended(rebalance.since_s, found.is_reached, found.spread)
            await self._member_records.change(membership.rebalancing(None), self._commitlog.timing.members.record_s)
        level = logging.INFO if found.is_reached else logging.WARNING
        points = round(found.spread * 100, 2)
        log_event(log, level, "rebalanced", mode=rebalance.mode.value, spread=points, goal=found.goal * 100)


def _trouble(disk: Disk) -> str:
    if disk.is_joining:
        return "joins the pool"
    return disk.last_error or "does not answer, or cannot be written"
