"""What a disk in trouble can still do, tried on the disk itself. All blocks and belongs in a worker thread."""

import errno
import mmap
import os
from dataclasses import dataclass
from typing import Final

from commitlogfs.store.disks.disk import is_read_only, translate
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskReadOnlyError
from commitlogfs.store.files import allocate, safe_open
from commitlogfs.store.files.allocate import Owner

_BLOCK: Final = 4096


@dataclass(frozen=True, slots=True)
class DiskProbe:
    error: DiskError | None
    """Why no segment can be made; None where one can, or it was not tried."""
    is_read_only: bool
    """Its filesystem."""
    is_readable: bool
    """False where none of the segments tried can be read, for a reason that lies with the disk."""


def probe_disk(
    disk_path: str, dirfd: int, segments: tuple[bytes, ...], segment_size: int, *, may_write: bool = True
) -> DiskProbe:
    """Make a segment without a name, if that `may` be, and read of those named. Leaves nothing behind."""
    tried = [_is_readable(disk_path, dirfd, name) for name in segments]
    try:
        read_only = is_read_only(dirfd)
    except OSError:
        read_only = False
    error = _why_not_made(disk_path, dirfd, segment_size) if may_write else None
    # ext4 that has turned read-only by itself does not show it.
    return DiskProbe(error, read_only or isinstance(error, DiskReadOnlyError), any(tried) or not tried)


def _why_not_made(disk_path: str, dirfd: int, segment_size: int) -> DiskError | None:
    try:
        os.close(allocate.reserve(dirfd, segment_size, Owner(os.geteuid(), os.getegid(), 0o600)))
    except OSError as error:
        told = translate(disk_path, error)
        return told if isinstance(told, DiskError) else DiskError(disk_path, str(error))
    return None


def _is_readable(disk_path: str, dirfd: int, name: bytes) -> bool:
    """From the disk, not from memory, where the filesystem can."""
    try:
        try:
            fd = safe_open.open_file(dirfd, name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fd = safe_open.open_file(dirfd, name, os.O_RDONLY)
        try:
            with mmap.mmap(-1, _BLOCK) as aligned:
                os.preadv(fd, [aligned], 0)
        finally:
            os.close(fd)
    except OSError as error:
        return not isinstance(translate(disk_path, error), DiskFailedError)
    return True
