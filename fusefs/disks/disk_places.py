"""Whether the disks still lie at their paths.

The daemon holds the directory of each disk open. So it goes on serving one that was unmounted under its feet, and
does not notice that a disk is back.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import trio

from commitlogfs.fusefs.disks.check_child import CheckChild
from commitlogfs.fusefs.disks.disk_threads import OUTSIDE, DiskThreads, disk_of_thread
from commitlogfs.fusefs.disks.kernel_waits import Wait
from commitlogfs.store.checks.place import Place, Whereabouts, judge
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

LOOKS_TO_VANISH: Final = 2
"""Looks in a row: mounts may be moved in two steps."""


@dataclass(slots=True)
class PathChecks:
    """Result of one check of all paths."""

    back: set[str] = field(default_factory=set)
    """Paths to which a disk is back that is missing, or that fails where it is served."""
    silent: set[str] = field(default_factory=set)
    """Paths of which nothing is known now."""


class DiskPlaces:
    def __init__(self, commitlog: CommitLog, child: CheckChild, threads: DiskThreads) -> None:
        self._commitlog = commitlog
        self._timing = commitlog.timing.checks
        self._child = child
        self._threads = threads
        self._away: dict[DiskNumber, int] = {}
        """Number of looks in a row that did not find the disk at its path."""

    async def look(self, paths: Iterable[str]) -> PathChecks:
        """Look at the paths of all disks, and at the further `paths`. Disks that are offline are left alone."""
        offline = {member.path for member in self._commitlog.offline()}
        disks = {disk.path: disk for disk in self._commitlog.disks.values()}
        checks = PathChecks()

        async def look_at(path: str) -> None:
            place = await self.find(path, self._timing.look_s)
            if place is None:
                checks.silent.add(path)
                return
            disk = disks.get(path)
            is_back = self._is_missing(place) if disk is None else self._record(disk, place)
            if is_back:
                checks.back.add(path)

        async with trio.open_nursery() as nursery:
            for path in sorted({*disks, *paths} - offline):
                nursery.start_soon(look_at, path)
        return checks

    async def find(self, path: str, patience_s: float) -> Place | None:
        """Where a path leads; None if that cannot be found out now."""
        return await self._child.look(path, patience_s)

    async def why_not_handed_over(self) -> str:
        """Why this daemon cannot leave its mount to the next one at this moment; empty if no disk prevents it."""
        hung = await self._find_hung()
        return hung and (
            f"{hung}: does not answer this daemon, and no other one could take over; if it is only busy, repeat "
            'the command; else repair or detach that disk (docs/operating.md, "A disk has died")'
        )

    async def _find_hung(self) -> str:
        """Path of a disk that is unresponsive, or holds a check, so that the next daemon would wait for it, or what
        holds a thread of this process, which cannot end before that answers; empty if there is none. The next
        daemon does not wait for a disk that its path does not lead to any more."""
        at_paths = (disk for disk in self._commitlog.disks.values() if disk.number not in self._away)
        unresponsive = (disk.path for disk in at_paths if disk.is_unresponsive)
        return next(unresponsive, "") or await self._find_holding()

    async def _find_holding(self) -> str:
        waits = self._waits()
        with trio.move_on_after(self._timing.hung_s):
            while waits:
                await trio.sleep(self._timing.hung_look_s)
                waits &= self._waits()
        return min((path for path, _ in waits), default="")

    def _waits(self) -> set[tuple[str, Wait]]:
        """Waits of the threads of this process, and of checks: these find a hang that is new."""
        disks = self._commitlog.disks
        own = {(self._waited_for(wait), wait) for wait in self._threads.waits()}
        return own | {(disks[disk].path, wait) for disk, wait in self._child.waits() if disk not in self._away}

    def _waited_for(self, wait: Wait) -> str:
        number = disk_of_thread(wait.name)
        if number == OUTSIDE:
            return "the source of a restore"
        disk = None if number is None else self._commitlog.disks.get(number)
        return "a filesystem outside of the pool" if disk is None else disk.path

    def _is_missing(self, place: Place) -> bool:
        """Whether a disk lies there that is a member of the pool and not served."""
        member = self._commitlog.membership.with_id(place.disk_id)
        is_member = place.pool_id == self._commitlog.pool_id and member is not None and not member.leaves
        return is_member and member is not None and member.number not in self._commitlog.disks

    def _record(self, disk: Disk, place: Place) -> bool:
        """Whether a disk that fails is back at its path, on another filesystem."""
        where = judge(place, self._commitlog.pool_id, disk.disk_id, (disk.device, disk.ino))
        if where is Whereabouts.HERE:
            self._away.pop(disk.number, None)
            if disk.is_vanished:
                disk.is_vanished = False
                log_event(log, logging.WARNING, "disk_returned", disk=disk.path)
            return False
        self._away[disk.number] = self._away.get(disk.number, 0) + 1
        if self._away[disk.number] >= LOOKS_TO_VANISH and not disk.is_vanished:
            disk.is_vanished = True
            log_event(log, logging.ERROR, "disk_vanished", disk=disk.path)
        return where is Whereabouts.BACK and _fails(disk)


def _fails(disk: Disk) -> bool:
    """Whether a disk that is served does not work. One that is read-only since its start works as intended."""
    is_suspected = disk.is_failing or disk.suspected_since_s is not None
    return is_suspected or disk.is_unreadable or (disk.is_read_only and disk.state is DiskState.RW)
