"""Which opened files the kernel serves by itself (passthrough), and which this process serves (plain).

It is decided at a file's first open and holds until the file is gone: the kernel refuses a second backing id for an
inode in use, and a mixture of both ways. A file has one backing id, which all its opens share and which stays when
there are none. So no count has to survive the death of a daemon.
"""

import errno
import logging
import os
from collections.abc import Iterable, Set
from types import ModuleType

import trio

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing_table import PLAIN, BackingTable
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.files import safe_open
from commitlogfs.store.pool.catalog import Segment

log = logging.getLogger(__name__)

_IDS_AT_ONCE = 1024
"""Backing ids tried between two checks for waiting requests; takes about a millisecond."""


class Backing:
    """Opened files as the kernel knows them. Before `begin`, everything is served plain."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._table = BackingTable.create(0)
        self._kernel: ModuleType | None = None
        self._refused: dict[int, str] = {}
        self._inherited: set[int] = set()
        self._inherits_all = False
        self._set_aside: dict[int, int] = {}
        self._known: set[int] = set()
        self._newest = 0
        """Backing ids recorded at a takeover, and the last one that the kernel had given out; for
        `give_back_unknown`."""
        self.why_plain = "not mounted"
        self.state_lost = False
        """Whether, since the mount was made, the knowledge of opened files was lost at a takeover."""

    def begin(self, table: BackingTable, kernel: ModuleType | None, why_plain: str) -> None:
        """Called once, when mounted. `kernel` is the extension, None if it is absent. With a `why_plain` no further
        files are passed through."""
        self._table.close()
        self._table = table
        self._kernel = kernel
        self.why_plain = why_plain

    def probe_disk(self, disk: Disk) -> str:
        """Why no file of this disk can be passed through; empty if no reason is known. Blocks; for any thread."""
        return "" if self._kernel is None or self.why_plain else _try_disk(self._kernel, disk)

    def record_disk(self, disk: Disk, reason: str) -> None:
        """Record the result of `probe_disk`. With a reason, the disk's files are served plain without trying
        each."""
        if reason:
            self._refused[disk.number] = reason
            log_event(log, logging.WARNING, "passthrough_off", disk=disk.path, reason=reason)

    def why_none(self, disks: Iterable[Disk]) -> str:
        """Why no file of these disks is passed through; empty if some may be."""
        reasons = [self._refused.get(disk.number, "") for disk in disks]
        if self.why_plain or not reasons or not all(reasons):
            return self.why_plain
        return ", ".join(sorted(set(reasons)))

    def resume(self, served: Iterable[Segment], disks: Set[DiskNumber]) -> int:
        """After a takeover: use the records of the former daemons, and give back the ids of files that are gone.
        `served` are all files that still exist on `disks`. A file on another disk may still be open when that is
        back, so the record of one that is served plain stays. Returns the number of ids that were given back.

        `give_back_unknown` does the rest, when requests are served again.
        """
        existing = {int(inodes.encode(file)) for file in served}
        freed = 0
        for inode, backing_id in self._table:
            if inode not in existing:
                file = inodes.decode(inode)
                if backing_id == PLAIN and file is not None and file.disk not in disks:
                    continue
                freed += self._give_back(backing_id)
                self._table.remove(inode)
                continue
            self._inherited.add(inode)
            if backing_id != PLAIN and self._kernel is not None:
                self._kernel.bind(inode, backing_id)
                self._known.add(backing_id)
        self._newest = self._newest_id()
        return freed

    def resume_without_state(self) -> None:
        """After a takeover without the table: every id belongs to an inode that cannot be reached any more, and any
        file may be open."""
        self._inherits_all = True
        self._newest = self._newest_id()

    async def give_back_unknown(self) -> int:
        """After a takeover: give back the ids without a record, which would keep the space of their files for ever.
        A daemon that dies may leave one. There can be many ids to try, so requests are answered in between. Returns
        the number of ids that were given back."""
        freed = 0
        for backing_id in range(1, self._newest + 1):
            if backing_id not in self._known:
                freed += self._give_back(backing_id)
            if backing_id % _IDS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        self._newest = 0
        self._known.clear()
        return freed

    def record_open(self, file: Segment, fd: int, *, writable: bool, first: bool, to_write: bool) -> None:
        """Called before the reply to an open. `writable`: `fd` is open for reading and writing; `first`: this
        daemon knows of no other open; `to_write`: the caller opens the file for writing."""
        inode = int(inodes.encode(file))
        known = self._table.get(inode)
        if known is not None:
            # The disk has become read-only. The kernel would open the file for writing, as the caller asks, and
            # fail; but a broker that starts again must succeed. Serving it plain is possible while no process holds
            # it.
            if known == PLAIN or writable or not first:
                return
            if inode in self._inherited:
                # Only the kernel knows whether one does. Then it refuses this open and releases it at once.
                if to_write:
                    self._serve_plain_meanwhile(inode, known)
                return
            self.record_gone(file)
        backing_id = self._obtain(file, fd, writable)
        self._table.put(inode, backing_id)
        if backing_id != PLAIN and self._kernel is not None:
            self._kernel.bind(inode, backing_id)

    def record_last_close(self, file: Segment) -> None:
        """Called when this daemon knows of no open any more. Whether the kernel accepted or refused the plain
        opens: none is left, so the backing id is right again, for processes that held the file all the time and for
        others.
        """
        inode = int(inodes.encode(file))
        backing_id = self._set_aside.pop(inode, None)
        if backing_id is not None and self._kernel is not None:
            self._table.put(inode, backing_id)
            self._kernel.bind(inode, backing_id)

    def is_inherited(self, file: Segment) -> bool:
        """Whether it was opened under a former daemon: the kernel may hold it open unknown to this one."""
        return self._inherits_all or int(inodes.encode(file)) in self._inherited

    def is_passed_through(self, file: Segment) -> bool:
        return (self._table.get(int(inodes.encode(file))) or PLAIN) != PLAIN

    def record_gone(self, file: Segment) -> None:
        """Called when the kernel does not hold the file any more. Gives its backing id back."""
        inode = int(inodes.encode(file))
        self._inherited.discard(inode)
        self._give_back(self._set_aside.pop(inode, PLAIN))
        backing_id = self._table.get(inode)
        if backing_id is None:
            return
        if self._kernel is not None:
            self._kernel.unbind(inode)
        self._give_back(backing_id)
        self._table.remove(inode)

    def close(self) -> None:
        """Called at the end of the daemon. A successor gets the table from the descriptor store."""
        self._table.close()

    @property
    def takeovers(self) -> int:
        """Number of takeovers of this mount."""
        return self._table.takeovers

    def record_takeover(self) -> None:
        """Count this daemon's."""
        self._table.record_takeover()

    @property
    def clock_lead_s(self) -> float | None:
        """As the first daemon of this mount has measured it; None if it has not yet."""
        return self._table.clock_lead_s

    def record_clock_lead(self, lead_s: float | None) -> None:
        """For later daemons."""
        self._table.record_clock_lead(lead_s)

    def disks_passed_through(self) -> set[DiskNumber]:
        """Disks of whose files the kernel may hold some open."""
        found = (inodes.decode(inode) for inode, backing_id in self._table if backing_id != PLAIN)
        return {file.disk for file in found if file is not None}

    def keep_note(self, disk: DiskNumber, kind: int, value: int | None) -> None:
        """Keep a number about a disk for later daemons."""
        self._table.put_note(disk, kind, value)

    def kept_notes(self) -> dict[tuple[int, int], int]:
        """(disk number, kind) -> number that this or a former daemon has kept."""
        return self._table.notes()

    def counts(self) -> tuple[int, int]:
        """Number of files passed through, and of files served plain."""
        passed = sum(1 for _, backing_id in self._table if backing_id != PLAIN)
        return passed, len(self._table) - passed

    def _serve_plain_meanwhile(self, inode: int, backing_id: int) -> None:
        """Until `record_last_close`. It is recorded, because a successor has to know what is open plain."""
        if self._kernel is not None:
            self._kernel.unbind(inode)
        self._set_aside[inode] = backing_id
        self._table.put(inode, PLAIN)

    def _obtain(self, file: Segment, fd: int, writable: bool) -> int:
        if self._kernel is None or self.why_plain:
            return PLAIN
        reason = self._refused.get(file.disk, "") or ("" if writable else "read-only")
        if not reason:
            try:
                backing_id: int = self._kernel.open_backing(fd)
            except OSError as error:
                reason = errno.errorcode.get(error.errno or 0, "EIO")
                log_event(log, logging.WARNING, "passthrough_refused", segment=file.name, reason=reason)
            else:
                return backing_id
        self._observer.passthrough_refused(reason)
        return PLAIN

    def _newest_id(self) -> int:
        """The highest id that the kernel can have given out: it counts up, and starts again only after two billion.
        0 if it gives out none."""
        if self._kernel is None:
            return 0
        try:
            newest: int = self._kernel.open_backing(self._table.fd)
        except OSError:
            return 0  # the mount was made without passthrough
        self._give_back(newest)
        return newest

    def _give_back(self, backing_id: int) -> int:
        """1 if the kernel knew the id, else 0."""
        if backing_id == PLAIN or self._kernel is None:
            return 0
        try:
            self._kernel.close_backing(backing_id)
        except OSError as error:
            if error.errno != errno.ENOENT:
                log_event(log, logging.ERROR, "backing_id_stays", id=backing_id, errno=error.errno)
            return 0
        return 1


def _try_disk(kernel: ModuleType, disk: Disk) -> str:
    """Why the kernel accepts no file of this disk; empty if it does."""
    try:
        fd = safe_open.open_unnamed(disk.dirfd, 0o600)
    except OSError:
        return ""  # full, read-only or failing: this says nothing about passthrough, so each file is tried
    try:
        kernel.close_backing(kernel.open_backing(fd))
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "stacked filesystem"
        if error.errno == errno.EPERM:
            return "no CAP_SYS_ADMIN"
        return errno.errorcode.get(error.errno or 0, "EIO")
    finally:
        os.close(fd)
    return ""
