"""Freeing what has left the log: retired files after their last close, and leftovers of given-up segments.

The kernel's own knowledge decides, not a count of opens, which would die with the daemon. The kernel reports that
it drops an inode (FORGET), but only once, so there is a check every second, too.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

import trio

from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError, ForeignFileError, HoldsDataError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import PackedAttributes
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.other_files import is_set_aside, was_moved

log = logging.getLogger(__name__)


class Freeing:
    """Gives back the space of files that are no part of the log any longer."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        handles: Handles,
        to_free: Reminders,
        put_back_if_changed: Callable[[Segment], Awaitable[bool]],
    ) -> None:
        """`to_free` says when there may be something to free. `put_back_if_changed`: as of fusefs.moves.sources."""
        self._commitlog = commitlog
        self._disks = disks
        self._handles = handles
        self._to_free = to_free
        self._put_back_if_changed = put_back_if_changed

    async def run(self) -> None:
        """Until cancelled. Each disk has its own task, so a disk that hangs delays its own files only."""
        async with trio.open_nursery() as nursery:
            for disk in self._disks.values():
                nursery.start_soon(self._run_for, disk)

    async def free_now(self, number: DiskNumber) -> None:
        """Return once each file of a disk has been checked, and freed unless it is in use. `run` is running."""
        await self._to_free.run_round(number)

    async def punch(self, file: Segment) -> None:
        """Free the blocks of a retired file although it is open. They stay where another user keeps the file under
        a name of his own, and count as impossible to gain from then on. Raises DiskError, OSError."""
        disk = self._disks[file.disk]
        try:
            attributes, usage = await self._punched(file, disk)
        except (FileNotFoundError, ForeignFileError) as error:
            self._commitlog.others.record_kept(file)
            log_event(log, logging.WARNING, "punch_refused", segment=file.name, disk=disk.path, reason=str(error))
            return
        self._commitlog.record_attributes(file, attributes)
        self._commitlog.space.record_usage(file.disk, usage)

    async def _punched(self, file: Segment, disk: DiskFiles) -> tuple[PackedAttributes, DiskUsage]:
        size = self._commitlog.segment_size
        if not self._handles.is_open(file):
            return await disk.punch(file.placed_as, file.ino, size)
        async with self._handles.use(inodes.encode(file)) as handle:
            return await disk.punch_open(handle.fd, file.placed_as, size)

    async def _run_for(self, disk: DiskFiles) -> None:
        member = self._commitlog.disks[disk.number]
        may_have_directory = member.state is DiskState.RW  # which a former daemon has left
        while True:
            if may_have_directory and not member.is_unresponsive:  # a thread would hold this daemon while it hangs
                may_have_directory = False
                await disk.drop_empty_directory()
            await self._to_free.wait(disk.number, self._commitlog.timing.requests.freeing_s)
            for file in self._commitlog.others.retired():
                if file.disk == disk.number:
                    await self._free(file, disk)
            if member.state is DiskState.RW and not member.is_troubled:
                for file in self._commitlog.others.leftovers(disk.number):
                    await self._remove_leftover(file, disk)

    async def _free(self, file: Segment, disk: DiskFiles) -> None:
        """Give a retired file's space back, unless it is still open, holds what its segment does not, or is the
        damaged file of a segment of the log."""
        if is_set_aside(file) and self._commitlog.catalog.get(file.base_offset) is not None:
            return
        try:
            if was_moved(file) and not await self._is_held(file) and await self._put_back_if_changed(file):
                return
        except (DiskError, OSError):
            return  # logged; tried again
        async with self._handles.first_opens_held(file):  # a removal under way ends first
            if file not in self._commitlog.others.retired() or await self._is_held(file):
                return
            try:
                await self._handles.let_go(file)
                if await disk.is_open_elsewhere(file.path):
                    return
                usage = await disk.free_retired(file.name)
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "free_failed", segment=file.name, reason=str(error))
                return
            self._commitlog.record_freed(file, usage)

    async def _remove_leftover(self, file: Segment, disk: DiskFiles) -> None:
        """Remove a leftover that nobody has open. If it holds data, it may be anything, and stays."""
        name = file.name
        async with self._handles.first_opens_held(file):
            if await self._is_held(file):
                return
            try:
                await self._handles.let_go(file)
                usage = await disk.remove_leftover(name, file.ino)
            except (HoldsDataError, ForeignFileError) as error:
                self._commitlog.others.record_kept(file)
                log_event(log, logging.ERROR, "leftover_kept", segment=name, disk=disk.path, reason=str(error))
                return
            except (DiskError, OSError) as error:
                reason = error if isinstance(error, DiskError) else DiskFailedError(disk.path, str(error))
                self._commitlog.admission.record_trouble(disk.number, reason, self._commitlog.clock.monotonic())
                log_event(log, logging.WARNING, "leftover_not_removed", segment=name, reason=str(error))
                return
        if usage is not None:
            self._commitlog.record_leftover_gone(file, usage)
            log_event(log, logging.INFO, "leftover_removed", segment=name, disk=disk.path)

    async def _is_held(self, file: Segment) -> bool:
        """Whether this daemon has a file open, or the kernel still knows its inode."""
        return self._handles.is_open(file) or await self._handles.is_known_to_kernel(file)
