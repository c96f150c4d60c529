"""Health of the disks, stored beside the backing table so that it outlives the daemon, as long as the mount lasts.

It stores facts that a successor cannot find out at once: whether a disk is suspected, failing, unresponsive,
unreadable or slow, since when, and how many removals in a row have freed no space there. It does not store since
when no segment of a disk could be read: nobody probed the disk while there was no daemon, so this evidence starts
again.
"""

from collections.abc import Set
from enum import IntEnum
from typing import Final

import trio

from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.disks.reclaim import FruitlessRemovals
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.slowness.pace import Operation
from commitlogfs.store.slowness.policy import Comparison, Slowness

_FREE_UNIT: Final = 1 << 16
"""Unit, in bytes, in which free space is stored: 32 bits are enough for 256 TiB."""
_FAILING, _READ_ONLY, _UNRESPONSIVE = 1, 2, 4
_RECLAIMED_NOTHING = 1 << 31
_OF_WRITES = 1 << 31
_PEERS_SHIFT, _LARGEST_MS = 15, (1 << 15) - 1
"""Two times in ms share a note."""


class Kind(IntEnum):
    """Subject of a note. The numbers are part of the layout that all versions share."""

    TROUBLE = 1
    SUSPECTED_SINCE_S = 2
    FRUITLESS_REMOVALS = 3
    LOWEST_FREE = 4
    FRUITLESS_SINCE_S = 5
    UNREADABLE = 6
    SLOW_SINCE_S = 7
    SLOW_UNTIL_S = 8
    SLOW_TIMES = 9
    FILESYSTEM = 10
    INCARNATION = 11


_INCARNATIONS: Final = (Kind.FILESYSTEM, Kind.INCARNATION)
"""Kept by incarnations.py."""


class DiskMemory:
    def __init__(self, commitlog: CommitLog, backing: Backing) -> None:
        self._commitlog = commitlog
        self._backing = backing

    async def run(self) -> None:
        """Save at intervals until cancelled."""
        while True:
            self.save()
            await trio.sleep(self._commitlog.timing.health.remembered_s)

    def save(self) -> None:
        """Store the present health of all disks."""
        now_s, fruitless = self._commitlog.clock.monotonic(), self._commitlog.space.fruitless_removals()
        for disk in self._commitlog.disks.values():
            values: dict[Kind, int] = {}
            if disk.is_troubled:
                flags = _FAILING * disk.is_failing | _READ_ONLY * disk.is_read_only
                values[Kind.TROUBLE] = flags | _UNRESPONSIVE * disk.is_unresponsive
                since_s = disk.suspected_since_s
                values[Kind.SUSPECTED_SINCE_S] = round(now_s if since_s is None else since_s)
            if disk.is_unreadable:
                values[Kind.UNREADABLE] = 1
            values |= _slowness_of(disk)
            if disk.number in fruitless:
                record = fruitless[disk.number]
                values[Kind.FRUITLESS_REMOVALS] = record.in_a_row | _RECLAIMED_NOTHING * record.reclaimed_nothing
                values[Kind.LOWEST_FREE] = -(-record.lowest_free_bytes // _FREE_UNIT)
                values[Kind.FRUITLESS_SINCE_S] = round(record.since_s)
            for kind in Kind:
                if kind not in _INCARNATIONS:
                    self._backing.keep_note(disk.number, kind, values.get(kind))

    def restore(self, returned: Set[DiskNumber] = frozenset()) -> None:
        """Restore the health that the former daemon has stored, after a takeover. Disks that have `returned` begin
        anew."""
        notes = self._backing.kept_notes()
        now_s = self._commitlog.clock.monotonic()
        for disk in self._commitlog.disks.values():
            if disk.number in returned:
                continue
            of_disk = {kind: notes[disk.number, kind] for kind in Kind if (disk.number, kind) in notes}
            if Kind.TROUBLE in of_disk:
                flags = of_disk[Kind.TROUBLE]
                since_s = float(of_disk.get(Kind.SUSPECTED_SINCE_S, now_s))
                health.restore_trouble(
                    disk,
                    is_failing=bool(flags & _FAILING),
                    is_read_only=bool(flags & _READ_ONLY),
                    is_unresponsive=bool(flags & _UNRESPONSIVE),
                    since_s=min(since_s, now_s),
                    now_s=now_s,
                    timing=self._commitlog.timing.health,
                )
            if Kind.UNREADABLE in of_disk:
                health.record_unreadable(disk, "as a former daemon has found")
            if {Kind.SLOW_SINCE_S, Kind.SLOW_UNTIL_S, Kind.SLOW_TIMES} <= of_disk.keys():
                disk.slowness = _slowness_from(of_disk)
            if {Kind.FRUITLESS_REMOVALS, Kind.LOWEST_FREE, Kind.FRUITLESS_SINCE_S} <= of_disk.keys():
                count = of_disk[Kind.FRUITLESS_REMOVALS]
                record = FruitlessRemovals(
                    count & ~_RECLAIMED_NOTHING,
                    of_disk[Kind.LOWEST_FREE] * _FREE_UNIT,
                    min(float(of_disk[Kind.FRUITLESS_SINCE_S]), now_s),
                    reclaimed_nothing=bool(count & _RECLAIMED_NOTHING),
                )
                self._commitlog.space.resume_fruitless_removals(DiskNumber(disk.number), record)


def _slowness_of(disk: Disk) -> dict[Kind, int]:
    slowness = disk.slowness
    if slowness is None or slowness.probe_at_s is None:
        return {}
    comparison = slowness.comparison
    own_ms, peers_ms = (
        min(_LARGEST_MS, round(1000 * (seconds or 0.0))) for seconds in (comparison.time_s, comparison.peers_s)
    )
    return {
        Kind.SLOW_SINCE_S: round(slowness.since_s),
        Kind.SLOW_UNTIL_S: round(slowness.probe_at_s),
        Kind.SLOW_TIMES: own_ms | peers_ms << _PEERS_SHIFT | _OF_WRITES * (comparison.operation is Operation.WRITE),
    }


def _slowness_from(notes: dict[Kind, int]) -> Slowness:
    times = notes[Kind.SLOW_TIMES]
    comparison = Comparison(
        Operation.WRITE if times & _OF_WRITES else Operation.READ,
        (times & _LARGEST_MS) / 1000,
        (times >> _PEERS_SHIFT & _LARGEST_MS) / 1000,
        None,
    )
    return Slowness(comparison, float(notes[Kind.SLOW_SINCE_S]), float(notes[Kind.SLOW_UNTIL_S]))
