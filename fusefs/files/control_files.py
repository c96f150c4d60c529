"""The hidden directory `.commitlogfs`: found by name, never listed in the root.

    log           the whole log as one file, addressed by log offset; EIO over a gap, never zeros
    status.json   state for programs (schema in docs/reference/status.md)
    metrics       Prometheus text

All are read with direct I/O: their content changes and must not come from the page cache.
"""

import itertools
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, InodeT

from commitlogfs.fusefs.files import attrs
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import LogGapError, NotPermittedError, SegmentNotFoundError
from commitlogfs.store.pool.commitlog import CommitLog

DIRECTORY_NAME = b".commitlogfs"

Content = Callable[[], Awaitable[bytes]]

_SERIAL_SHIFT = 8
_INODE_MASK = (1 << _SERIAL_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class ControlContents:
    """Functions that compose the text files. The daemon gives them, because it knows more than this package."""

    status: Content
    metrics: Content


class ControlFiles:
    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        handles: Handles,
        contents: ControlContents,
    ) -> None:
        self._commitlog = commitlog
        self._handles = handles
        self._disks = disks
        self._texts: dict[int, Content] = {
            inodes.CONTROL_STATUS: contents.status,
            inodes.CONTROL_METRICS: contents.metrics,
        }
        self._names: dict[bytes, InodeT] = {
            b"log": inodes.CONTROL_LOG,
            b"status.json": inodes.CONTROL_STATUS,
            b"metrics": inodes.CONTROL_METRICS,
        }
        self._serials = itertools.count(1)
        self._snapshots: dict[int, bytes] = {}

    def owns(self, inode: int) -> bool:
        return inodes.CONTROL_DIRECTORY <= inode <= inodes.CONTROL_METRICS

    def owns_handle(self, fh: int) -> bool:
        return not inodes.is_of_disk(fh)

    def is_log(self, fh: int) -> bool:
        """Whether a handle of a control file is one of the log."""
        return fh & _INODE_MASK == inodes.CONTROL_LOG

    def lookup(self, name: bytes) -> InodeT:
        """Raises SegmentNotFoundError."""
        inode = self._names.get(name)
        if inode is None:
            raise SegmentNotFoundError(f"{name.decode(errors='backslashreplace')}: not a control file")
        return inode

    def entries(self) -> list[tuple[bytes, InodeT]]:
        return list(self._names.items())

    def entry(self, inode: InodeT) -> EntryAttributes:
        """Attributes of a control file. The log carries messages, so only the owner of the root directory and its
        group may read it."""
        if inode == inodes.CONTROL_DIRECTORY:
            mode, size = stat.S_IFDIR | 0o555, 0
        elif inode == inodes.CONTROL_LOG:
            mode, size = stat.S_IFREG | 0o440, int(self._commitlog.catalog.end_offset)
        else:
            mode, size = stat.S_IFREG | 0o444, 0
        return attrs.entry_of_control(inode, mode, self._commitlog.root, size, self._commitlog.clock.wall_ns())

    def open(self, inode: InodeT, flags: int) -> FileInfo:
        """Raises NotPermittedError for anything but reading."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise NotPermittedError("control files are read-only")
        fh = FileHandleT(next(self._serials) << _SERIAL_SHIFT | inode)
        return FileInfo(fh=fh, direct_io=True)

    async def read(self, fh: int, offset: int, length: int) -> bytes:
        """Raises LogGapError over a gap, OSError for disk trouble."""
        inode = fh & _INODE_MASK
        if inode == inodes.CONTROL_LOG:
            return await self._read_log(offset, length)
        content = self._texts.get(inode)
        if content is None:
            raise SegmentNotFoundError(f"handle {fh} is not a control file")
        if fh not in self._snapshots or offset == 0:
            # One snapshot per open, so that parts read one after the other fit together.
            self._snapshots[fh] = await content()
        return self._snapshots[fh][offset : offset + length]

    def release(self, fh: int) -> None:
        self._snapshots.pop(fh, None)

    async def _read_log(self, offset: int, length: int) -> bytes:
        parts = []
        for segment, position, count in self._commitlog.catalog.split_range(offset, length):
            async with self._handles.use(inodes.encode(segment)) as handle:
                data = await self._disks[segment.disk].read(handle.fd, count, position)
            parts.append(data)
            if len(data) < count:
                raise LogGapError(f"{segment.name.decode()}: ends at {position + len(data)}, before its size")
        return b"".join(parts)
