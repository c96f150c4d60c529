"""Writes that a disk has refused after they were done for the process.

A store to a mapping, and a write without a sync, is done when it is in memory. If the kernel cannot write the page
later, it keeps the content in memory, does not try again, and reports the failure once to each open file
description: a second msync succeeds, and reads show what the disk does not have (Linux,
Documentation/filesystems/vfs.rst, "Handling errors during writeback"). Through a descriptor that nothing else uses,
no failure is missed.

All functions block and belong in a worker thread.
"""

import errno
import mmap
import os
from dataclasses import dataclass
from typing import Final

from commitlogfs.store._syscalls import SYNC_FILE_RANGE_WAIT_BEFORE, sync_file_range
from commitlogfs.store.files import safe_open
from commitlogfs.store.files.direct import set_direct
from commitlogfs.store.files.hashing import RWF_DONTCACHE
from commitlogfs.store.segment import BaseOffset

PAGE_BYTES: Final = 4096
_CHUNK_BYTES: Final = 1 << 20
_BEHIND_THE_FILE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class LostWrite:
    """Pages of a segment that memory shows, and its disk does not have."""

    base_offset: BaseOffset
    since_s: int
    """Seconds since 1970."""
    ranges: tuple[tuple[int, int], ...]
    """[begin, end) in bytes of the file, in ascending order; empty if the disk could not be asked, so that any
    page may be lost."""


def open_watch(dirfd: int, name: bytes, ino: int) -> int:
    """A descriptor that hears of each failed write from now on. Raises OSError."""
    return safe_open.open_file(dirfd, name, os.O_RDONLY, ino)


def forget_memory(dirfd: int, name: bytes, ino: int) -> None:
    """Let reads of a file on its disk ask the disk again. Pages that a process has mapped stay. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def require_written(watch: int) -> None:
    """Raises OSError if a write has failed since the last call; each failure once. Does not block: it waits for no
    page, because the range lies behind the file."""
    sync_file_range(watch, _BEHIND_THE_FILE, PAGE_BYTES, SYNC_FILE_RANGE_WAIT_BEFORE)


def find_lost(fd: int) -> tuple[tuple[int, int], ...]:
    """The pages in memory that differ from the disk, as ranges [begin, end) of the file. Raises OSError if the disk
    cannot be read.

    A direct read first writes the dirty pages of its range, so a page that is the same in memory before and after
    it is on the disk, or lost. Reads the whole file, which leaves no more of it in memory.
    """
    size, found = os.fstat(fd).st_size, list[tuple[int, int]]()
    before, after, on_disk = (mmap.mmap(-1, _CHUNK_BYTES) for _ in range(3))
    device = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_direct(device)
        for begin in range(0, size, _CHUNK_BYTES):
            length = _read_memory(fd, before, begin)
            if os.preadv(device, [on_disk], begin) < length:
                raise OSError(errno.EIO, "cannot be read completely")
            _read_memory(fd, after, begin)
            if before[:length] == on_disk[:length]:
                continue
            for page in range(0, length, PAGE_BYTES):
                end = min(page + PAGE_BYTES, length)
                if before[page:end] == after[page:end] != on_disk[page:end]:
                    _append(found, begin + page, begin + end)
    finally:
        os.close(device)
    return tuple(found)


def find_lost_in(dirfd: int, name: bytes, ino: int) -> tuple[tuple[int, int], ...]:
    """As find_lost, of a file in a directory."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        return find_lost(fd)
    finally:
        os.close(fd)


def _read_memory(fd: int, buffer: mmap.mmap, begin: int) -> int:
    """Number of bytes read, from memory where they are there."""
    try:
        return os.preadv(fd, [buffer], begin, RWF_DONTCACHE)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return os.preadv(fd, [buffer], begin)


def _append(ranges: list[tuple[int, int]], begin: int, end: int) -> None:
    if ranges and ranges[-1][1] == begin:
        ranges[-1] = ranges[-1][0], end
    else:
        ranges.append((begin, end))
