"""Incarnations of disks: a disk that was away may be back on another filesystem, as the kernel sees it.

Files that were open on the former filesystem stay there until their last close, and the kernel refuses to open the
same inode with another file behind it. So the files of the disk become other inodes: their generation contains the
incarnation, and backing ids of the former files are given back. The former inodes are lost to the kernel: it
refuses to read and write them. So a disk stays the same incarnation if the kernel has no backing file of it: files
that are served plain lead to the disk as it is now, and what is written to a mapping of them arrives there.

The filesystem of each disk is kept beside the backing table, by its device number, which is not given out again
while a file is open there. For a disk that a daemon does not serve, 0 is kept; or nothing, if that daemon gives
backing ids of its files back.
"""

import logging
from collections.abc import Iterable

from commitlogfs.fusefs.disks.disk_memory import Kind
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

_NOT_SERVED = 0


class Incarnations:
    """Made at the start of a daemon, before any request is answered."""

    def __init__(self, disks: Iterable[Disk], backing: Backing) -> None:
        """`backing` has begun, and has not resumed. The disks whose backing ids it will give back are recorded at
        once: if this daemon dies then, nothing else shows that they had some."""
        self._backing = backing
        self._devices = {disk.number: disk.device for disk in disks}
        notes = backing.kept_notes()
        known = {DiskNumber(number): value for (number, kind), value in notes.items() if kind == Kind.INCARNATION}
        self._filesystems = {number: notes.get((number, Kind.FILESYSTEM)) for number in known}
        passed_through = backing.disks_passed_through()
        self.returned: frozenset[DiskNumber] = frozenset(
            number
            for number, former in self._filesystems.items()
            if number in self._devices and former != self._devices[number]
        )
        """Disks that the former daemon of this mount has served on another filesystem, or not at all."""
        self.renewed: frozenset[DiskNumber] = frozenset(
            number for number in self.returned if self._filesystems[number] is None or number in passed_through
        )
        """Those of which the kernel may hold former files."""
        for number in self.renewed | (passed_through - self._devices.keys()):
            self._filesystems[number] = None
            backing.keep_note(number, Kind.INCARNATION, known.get(number, 0))
            backing.keep_note(number, Kind.FILESYSTEM, None)
        self._numbers = {number: value + (number in self.renewed) for number, value in known.items()}
        inodes.begin_incarnations(self._numbers)

    def record(self) -> None:
        """Record them for the next daemon. A daemon that dies before has used none: it has answered no request."""
        for number, device in self._devices.items():
            self._backing.keep_note(number, Kind.INCARNATION, self._numbers.get(number, 0))
            self._backing.keep_note(number, Kind.FILESYSTEM, device)
        for number in self._filesystems.keys() - self._devices.keys():
            if self._filesystems[number] is not None:
                self._backing.keep_note(number, Kind.FILESYSTEM, _NOT_SERVED)


def report_returned(disks: Iterable[Disk], returned: frozenset[DiskNumber]) -> None:
    for disk in disks:
        if disk.number in returned:
            log_event(log, logging.WARNING, "disk_returned", disk=disk.path)
