"""Probe of a disk in trouble: can it still read and make segments? Everything here blocks; call it in a thread."""

import os
from dataclasses import dataclass

from commitlogfs.store.checks.check import read_block
from commitlogfs.store.disks.disk import is_read_only, translate
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskReadOnlyError
from commitlogfs.store.files import allocate
from commitlogfs.store.files.allocate import Owner


@dataclass(frozen=True, slots=True)
class DiskProbe:
    error: DiskError | None
    """Why no segment can be made; None if one can, or if that was not tried."""
    is_read_only: bool
    """Whether the disk's filesystem is read-only."""
    is_readable: bool
    """False if the disk failed every read that was tried."""


def probe_disk(
    disk_path: str, dirfd: int, segments: tuple[bytes, ...], segment_size: int, *, may_write: bool = True
) -> DiskProbe:
    """Read from `segments` and, if `may_write`, make a segment without a name. The disk is unchanged afterwards."""
    tried = [_is_readable(disk_path, dirfd, name) for name in segments]
    try:
        read_only = is_read_only(dirfd)
    except OSError:
        read_only = False
    error = _why_not_made(disk_path, dirfd, segment_size) if may_write else None
    # statvfs does not show an ext4 that has turned itself read-only.
    return DiskProbe(error, read_only or isinstance(error, DiskReadOnlyError), any(tried) or not tried)


def _why_not_made(disk_path: str, dirfd: int, segment_size: int) -> DiskError | None:
    try:
        os.close(allocate.reserve(dirfd, segment_size, Owner(os.geteuid(), os.getegid(), 0o600)))
    except OSError as error:
        translated = translate(disk_path, error)
        return translated if isinstance(translated, DiskError) else DiskError(disk_path, str(error))
    return None


def _is_readable(disk_path: str, dirfd: int, name: bytes) -> bool:
    """Whether the disk can read a segment."""
    try:
        read_block(dirfd, name)
    except OSError as error:
        return not isinstance(translate(disk_path, error), DiskFailedError)
    return True
