"""Open files: one backing descriptor per file, shared by all its opens.

A handle is found by inode number, so a request that carries the handle of a former daemon opens the file
again. A descriptor is closed when the last open is released and no request uses it.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, SegmentNotFoundError
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Role, Segment, SizeChange
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.other_files import was_moved


@dataclass(slots=True)
class Handle:
    """A file's descriptor. `writable` is False for a file on a read-only disk."""

    file: Segment
    fd: int
    writable: bool
    is_restored: bool = False
    """As for Opened."""
    opens: int = 0
    users: int = 0
    """Number of requests that use the descriptor at the moment."""


@dataclass(frozen=True, slots=True)
class HandleStatistics:
    files: int
    opens: int


class Handles:
    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        threads: DiskThreads,
        backing: Backing,
        to_free: Reminders,
        release: Callable[[Segment], Awaitable[None]],
        kernel_holds: Callable[[int], bool],
    ) -> None:
        """`to_free` is reminded of the last close of a file that is no part of the log any longer. `release` closes
        what else the daemon has of a file open. `kernel_holds` returns whether the kernel still knows an inode; it
        may block."""
        self._commitlog = commitlog
        self._disks = disks
        self._threads = threads
        self._backing = backing
        self._to_free = to_free
        self._release = release
        self._kernel_holds = kernel_holds
        self._handles: dict[int, Handle] = {}
        self._opening: dict[int, trio.Lock] = {}
        self._closed_empty: set[int] = set()
        """Inode numbers of files that were empty at their last close."""

    async def open(self, file: Segment, *, to_write: bool = False) -> Handle:
        """Open a file once more; `to_write` says whether its caller opens it for writing. Raises DiskError,
        OSError, SegmentNotFoundError (removed meanwhile), StaleInodeError (given up: the kernel looks the name up
        again)."""
        async with self._using(file) as handle:
            require_in_place(file)
            self._backing.record_open(
                file, handle.fd, writable=handle.writable, first=not handle.opens, to_write=to_write
            )
            handle.opens += 1
            if to_write and handle.is_restored:
                handle.is_restored = False
                # The open succeeds, since it is counted; a mark that stays does no harm.
                with trio.CancelScope(shield=True), contextlib.suppress(DiskError, OSError):
                    await self._disks[file.disk].remove_restored_mark(handle.fd)
            return handle

    def add(self, file: Segment, fd: int) -> Handle:
        """Take the descriptor of a file that was just created as its first open."""
        self._backing.record_open(file, fd, writable=True, first=True, to_write=True)
        handle = Handle(file, fd, writable=True, opens=1)
        self._handles[inodes.encode(file)] = handle
        return handle

    @asynccontextmanager
    async def use(self, inode: int) -> AsyncIterator[Handle]:
        """The handle of an inode, for the length of one request. Raises as `open`."""
        key = inodes.decode(inode)
        if key is None:
            raise inodes.StaleInodeError(f"inode {inode} is not a segment")
        async with self._using(self._commitlog.find_ino(*key)) as handle:
            yield handle

    def is_certainly_empty(self, file: Segment) -> bool | None:
        """Whether a file that is, or was, open has no content, as the kernel knows without its disk: with
        passthrough, it may have grown without a request to the daemon. None for a file that only a former daemon
        may have opened."""
        if self.is_open(file):
            return self._holds_nothing(self._handles[inodes.encode(file)])
        if inodes.encode(file) in self._closed_empty and not self._backing.is_inherited(file):
            return True
        return None

    def size_in_memory(self, file: Segment) -> int | None:
        """Size of a file that this daemon has open, as the kernel knows it without its disk; None for any other,
        and for a new segment whose size in memory its disk has not confirmed."""
        if not self.is_open(file) or file.size_change is not SizeChange.NONE:
            return None
        return leftovers.size_in_memory(self._handles[inodes.encode(file)].fd)

    async def release(self, inode: int) -> None:
        """Count one open less. A release of an open that only a former daemon knew is tolerated."""
        handle = self._handles.get(inode)
        if handle is None:
            return
        handle.opens = max(0, handle.opens - 1)
        await self._close_if_idle(handle)

    def is_open(self, file: Segment) -> bool:
        """Whether this daemon has a file open. A first open under way does not count yet; within
        `first_opens_held`, a closed file stays closed."""
        handle = self._handles.get(inodes.encode(file))
        return handle is not None and handle.file is file

    def may_be_open(self, file: Segment) -> bool:
        """Whether a process has a file open, or may have: it was opened under a former daemon."""
        return self.is_open(file) or self._backing.is_inherited(file)

    async def is_in_use(self, file: Segment) -> bool:
        """Whether any process has a file open or mapped. If none has, the daemon has let go of it, too. The caller
        is within `first_opens_held`."""
        if self.may_be_open(file):
            return True
        was_passed_through = self._backing.is_passed_through(file)
        await self.let_go(file)
        is_open = await self._disks[file.disk].is_open_elsewhere(file.path)
        return was_passed_through if is_open is None else is_open

    async def let_go(self, file: Segment) -> None:
        """Close what the daemon itself has open of a file that no process has open any more, and give its backing
        id back: each keeps the space of a removed file. The caller is within `first_opens_held`. Raises OSError."""
        await self._release(file)
        self._backing.record_gone(file)

    def require_current(self, file: Segment) -> None:
        """Raises StaleInodeError for a file that has left the log, unless it was removed while it was open. The
        caller is within `first_opens_held`."""
        require_in_place(file)
        try:
            found = self._commitlog.find_ino(file.disk, file.ino)
        except SegmentNotFoundError as error:
            raise inodes.StaleInodeError(str(error)) from error
        if found is not file:
            raise inodes.StaleInodeError(f"{file.name.decode()}: removed")

    async def is_known_to_kernel(self, file: Segment) -> bool:
        """Whether the kernel still has a file's inode, open or cached: of a file that a former daemon has opened,
        only the kernel knows whether a process still has it open."""
        return await self._threads.aside(partial(self._kernel_holds, int(inodes.encode(file))))

    @asynccontextmanager
    async def first_opens_held(self, file: Segment) -> AsyncIterator[None]:
        """For moving or removing a file: a first open under way ends before, and others wait until afterwards."""
        inode = inodes.encode(file)
        lock = self._opening.setdefault(inode, trio.Lock())
        await lock.acquire()
        try:
            yield
        finally:
            if not lock.statistics().tasks_waiting:
                del self._opening[inode]
            lock.release()

    def statistics(self) -> HandleStatistics:
        return HandleStatistics(len(self._handles), sum(handle.opens for handle in self._handles.values()))

    def close(self) -> None:
        """Close all descriptors, at the end of the daemon."""
        for handle in self._handles.values():
            os.close(handle.fd)
        self._handles.clear()

    @asynccontextmanager
    async def _using(self, file: Segment) -> AsyncIterator[Handle]:
        handle = await self._get(file)
        handle.users += 1
        try:
            yield handle
        finally:
            handle.users -= 1
            with trio.CancelScope(shield=True):
                await self._close_if_idle(handle)

    async def _get(self, file: Segment) -> Handle:
        inode = inodes.encode(file)
        while True:
            handle = self._handles.get(inode)
            if handle is not None and handle.file is file:
                return handle
            # Two first opens at once must end up with one descriptor.
            async with self.first_opens_held(file):
                # Meanwhile the file may have been removed, and its inode number given to another one.
                if self._commitlog.others.get(file.disk, file.ino) is not file and was_moved(file):
                    raise inodes.StaleInodeError(f"{file.name.decode()}: is on another disk now")
                if self._commitlog.find_ino(file.disk, file.ino) is not file:
                    raise SegmentNotFoundError(f"{file.name.decode()}: removed")
                if inode not in self._handles:
                    opened = await self._disks[file.disk].open(file.path, file.ino)
                    self._handles[inode] = Handle(file, opened.fd, opened.writable, opened.is_restored)

    def _holds_nothing(self, handle: Handle) -> bool:
        """Whether nobody has written to an open file; False in doubt. Does not ask the disk. When a change of size
        has failed, memory proves nothing any more: what a process has written since may be synced and evicted."""
        if handle.file.size_change is SizeChange.UNDER_WAY:
            return leftovers.is_unwritten(handle.fd, self._commitlog.segment_size)
        return leftovers.size_in_memory(handle.fd) == 0

    async def _close_if_idle(self, handle: Handle) -> None:
        if handle.opens or handle.users:
            return
        inode = inodes.encode(handle.file)
        if self._handles.get(inode) is not handle:
            return
        del self._handles[inode]
        self._closed_empty.discard(inode)
        if not handle.file.size and self._holds_nothing(handle):
            self._closed_empty.add(inode)
        self._backing.record_last_close(handle.file)
        await self._release(handle.file)
        await self._disks[handle.file.disk].close(handle.fd)
        if handle.file.role is not Role.SEGMENT:
            self._to_free.remind(handle.file.disk)


def require_in_place(file: Segment) -> None:
    """Raises StaleInodeError for a file that was given up, or whose segment was moved: its name leads to another
    disk, so the kernel looks it up again."""
    if file.role is Role.GIVEN_UP or was_moved(file):
        raise inodes.StaleInodeError(f"{file.name.decode()}: is on another disk now")
