"""Incarnations of disks: a disk that was away may be back on another filesystem, as the kernel sees it.

Files that were open on the former filesystem stay there until their last close, and the kernel refuses to open the
same inode with another file behind it. So the files of the disk become other inodes: their generation contains the
incarnation, and backing ids of the former files are given back.

The filesystem of each disk is kept beside the backing table, by its device number, which is not given out again
while a file is open there. For a disk that a daemon did not serve, 0 is kept: the backing ids of its files are
gone.
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
        """`backing` has begun."""
        self._backing = backing
        self._devices = {disk.number: disk.device for disk in disks}
        notes = backing.kept_notes()
        known = {DiskNumber(number): value for (number, kind), value in notes.items() if kind == Kind.INCARNATION}
        self.returned: frozenset[DiskNumber] = frozenset(
            number
            for number, device in self._devices.items()
            if number in known and notes.get((number, Kind.FILESYSTEM)) != device
        )
        """Disks that a former daemon of this mount has served on another filesystem."""
        self._numbers = {number: value + (number in self.returned) for number, value in known.items()}
        inodes.begin_incarnations(self._numbers)

    def record(self) -> None:
        """Record them for the next daemon. A daemon that dies before has used none: it has answered no request."""
        for number in self._devices.keys() | self._numbers.keys():
            self._backing.keep_note(number, Kind.INCARNATION, self._numbers.get(number, 0))
            self._backing.keep_note(number, Kind.FILESYSTEM, self._devices.get(number, _NOT_SERVED))


def report_returned(disks: Iterable[Disk], returned: frozenset[DiskNumber]) -> None:
    for disk in disks:
        if disk.number in returned:
            log_event(log, logging.WARNING, "disk_returned", disk=disk.path)
