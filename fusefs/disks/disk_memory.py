"""What is known of disks outlives the daemon: it is kept beside the backing table, as long as the mount lasts.

Kept is what a successor cannot find out at once: that a disk is suspected, since when, and failing, and how many
removals in a row have freed nothing there. Not kept is since when nothing could be read of a disk: the evidence
that its segments are lost begins anew, since nobody looked while there was no daemon.
"""

import time
from enum import IntEnum
from typing import Final

import trio

from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.store.disks import health
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.disks.reclaim import FruitlessRemovals
from commitlogfs.store.pool.commitlog import CommitLog

INTERVAL_S: Final = 1.0
_FREE_UNIT: Final = 1 << 16
"""Bytes: 32 bits are enough for 256 TiB."""
_FAILING, _READ_ONLY = 1, 2
_RECLAIMED_NOTHING = 1 << 31


class Kind(IntEnum):
    """What a note is about. Numbers are part of the layout that versions share."""

    TROUBLE = 1
    SUSPECTED_SINCE_S = 2
    FRUITLESS_REMOVALS = 3
    LOWEST_FREE = 4
    VAIN_SINCE_S = 5


class DiskMemory:
    def __init__(self, commitlog: CommitLog, backing: Backing) -> None:
        self._commitlog = commitlog
        self._backing = backing

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.keep()
            await trio.sleep(INTERVAL_S)

    def keep(self) -> None:
        """Note what has changed."""
        vain = self._commitlog.space.fruitless_removals()
        for disk in self._commitlog.disks.values():
            values: dict[Kind, int] = {}
            if disk.is_troubled:
                values[Kind.TROUBLE] = _FAILING * disk.is_failing | _READ_ONLY * disk.is_read_only
                since_s = disk.suspected_since_s
                values[Kind.SUSPECTED_SINCE_S] = round(time.monotonic() if since_s is None else since_s)
            if disk.number in vain:
                record = vain[disk.number]
                values[Kind.FRUITLESS_REMOVALS] = record.in_a_row | _RECLAIMED_NOTHING * record.reclaimed_nothing
                values[Kind.LOWEST_FREE] = -(-record.lowest_free_bytes // _FREE_UNIT)
                values[Kind.VAIN_SINCE_S] = round(record.since_s)
            for kind in Kind:
                self._backing.keep_note(disk.number, kind, values.get(kind))

    def restore(self) -> None:
        """After a takeover: what the former daemon has noted."""
        notes = self._backing.kept_notes()
        now_s = time.monotonic()
        for disk in self._commitlog.disks.values():
            of_disk = {kind: notes[disk.number, kind] for kind in Kind if (disk.number, kind) in notes}
            if Kind.TROUBLE in of_disk:
                flags = of_disk[Kind.TROUBLE]
                since_s = float(of_disk.get(Kind.SUSPECTED_SINCE_S, now_s))
                health.resume_trouble(
                    disk,
                    is_failing=bool(flags & _FAILING),
                    is_read_only=bool(flags & _READ_ONLY),
                    since_s=min(since_s, now_s),
                    now_s=now_s,
                )
            if {Kind.FRUITLESS_REMOVALS, Kind.LOWEST_FREE, Kind.VAIN_SINCE_S} <= of_disk.keys():
                vain = of_disk[Kind.FRUITLESS_REMOVALS]
                record = FruitlessRemovals(
                    vain & ~_RECLAIMED_NOTHING,
                    of_disk[Kind.LOWEST_FREE] * _FREE_UNIT,
                    min(float(of_disk[Kind.VAIN_SINCE_S]), now_s),
                    reclaimed_nothing=bool(vain & _RECLAIMED_NOTHING),
                )
                self._commitlog.space.resume_fruitless_removals(DiskNumber(disk.number), record)
