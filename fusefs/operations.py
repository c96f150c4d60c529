"""The FUSE request handlers, all of one shape: resolve, one call into the store, attributes out.

Only FUSEError leaves a handler; everything else is translated by fusefs.errors.
"""

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.errors import errno_of
from commitlogfs.fusefs.files import attrs, xattrs
from commitlogfs.fusefs.files.control_files import DIRECTORY_NAME, ControlContents, ControlFiles
from commitlogfs.fusefs.files.handles import Handle
from commitlogfs.fusefs.files.listing import readdir_reply
from commitlogfs.fusefs.kernel import extension, inodes
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.errors import (
    DiskError,
    DiskReadOnlyError,
    NotPermittedError,
    SegmentExistsError,
    SegmentNotFoundError,
    StoreError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import PERMISSION_BITS, Owner
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.retention.statfs import BLOCK_BYTES
from commitlogfs.store.segment import SegmentState, format_segment_name

log = logging.getLogger(__name__)

INVALIDATED_SEGMENTS = 64
"""More segments than a daemon removes by rule before it reports them to the kernel."""
SLOW_OPERATION_S = 1.0
NAME_MAX = 255

P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[Concatenate["CommitLogOperations", P], Coroutine[Any, Any, R]]


_resent: ContextVar[bool] = ContextVar("resent", default=False)
"""Whether the kernel had sent this request to a daemon that died, so that it may have had its effect already."""
_last_was_resent: Callable[[], bool] = extension.module.is_resent if extension.module else lambda: False


def handler(method: Handler[P, R]) -> Handler[P, R]:
    """Translate errors, count and time one kind of request."""
    op = method.__name__

    @functools.wraps(method)
    async def handle(self: "CommitLogOperations", *args: P.args, **kwargs: P.kwargs) -> R:
        _resent.set(_last_was_resent())  # pyfuse3 goes from reading a request straight to here
        if _resent.get():
            self.parts.observer.request_resent()
        started = self.commitlog.clock.monotonic()
        errno_name = ""
        try:
            return await method(self, *args, **kwargs)
        except FUSEError as error:
            errno_name = errno.errorcode.get(error.errno, str(error.errno))
            raise
        except Exception as error:
            code = errno_of(error)
            errno_name = errno.errorcode.get(code, str(code))
            log_event(log, logging.DEBUG, "refused", op=op, errno=errno_name, reason=str(error))
            raise FUSEError(code) from error
        finally:
            elapsed = self.commitlog.clock.monotonic() - started
            self.parts.observer.operation(op, errno_name, elapsed)
            if elapsed > SLOW_OPERATION_S:
                log_event(log, logging.WARNING, "slow_operation", op=op, seconds=elapsed)

    return cast("Handler[P, R]", handle)  # wraps() hides that self is positional


class CommitLogOperations(pyfuse3.Operations):
    """Serves one open CommitLog. Everything here runs in the event loop; blocking work is in threads."""

    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(self, parts: Parts, contents: ControlContents, *, refuse_reads_when_full: bool = False) -> None:
        super().__init__()
        self.parts = parts
        self.commitlog = parts.commitlog
        self.disk_files = parts.disk_files
        self.handles = parts.handles
        self.attributes = parts.attributes
        self._grown: set[int] = set()
        """Inode numbers of files that writes have, or may have, made longer since their last sync."""
        self._refuse_reads_when_full = refuse_reads_when_full
        self.control = ControlFiles(parts.commitlog, parts.disk_files, parts.handles, contents)

    # --- names and attributes ------------------------------------------------------------------------

    @handler
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        if parent_inode == inodes.CONTROL_DIRECTORY:
            return self.control.entry(self.control.lookup(name))
        if name == DIRECTORY_NAME:
            return self.control.entry(inodes.CONTROL_DIRECTORY)
        file = self.commitlog.find_name(name)
        if file is not None:
            await self.attributes.refresh(file)
            file = self.commitlog.find_name(name)  # meanwhile it may have been removed, or moved to another disk
        if file is None:
            raise FUSEError(errno.ENOENT)
        return attrs.entry_of_file(file)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """The kernel drops inodes, also some that a former daemon has answered for. Nothing is kept for each
        lookup, because inode numbers are derived from the files themselves."""
        if self.commitlog.others.has_retired:
            self.parts.to_free.remind_all()

    @handler
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        if inode == inodes.ROOT:
            return attrs.entry_of_root(self.commitlog.root, self.parts.changes.changed_ns)
        if self.control.owns(inode):
            return self.control.entry(inode)
        file = self._file(inode)
        await self.attributes.refresh(file)
        return attrs.entry_of_file(file)

    @handler
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        changes = Changes(
            size=attr.st_size if fields.update_size else None,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        if inode == inodes.ROOT:
            return await self._change_root(changes)
        if self.control.owns(inode):
            raise NotPermittedError("control files cannot be changed")
        file = self._file(inode)
        if changes.size is None:
            await self.attributes.change(file, changes)
        else:
            await self._resize(file, changes)
        return attrs.entry_of_file(file)

    async def _resize(self, file: Segment, changes: Changes) -> None:
        """A broker's way: the size is synced, and the content when the broker asks, so a close has nothing to sync.
        That is so, too, if a disk does not answer: no content comes before the size."""
        had_nothing = self.handles.is_certainly_empty(file)
        try:
            await self.parts.resizing.resize(file, changes)
        except DiskError:
            if had_nothing:
                self._grown.discard(inodes.encode(file))
            raise
        self._grown.discard(inodes.encode(file))

    @handler
    async def access(self, inode: InodeT, mode: ModeT, ctx: RequestContext) -> bool:
        """Always allowed: the kernel decides by mode bits before it asks (default_permissions)."""
        return True

    # --- creating and removing -----------------------------------------------------------------------

    @handler
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        if parent_inode != inodes.ROOT:
            raise NotPermittedError("control files cannot be made")
        try:
            handle = await self.parts.creation.create(name, Owner(ctx.uid, ctx.gid, mode))
        except SegmentExistsError:
            file = self.commitlog.find_name(name)
            if file is None or (flags & os.O_EXCL and not (_resent.get() and file.size == 0)):
                raise
            handle = await self._open_existing(file, flags)
        return self._file_info(handle.file, flags), attrs.entry_of_file(handle.file)

    @handler
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        if parent_inode != inodes.ROOT or name == DIRECTORY_NAME:
            raise NotPermittedError("control files cannot be removed")
        try:
            await self.parts.removals.unlink(name)
        except SegmentNotFoundError:
            if not _resent.get():
                raise
            await self.parts.removals.record_found_removed(name)

    @handler
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        if parent_inode_old != inodes.ROOT or parent_inode_new != inodes.ROOT or flags & pyfuse3.RENAME_EXCHANGE:
            raise NotPermittedError("only a finished copy can be renamed, onto its segment's name")
        copy = self.commitlog.find_name(name_old)
        if copy is not None:
            self.parts.lost_writes.require_none(copy)
        try:
            await self.parts.copies.publish(name_old, name_new)
        except SegmentNotFoundError:
            if not (_resent.get() and self.commitlog.find_name(name_new)):
                raise

    @handler
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        raise NotPermittedError("a commitlog has no subdirectories")

    @handler
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        raise NotPermittedError("a commitlog has no subdirectories")

    @handler
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        raise NotPermittedError("a commitlog has no links")

    @handler
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        raise NotPermittedError("a commitlog has no links")

    @handler
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        raise NotPermittedError("a commitlog has no special files")

    @handler
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        raise FUSEError(errno.EINVAL)

    # --- open files ----------------------------------------------------------------------------------

    @handler
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        if self.control.owns(inode):
            return self.control.open(inode, flags)
        self._require_readable(flags)
        handle = await self._open_existing(self._file(inode), flags)
        return self._file_info(handle.file, flags)

    @handler
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        if self.control.owns_handle(fh):
            if self.control.is_log(fh):
                self._require_readable(os.O_RDONLY)
            return await self.control.read(fh, off, size)
        self._require_readable(os.O_RDONLY)
        async with self.handles.use(fh) as handle:
            return await self.disk_files[handle.file.disk].read(handle.fd, size, off)

    @handler
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """A write past the segment's end writes what fits. The kernel has copied all bytes into its pages already,
        where every process that maps the file sees them, so refusing the write would take none back."""
        if self.control.owns_handle(fh):
            raise NotPermittedError("control files are read-only")
        fitting = memoryview(buf)[: self.commitlog.fit_write(off, len(buf))]
        async with self.handles.use(fh) as handle:
            if not handle.writable:
                disk = self.commitlog.disk_of(handle.file)
                raise DiskReadOnlyError(disk.path, "its filesystem is read-only")
            file = handle.file
            grows = off + len(fitting) > file.size
            attributes = await self.disk_files[file.disk].write(handle.fd, fitting, off, grows=grows)
            if attributes is not None:
                self.commitlog.record_attributes(file, attributes)
                self._grown.add(fh)
            return len(fitting)

    def suspect_growth(self, files: Iterable[Segment]) -> None:
        """After a takeover, treat recently changed files as grown: one may be a copy whose writer closes it
        soon."""
        since_ns = self.commitlog.clock.wall_ns() - round(self.commitlog.timing.requests.recent_s * 1e9)
        for file in files:
            if self.parts.backing.is_inherited(file) and unpack(file.attributes).ctime_ns >= since_ns:
                self._grown.add(inodes.encode(file))

    def invalidate_changed(self) -> None:
        """After a takeover, make the kernel drop names whose files a former daemon has removed by rule, moved or
        repaired just before it died: the kernel may still know the former files by them, and so hold these. Removed
        ones lie before the oldest segment of the log, and are perhaps not there any more."""
        log = self.commitlog
        bases: set[int] = {file.base_offset for file in log.others if file.role is not Role.TEMPORARY}
        first = log.catalog.first
        if first is not None:
            oldest = max(0, first.base_offset - INVALIDATED_SEGMENTS * log.segment_size)
            bases |= set(range(oldest, first.base_offset, log.segment_size))
        for base in sorted(bases):
            self.parts.kernel.invalidate(format_segment_name(base), 0)

    @handler
    async def flush(self, fh: FileHandleT) -> None:
        """Sync a file that writes have made longer, which is a copy, so that it is durable when its writer's close
        returns. cp and rsync sync nothing, and a power cut would leave an empty segment in the middle of the log.
        Other files have their size already, and are synced when their writer asks for it, as on any disk. A disk
        that has turned read-only is reported by the first close only."""
        if fh not in self._grown:
            return
        file = self._file(InodeT(fh))
        if file.role is Role.GIVEN_UP:  # the segment is made on another disk; nothing to sync
            self._grown.discard(fh)
            return
        if self.handles.is_certainly_empty(file):  # nothing to sync yet
            return
        if self.parts.lost_writes.may_lack_writes(file):  # one close has reported it, and each fsync does
            self._grown.discard(fh)
            return
        await self._sync_at_close(file)
        if not self._may_grow_unseen(file):  # a child of the writer may have closed it, which writes on
            self._grown.discard(fh)

    async def _sync_at_close(self, file: Segment) -> None:
        """The sync continues when its time is over: then it is unknown whether the file is durable. Raises
        DiskError, OSError."""
        inode = inodes.encode(file)

        async def work() -> None:
            async with self.handles.use(inode) as handle:
                await self._commit(handle)

        try:
            with self.disk_files[file.disk].limited("flush", self.commitlog.timing.requests.flush_s):
                await AbandonableWork(work).wait()
        except OSError as error:
            if error.errno == errno.EROFS:
                self._grown.discard(inode)
            raise

    @handler
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        if self.control.owns_handle(fh):
            return
        async with self.handles.use(fh) as handle:
            if handle.writable:
                await self._commit(handle, data_only=datasync)
            else:
                self.parts.lost_writes.require_none(handle.file)

    @handler
    async def release(self, fh: FileHandleT) -> None:
        if self.control.owns_handle(fh):
            self.control.release(fh)
        else:
            with contextlib.suppress(SegmentNotFoundError):
                file = self._file(InodeT(fh))
                if self.parts.backing.is_passed_through(file):
                    await self.attributes.refresh(file)
            await self.handles.release(fh)

    # --- directories ---------------------------------------------------------------------------------

    @handler
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        if inode == inodes.ROOT:
            await self.parts.listing.refresh()
        return FileHandleT(inode)

    @handler
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        if fh == inodes.CONTROL_DIRECTORY:
            for index, (name, inode) in enumerate(self.control.entries()):
                if index >= start_id and not readdir_reply(token, name, self.control.entry(inode), index + 1):
                    break
            return
        self.parts.listing.reply(token, start_id)

    @handler
    async def releasedir(self, fh: FileHandleT) -> None: ...

    @handler
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        async with trio.open_nursery() as nursery:
            for disk in self.commitlog.disks.values():
                if disk.state is DiskState.RW:
                    nursery.start_soon(self.disk_files[disk.number].sync_directory)

    # --- the filesystem as a whole -------------------------------------------------------------------

    @handler
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        figures = await self.parts.statfs_figures()
        count = len(self.commitlog.catalog)
        data = StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_BYTES
        data.f_blocks = figures.blocks
        data.f_bfree = data.f_bavail = figures.free
        data.f_files = count + figures.free * BLOCK_BYTES // self.commitlog.segment_size
        data.f_ffree = data.f_favail = data.f_files - count
        data.f_namemax = NAME_MAX
        return data

    # --- extended attributes -------------------------------------------------------------------------

    @handler
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        key = inodes.decode(inode)
        if key is None or not name.startswith(xattrs.PREFIX):
            raise FUSEError(pyfuse3.ENOATTR)  # security.capability is asked before every write: be quick
        file = self._file(inode)
        if name == xattrs.STATE:
            state = await self.parts.segment_state(file, self.commitlog.timing.requests.open_s)
            return state.value.encode()
        await self.attributes.refresh(file)
        if name == xattrs.CHECKSUM:
            digest = await self._checksum(file)
            if digest is None:
                raise FUSEError(pyfuse3.ENOATTR)
            return digest.hex().encode()
        value = xattrs.value(name, self.commitlog.disk_of(file), file)
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    @handler
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        if inodes.decode(inode) is None:
            return []
        names = [XAttrNameT(name) for name in xattrs.names()]
        with contextlib.suppress(StoreError, OSError):
            if await self._checksum(self._file(inode)) is not None:
                names.append(XAttrNameT(xattrs.CHECKSUM))
        return names

    @handler
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        self._refuse_xattr_change(name)

    @handler
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        self._refuse_xattr_change(name)

    @staticmethod
    def _refuse_xattr_change(name: bytes) -> NoReturn:
        if name.startswith(xattrs.ACL_PREFIX):
            raise FUSEError(errno.EOPNOTSUPP)  # cp -a and the like then preserve the mode by chmod
        raise NotPermittedError("extended attributes are read-only")

    async def _checksum(self, file: Segment) -> bytes | None:
        """The digest of a settled segment, if it has one of its content on the disk. Raises as
        DiskFiles.read_checksum."""
        catalog = self.commitlog.catalog
        if not catalog.is_settled(file):
            return None
        digest = await self.disk_files[file.disk].read_checksum(file.name, file.ino)
        if digest is None:
            catalog.record_checksum(file, is_valid=False)
        return digest if catalog.is_settled(file) else None

    # --- helpers -------------------------------------------------------------------------------------

    async def _commit(self, handle: Handle, *, data_only: bool = False) -> None:
        """Raises OSError, also if a former sync of the file has failed."""
        self.parts.lost_writes.require_none(handle.file)
        disk = self.disk_files[handle.file.disk]
        try:
            await disk.commit(handle.fd, data_only=data_only)
        except OSError as error:
            seen = None
            with contextlib.suppress(DiskError, OSError):
                seen = await disk.stat_open(handle.fd)
            self.parts.lost_writes.record_failed_sync(handle.file, error, seen)
            raise

    async def _open_existing(self, file: Segment, flags: FlagT) -> Handle:
        """Open a file for the first or another time. Raises DiskReadOnlyError for writing to any but a sealed
        segment on a read-only disk.

        A broker opens all segments for writing. What it appended to one on a read-only disk would stay in memory,
        acknowledged, and be lost; refused the open, it does not start.
        """
        for source in self.commitlog.others.sources(file.base_offset) if self.commitlog.others.has_retired else ():
            if await self.parts.sources.put_back_if_changed(source):
                raise inodes.StaleInodeError(f"{file.name.decode()}: is on another disk again")
        await self._check_truncation(file, flags)
        to_write = flags & os.O_ACCMODE != os.O_RDONLY
        if to_write and not file.size:
            await self.parts.resizing.require_writable(file)
        with self.disk_files[file.disk].limited("open", self.commitlog.timing.requests.open_s):
            handle = await self.handles.open(file, to_write=to_write)
        if to_write and not handle.writable:
            await self._require_sealed(file)
        return handle

    async def _require_sealed(self, file: Segment) -> None:
        """For an open for writing on a read-only disk. If it is refused, the file is released."""
        disk = self.commitlog.disk_of(file)
        try:
            state = await self.parts.segment_state(file, self.commitlog.timing.requests.open_s)
            if state is not SegmentState.SEALED:
                raise DiskReadOnlyError(
                    disk.path, f"its filesystem is read-only, so nothing can be appended to {file.name.decode()}"
                )
        except BaseException:
            await self.handles.release(inodes.encode(file))
            raise

    def _require_readable(self, flags: int) -> None:
        """Refuse reads while every disk is full, if the configuration says so. Mappings and passthrough reads do
        not come to the daemon: for them it holds from the next open on."""
        if self._refuse_reads_when_full and flags & os.O_ACCMODE != os.O_WRONLY and self.parts.retention.is_full:
            raise FUSEError(errno.ENOSPC)

    def _file(self, inode: InodeT) -> Segment:
        """Raises StaleInodeError for a file that was removed, moved, or given up by a former daemon. The kernel
        then looks the name up again, within the same call."""
        key = inodes.decode(inode)
        if key is None:
            raise inodes.StaleInodeError(f"inode {inode} is unknown")
        try:
            return self.commitlog.find_ino(*key)
        except SegmentNotFoundError as error:
            raise inodes.StaleInodeError(str(error)) from error

    async def _check_truncation(self, file: Segment, flags: int) -> None:
        """Raises InvalidSizeError for O_TRUNC of a file that is not empty. The kernel sends no setattr for it: if
        the open succeeds, the kernel takes the file for empty, and kills processes that map it."""
        if flags & os.O_TRUNC:
            await self.attributes.refresh(file)
            self.commitlog.check_resize(file.size, 0)

    def _file_info(self, file: Segment, flags: FlagT) -> FileInfo:
        """The reply to an open. The kernel may keep its pages over a new open, because every change of a segment
        goes through it.

        The daemon serves write-only and appending opens, also with passthrough: cp and a shell's >> have to meet
        the end of the segment. A broker opens for reading and writing.
        """
        writes_only = flags & os.O_ACCMODE == os.O_WRONLY or bool(flags & os.O_APPEND)
        passed = self.parts.backing.is_passed_through(file)
        direct = writes_only and passed
        if flags & os.O_ACCMODE == os.O_RDWR and self._may_grow_unseen(file):
            self._grown.add(inodes.encode(file))
        return FileInfo(fh=FileHandleT(inodes.encode(file)), keep_cache=not direct, direct_io=direct)

    def _may_grow_unseen(self, file: Segment) -> bool:
        """Whether a file can grow without a request to the daemon."""
        return self.parts.backing.is_passed_through(file) and file.size < self.commitlog.segment_size

    async def _change_root(self, changes: Changes) -> EntryAttributes:
        """Change mode and owner of the mounted directory; every writable disk records them."""
        if changes.size is not None:
            raise FUSEError(errno.EISDIR)
        current = self.commitlog.root
        root = RootAttributes(
            current.mode if changes.mode is None else changes.mode & PERMISSION_BITS,
            current.uid if changes.uid is None else changes.uid,
            current.gid if changes.gid is None else changes.gid,
        )
        if root != current:
            for disk in self.commitlog.disks.values():
                if disk.state is DiskState.RW:
                    await self.disk_files[disk.number].write_root(root)
            self.commitlog.root = root
        if changes.mtime_ns is not None:
            self.parts.changes.changed_ns = changes.mtime_ns
        return attrs.entry_of_root(root, self.parts.changes.changed_ns)
