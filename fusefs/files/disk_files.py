"""File operations of one disk, as coroutines. The blocking work runs in threads of that disk.

An OSError that blames the disk is raised as the store's own error, an OSError of the file alone as it is, and both
are counted. An operation with a deadline raises DiskSilentError when that has passed; its system call still
happens.
"""

import contextlib
import errno
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads, PromptCalls
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store import layout
from commitlogfs.store.clock import Clock
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import Disk, translate
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError, DiskSilentError, ForeignFileError
from commitlogfs.store.events import log_event
from commitlogfs.store.files import allocate, changes, durable, remove, rename, safe_open, write_lease, written
from commitlogfs.store.files.allocate import Owner, Published
from commitlogfs.store.files.attributes import PackedAttributes, stat_changes, stat_fd
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.files.hashing import read_checksum_of
from commitlogfs.store.files.remove import FreeWait, Reason, Retired
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.moves import mark, putting_back, restored, unreadable
from commitlogfs.store.moves.copy import SegmentCopy, remove_stray_copy
from commitlogfs.store.moves.former import ContentRecord, read_record
from commitlogfs.store.moves.mark import Source
from commitlogfs.store.moves.putting_back import Copy
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.timing import RequestTiming

log = logging.getLogger(__name__)

T = TypeVar("T")

STATS_AT_ONCE = 512
"""Files whose attributes one call reads: so many inodes are read from a disk in one piece."""


class Reserved(NamedTuple):
    """An unnamed file with all blocks of a segment."""

    fd: int
    attributes: PackedAttributes


class Opened(NamedTuple):
    fd: int
    writable: bool
    """False on a read-only disk."""
    is_restored: bool
    """Whether it has the mark of a restored segment that no process has opened for writing."""


class DiskFiles:
    """The file operations of one disk. Names lie in the disk's directory, paths there or in a directory below
    it."""

    def __init__(
        self, disk: Disk, threads: DiskThreads, observer: Observer, clock: Clock, timing: RequestTiming
    ) -> None:
        self._disk = disk
        self._threads = threads
        self._observer = observer
        self._timing = timing
        self._free_wait = FreeWait(timing.freed_s, clock)
        self._stats = PromptCalls(threads)

    @property
    def number(self) -> DiskNumber:
        return self._disk.number

    @property
    def path(self) -> str:
        """The disk's path, for messages."""
        return self._disk.path

    def record_error(self, op: str, errno_name: str) -> None:
        """Count an error that no operation here has raised itself."""
        self._observer.disk_error(self.path, op, errno_name)

    @contextlib.contextmanager
    def limited(self, op: str, deadline_s: float) -> Iterator[None]:
        """Everything within has that much time together, also waiting for other requests. Raises DiskSilentError
        afterwards, which is counted. A call that cannot be abandoned is waited for."""
        with trio.move_on_after(deadline_s) as scope:
            yield
        if scope.cancelled_caught:
            self.record_error(op, "ETIMEDOUT")
            raise DiskSilentError(self.path, f"{op}: no answer within {deadline_s:g} s")

    # --- attributes ----------------------------------------------------------------------------------

    async def stat(self, path: bytes) -> PackedAttributes | None:
        """Attributes of a file; None where the disk fails, or does not answer within RequestTiming.stat_s."""
        stat = partial(safe_open.stat_path, self._disk.dirfd, path)
        try:
            return await self._threads.run_within(self.number, self._timing.stat_s, stat)
        except TimeoutError:
            self.record_error("stat", "ETIMEDOUT")
        except OSError as error:
            self._stat_failed(path, error)
        return None

    async def stat_soon(self, path: bytes, late: Callable[[PackedAttributes], object]) -> PackedAttributes | None:
        """As `stat`, but None after RequestTiming.refresh_s, and then `late` gets the attributes when the disk has
        answered. None at once while the disk owes such an answer."""
        stat = partial(safe_open.stat_path, self._disk.dirfd, path)
        try:
            return await self._stats.run_within(self.number, self._timing.refresh_s, stat, late)
        except TimeoutError:
            pass
        except OSError as error:
            self._stat_failed(path, error)
        return None

    async def holds_nothing(self, path: bytes, ino: int) -> bool:
        """Whether a file holds no data, by its blocks. False where the disk fails, does not answer within
        RequestTiming.stat_s, or owes an answer to a stat."""
        ask = partial(leftovers.name_holds_nothing, self._disk.dirfd, path, ino)
        try:
            return await self._stats.run_within(self.number, self._timing.stat_s, ask, lambda _late: None)
        except TimeoutError:
            return False

    async def stat_segments(
        self,
        bases: Sequence[BaseOffset],
        known: list[PackedAttributes],
        record: Callable[[int, PackedAttributes], None],
    ) -> None:
        """Pass the indexes and the attributes of the segments that are not as `known` to `record`, until the disk
        does not answer for RequestTiming.refresh_s, or has taken RequestTiming.stat_s. A late answer is passed,
        too."""
        dirfd, ends = self._disk.dirfd, trio.current_time() + self._timing.stat_s
        for first in range(0, len(bases), STATS_AT_ONCE):
            part = slice(first, first + STATS_AT_ONCE)
            names = [format_segment_name(base) for base in bases[part]]
            read = partial(stat_changes, dirfd, names, known[part])
            take = partial(self._take_stats, first, record)
            try:
                take(await self._stats.run_within(self.number, self._timing.refresh_s, read, take))
            except TimeoutError:
                return
            if trio.current_time() >= ends:
                return

    def _take_stats(
        self,
        first: int,
        record: Callable[[int, PackedAttributes], None],
        outcomes: list[tuple[int, PackedAttributes | int]],
    ) -> None:
        for index, outcome in outcomes:
            if isinstance(outcome, int):
                self.record_error("stat", errno.errorcode.get(outcome, "EIO"))
            else:
                record(first + index, outcome)

    async def stat_open(self, fd: int) -> PackedAttributes:
        """Attributes of an open file. Raises DiskError, OSError."""
        return await self._run("stat", partial(stat_fd, fd))

    async def change(
        self, path: bytes, ino: int, wanted: Changes, check_resize: Callable[[int, int], None]
    ) -> PackedAttributes:
        """Change size, mode, owner and times; the attributes afterwards. Raises DiskError, OSError, and whatever
        `check_resize(current, new)` raises."""
        op = "setattr" if wanted.size is None else "ftruncate"
        apply = partial(changes.apply, self._disk.dirfd, path, ino, wanted, check_resize)
        try:
            return await self._run_abandonable(op, apply)
        except FileNotFoundError as error:
            raise self._vanished(path) from error

    async def truncate(self, fd: int, size: int) -> PackedAttributes:
        """Cut an open file; its attributes afterwards. Raises DiskError, OSError."""

        def work() -> PackedAttributes:
            os.ftruncate(fd, size)
            return stat_fd(fd)

        return await self._run("cut", work)

    # --- open files ----------------------------------------------------------------------------------

    async def open(self, path: bytes, ino: int) -> Opened:
        """Open the file with inode `ino` for reading and writing, or for reading only on a read-only disk. Raises
        DiskError, OSError."""
        try:
            work = partial(_open, self._disk.dirfd, path, ino)
            return await self._run_abandonable("open", work, discard=lambda opened: os.close(opened.fd))
        except FileNotFoundError as error:
            raise self._vanished(path) from error

    async def require_writable(self, path: bytes, ino: int, deadline_s: float) -> None:
        """Open the file with inode `ino` for writing, and close it. Raises DiskError, OSError."""
        dirfd = self._disk.dirfd

        def work() -> None:
            os.close(safe_open.open_file(dirfd, path, os.O_RDWR, ino))

        await self._run_abandonable("open", work, deadline_s)

    async def is_restored(self, name: bytes, ino: int) -> bool:
        """Whether a segment was restored, and no process has opened it for writing since. Raises DiskError,
        OSError."""
        ask = partial(restored.is_marked, self._disk.dirfd, name, ino)
        return await self._run_abandonable("open", ask, self._timing.stat_s)

    async def remove_restored_mark(self, fd: int) -> None:
        """A process has opened a restored segment for writing. Raises DiskError, OSError."""
        remove_it = partial(restored.remove_restored_mark, fd)
        await self._run_abandonable("setattr", remove_it, self._timing.stat_s)

    async def close(self, fd: int) -> None:
        """Close a descriptor, which may write something to the disk first. Raises OSError."""
        await self._threads.run(self.number, partial(os.close, fd))

    async def sync(self, fd: int) -> None:
        """Make an open file durable. Raises DiskError, OSError."""
        await self._run("sync", partial(os.fsync, fd))

    async def is_open_elsewhere(self, path: bytes) -> bool | None:
        """Whether any other process has the file open; None where that cannot be known. Raises DiskError, OSError.

        Some read the disks directly, and a mapping outlives its descriptor: with passthrough, nobody tells the
        daemon when it ends. A backing id of ours counts as another process, so the caller gives that back first.
        """
        try:
            return await self._run("lease", partial(write_lease.is_open_elsewhere, self._disk.dirfd, path))
        except FileNotFoundError:
            return False
        except PermissionError:  # the file belongs to another user; removing it needs no permission of the file's
            return None

    # --- data ----------------------------------------------------------------------------------------
    # An error is the caller's answer as the disk gives it: it is raised as OSError, and not counted. A deadline
    # that has passed is.

    async def read(self, fd: int, length: int, offset: int) -> bytes:
        """Raises OSError."""
        return await self._threads.run(self.number, partial(os.pread, fd, length, offset))

    async def write(self, fd: int, data: memoryview, offset: int, *, grows: bool) -> PackedAttributes | None:
        """Write everything; the attributes afterwards if the write `grows` the file. Raises OSError."""
        return await self._threads.run(self.number, partial(_write_all, fd, data, offset, grows))

    async def commit(self, fd: int, *, data_only: bool = False) -> None:
        """Make what was written durable. Raises OSError."""
        await self._threads.run(self.number, partial(os.fdatasync if data_only else os.fsync, fd))

    async def has_data(self, path: bytes, deadline_s: float) -> bool:
        """Whether a record begins the file. Raises OSError, StaleInodeError (moved or removed meanwhile),
        DiskSilentError."""
        read = partial(written.has_data, self._disk.dirfd, path)
        try:
            return await self._run_limited("read", read, deadline_s)
        except FileNotFoundError as error:
            raise self._moved_away(path) from error

    async def read_checksum(self, name: bytes, ino: int, *, is_kept: bool = False) -> bytes | None:
        """The digest of a segment, if it has one of its present content, or, if it `is_kept`, of a former one.
        Raises DiskError, OSError, StaleInodeError (moved or removed meanwhile)."""
        read = partial(read_checksum_of, self._disk.dirfd, name, ino, is_kept=is_kept)
        try:
            return await self._run_abandonable("getxattr", read, self._timing.stat_s)
        except FileNotFoundError as error:
            raise self._moved_away(name) from error

    # --- creating and renaming -----------------------------------------------------------------------

    async def reserve(self, segment_size: int, owner: Owner, deadline_s: float) -> Reserved:
        """An unnamed file with all blocks of a segment; the caller closes it. Raises DiskError, OSError."""
        dirfd = self._disk.dirfd

        def work() -> Reserved:
            fd = allocate.reserve(dirfd, segment_size, owner)
            return Reserved(fd, stat_fd(fd))

        try:
            return await self._run_abandonable("reserve", work, deadline_s, lambda made: os.close(made.fd))
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # such as an ext4 without extents
                raise
            raise DiskFailedError(self.path, "its filesystem cannot reserve space (fallocate)") from error

    async def link(self, fd: int, name: bytes, may_begin: Callable[[], bool]) -> Published | None:
        """Give an unnamed file its name; None, and nothing done, if it may not begin, as the thread asks. Raises as
        `allocate.publish`, DiskError."""
        dirfd = self._disk.dirfd
        return await self._run("link", lambda: allocate.publish(dirfd, fd, name) if may_begin() else None)

    async def is_certainly_absent(self, name: bytes) -> bool:
        """Whether no file has this name; False where the disk fails, or does not answer within
        RequestTiming.stat_s."""
        ask = partial(allocate.is_certainly_absent, self._disk.dirfd, name)
        try:
            return await self._threads.run_within(self.number, self._timing.stat_s, ask)
        except TimeoutError:
            return False

    async def rename_copy(self, old_name: bytes, new_name: bytes, ino: int) -> PackedAttributes:
        """Rename a finished copy durably; its attributes afterwards. Raises DiskError, OSError."""
        return await self._run("rename", partial(rename.rename_copy, self._disk.dirfd, old_name, new_name, ino))

    # --- removing ------------------------------------------------------------------------------------

    async def unlink(self, name: bytes, ino: int) -> DiskUsage:
        """Remove a file that nobody has open, durably; the usage without it. Raises DiskError, OSError."""
        dirfd = self._disk.dirfd
        return await self._run("unlink", lambda: remove.remove_file(dirfd, name, ino, self._free_wait))

    async def retire(self, name: bytes, ino: int, reason: Reason) -> Retired:
        """Move an open file aside, durably. Raises DiskError, OSError."""
        return await self._run("retire", partial(remove.retire_file, self._disk.dirfd, name, ino, reason))

    async def change_reason(self, retired_name: bytes, reason: Reason) -> bytes:
        """Rename a retired file; its new name. Raises DiskError, OSError."""
        change = partial(remove.change_reason, self._disk.dirfd, retired_name, reason)
        return await self._run_abandonable("rename", change, self._timing.leftover_s)

    async def free_retired(self, retired_name: bytes) -> DiskUsage:
        """Remove a retired file after its last close; the usage without it. Raises DiskError, OSError."""
        dirfd = self._disk.dirfd
        return await self._run("free", lambda: remove.drop_retired(dirfd, retired_name, self._free_wait))

    async def punch(self, retired_name: bytes, ino: int, size: int) -> tuple[PackedAttributes, DiskUsage]:
        """Free the blocks of a retired file; its attributes, and the usage without them. Raises DiskError, OSError;
        FileNotFoundError where it has another name."""
        dirfd, wait = self._disk.dirfd, self._free_wait
        return await self._run("punch", partial(remove.punch_retired, dirfd, retired_name, ino, size, wait))

    async def punch_open(self, fd: int, retired_name: bytes, size: int) -> tuple[PackedAttributes, DiskUsage]:
        """`punch` of a file that this daemon has open."""
        dirfd, wait = self._disk.dirfd, self._free_wait
        return await self._run("punch", partial(remove.punch_fd, fd, dirfd, retired_name, size, wait))

    async def remove_leftover(self, name: bytes, ino: int) -> DiskUsage | None:
        """Remove an empty file, durably; the usage without it. None, and nothing removed, while another process has
        it open. Raises HoldsDataError, DiskError, OSError."""
        unlink = partial(leftovers.remove_leftover, self._disk.dirfd, name, ino)
        return await self._run_abandonable("unlink", unlink, self._timing.leftover_s)

    # --- moves between disks -------------------------------------------------------------------------

    async def publish_copy(self, copy: SegmentCopy, name: bytes) -> Published:
        """Give a copy on this disk its name, durably. Raises UncertainPublishError, DiskError, OSError."""
        return await self._run("link", partial(copy.publish, name))

    async def remove_stray_copy(self, name: bytes, source: Source) -> bool:
        """Remove a copy that may have got its name; whether the name is free now. Raises DiskError, OSError."""
        remove_it = partial(remove_stray_copy, self._disk.dirfd, name, source)
        return await self._run_abandonable("unlink", remove_it, self._timing.leftover_s)

    async def unreadable_ranges(self, name: bytes) -> list[tuple[int, int]]:
        """The positions that a file lacks, because they could not be read. Raises DiskError, OSError."""
        find = partial(unreadable.find_unreadable, self._disk.dirfd, [name])
        by_name = await self._run_abandonable("getxattr", find, self._timing.stat_s)
        return [places for _, found in by_name for places in found.ranges]

    async def content_record(self, name: bytes) -> ContentRecord:
        """The records of a file about its content. Raises DiskError, OSError."""
        read = partial(read_record, self._disk.dirfd, name)
        return await self._run_abandonable("getxattr", read, self._timing.stat_s)

    async def is_repair_of(self, name: bytes, ino: int, damaged: Source) -> bool:
        """Whether a segment is a right copy in the place of this damaged file. Raises DiskError, OSError."""
        ask = partial(mark.is_repair_of, self._disk.dirfd, name, ino, damaged)
        return await self._run_abandonable("getxattr", ask, self._timing.stat_s)

    async def remove_mark(self, name: bytes, ino: int) -> None:
        """A copy's source is gone, or set aside. Raises DiskError, OSError."""
        remove_it = partial(mark.remove_mark, self._disk.dirfd, name, ino)
        await self._run_abandonable("setxattr", remove_it, self._timing.stat_s)

    async def put_back(self, source: Segment, copy: Copy | None = None) -> PackedAttributes:
        """Give a retired file its segment's name back, durably, with owner and mode of its copy, if there is one,
        and a mark; its attributes. Raises DiskError, OSError."""
        name = format_segment_name(source.base_offset)
        work = partial(putting_back.put_back, self._disk.dirfd, source.placed_as, source.ino, name, copy)
        return await self._run("rename", work)

    async def drop_empty_directory(self) -> None:
        """Remove the directory of retired files if it is empty, and the disk answers."""
        drop = partial(remove.drop_empty_directory, self._disk.dirfd)
        with contextlib.suppress(OSError):  # it is harmless, and the next last close tries again
            await self._threads.run_within(self.number, self._timing.stat_s, drop)

    # --- the disk's directory ------------------------------------------------------------------------

    async def sync_directory(self) -> None:
        """Make all names durable. Raises DiskError, OSError."""
        await self._run("sync", partial(durable.sync_dir, self._disk.dirfd))

    async def write_root(self, root: RootAttributes) -> None:
        """Record mode and owner of the mounted directory, durably. Raises DiskError, OSError."""
        record = identity.format_root(root)
        write = partial(durable.write_xattr, self._disk.dirfd, layout.XATTR_ROOT, record)
        await self._run_abandonable("setxattr", write, self._timing.change_s)

    # --- errors --------------------------------------------------------------------------------------

    async def _run(self, op: str, work: Callable[[], T]) -> T:
        """The result of `work`, however long it takes: the caller cannot be cancelled."""
        with self._errors_of(op):
            return await self._threads.run(self.number, work)

    async def _run_abandonable(
        self,
        op: str,
        work: Callable[[], T],
        deadline_s: float = math.inf,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """As `_run_limited`, with the errors of `_run`."""
        with self._errors_of(op):
            return await self._run_limited(op, work, deadline_s, discard)

    async def _run_limited(
        self, op: str, work: Callable[[], T], deadline_s: float, discard: Callable[[T], None] | None = None
    ) -> T:
        """The result of `work`. One that comes after the deadline, or after the caller was cancelled, is given to
        `discard`. An OSError is the caller's."""
        with self.limited(op, deadline_s):
            return await self._threads.run_within(self.number, math.inf, work, discard)

    @contextlib.contextmanager
    def _errors_of(self, op: str) -> Iterator[None]:
        """Count an OSError, and raise it as the store's own error if it blames the disk."""
        try:
            yield
        except OSError as error:
            self._count(op, error)
            translated = translate(self.path, error)
            if translated is error:
                raise
            raise translated from error

    def _stat_failed(self, path: bytes, error: OSError) -> None:
        self._count("stat", error)
        log_event(log, logging.WARNING, "stat_failed", disk=self.path, segment=path, errno=error.errno)

    def _vanished(self, path: bytes) -> ForeignFileError:
        """For a file that the daemon itself does not move or remove meanwhile."""
        fact = f"{path.decode()}: the file has vanished (removed outside commitlogfs)"
        return ForeignFileError(self.path, f"{fact}; run `commitlogfs check`")

    def _moved_away(self, path: bytes) -> inodes.StaleInodeError:
        """For a file that may be moved or removed meanwhile: the kernel looks its name up again."""
        return inodes.StaleInodeError(f"{path.decode()}: is not on {self.path} any more")

    def _count(self, op: str, error: OSError) -> None:
        self.record_error(op, errno.errorcode.get(error.errno or 0, "EIO"))


def files_of_disks(
    disks: Iterable[Disk], threads: DiskThreads, observer: Observer, clock: Clock, timing: RequestTiming
) -> dict[DiskNumber, DiskFiles]:
    """Disk number -> its file operations."""
    return {disk.number: DiskFiles(disk, threads, observer, clock, timing) for disk in disks}


def _open(dirfd: int, path: bytes, ino: int) -> Opened:
    """Read-write where the disk allows it: the broker opens every segment read-write."""
    try:
        fd = safe_open.open_file(dirfd, path, os.O_RDWR, ino)
        return Opened(fd, writable=True, is_restored=restored.has_mark(fd))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
    return Opened(safe_open.open_file(dirfd, path, os.O_RDONLY, ino), writable=False, is_restored=False)


def _write_all(fd: int, data: memoryview, offset: int, grows: bool) -> PackedAttributes | None:
    while data:
        count = os.pwrite(fd, data, offset)
        data = data[count:]
        offset += count
    return stat_fd(fd) if grows else None
