"""Copying one segment to another disk, step by step, so that its caller can pause or stop between any two.

    step                                        a crash here leaves
    1 unnamed file on the target, all blocks    nothing (the kernel frees an unnamed file)
    2 copy, owner, mode, times, mark, sync      nothing
    3 read the copy back from its device        nothing
    4 link the name, sync the directory         both files, and the copy is marked: they are one segment, and the
                                                next daemon continues with the copy
    5 remove the source, or set it aside        the copy, perhaps with its mark, which no longer has an effect
      while somebody has it open

Source and copy are read and written past the page cache (O_DIRECT), so that the pages of a broker stay in memory,
and so that step 3 sees what the device has. All functions block and belong in a worker thread.
"""

import errno
import fcntl
import mmap
import os
import threading
from typing import Final

import xxhash

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import SegmentChangedError, UncertainPublishError, VerificationError
from commitlogfs.store.files import allocate, durable, safe_open
from commitlogfs.store.files.allocate import Owner, Published
from commitlogfs.store.files.attributes import FileAttributes, stat_fd, stat_name, unpack
from commitlogfs.store.moves.mark import Source, read_mark, source_of, write_mark

CHUNK_BYTES: Final = 1 << 20
_ALIGNMENT: Final = 4096
"""Multiple of every offset and length for O_DIRECT: the largest logical block of any drive."""


class SegmentCopy:
    """A copy in progress. One thread at a time uses it; `close` may be called beside it, and takes effect when the
    other call ends, so that a disk that hangs does not lead to a closed descriptor in use."""

    def __init__(self, source: int, before: FileAttributes) -> None:
        self._source = source
        self._target = -1
        self._target_dirfd = -1
        self._before = before
        self._sealed = before
        """The attributes of the source that the copy has."""
        self._size = before.size
        self._position = 0
        self._filled = 0
        """Bytes in the buffer that are not written yet."""
        self._read_back = 0
        self._of_source = xxhash.xxh3_128()
        self._of_copy = xxhash.xxh3_128()
        self._buffer = mmap.mmap(-1, CHUNK_BYTES)
        self._in_use = threading.Lock()
        self._is_closed = False

    def reserve(self, target_dirfd: int) -> None:
        """Step 1. Raises OSError."""
        with self._used():
            owner = Owner(self._before.uid, self._before.gid, self._before.mode)
            self._target = allocate.reserve(target_dirfd, self._size, owner)
            self._target_dirfd = target_dirfd
            os.ftruncate(self._target, self._size)
            _set_direct(self._target, wanted=True)

    def read_chunk(self, most: int = CHUNK_BYTES) -> int:
        """Read the next bytes of the source, at most `most`. Returns their number, 0 at the end. Raises OSError,
        SegmentChangedError."""
        with self._used():
            self._filled = self._read(self._source, self._position, most)
            self._of_source.update(memoryview(self._buffer)[: self._filled])
            return self._filled

    def write_chunk(self) -> None:
        """Write to the copy what was read. Raises OSError."""
        with self._used():
            chunk = memoryview(self._buffer)[: self._filled]
            if self._filled % _ALIGNMENT:
                _set_direct(self._target, wanted=False)
            written = 0
            while written < self._filled:
                written += os.pwritev(self._target, [chunk[written:]], self._position + written)
            self._position += self._filled
            self._filled = 0

    def require_unchanged(self) -> None:
        """The source is as it was when it was copied. Raises OSError, SegmentChangedError."""
        with self._used():
            assert self._position == self._size
            self._sealed = unpack(stat_fd(self._source))
            if (self._sealed.size, self._sealed.mtime_ns) != (self._size, self._before.mtime_ns):
                raise SegmentChangedError("was changed while it was copied")

    def seal(self, disk: DiskNumber) -> None:
        """Give the copy attributes and mark, durably. `disk` holds the source. Raises OSError."""
        with self._used():
            sealed, copy = self._sealed, os.fstat(self._target)
            if (copy.st_uid, copy.st_gid) != (sealed.uid, sealed.gid):
                os.fchown(self._target, sealed.uid, sealed.gid)
            os.fchmod(self._target, sealed.mode & allocate.PERMISSION_BITS)
            write_mark(self._target, self.mark(disk))
            os.utime(self._target, ns=(sealed.atime_ns, sealed.mtime_ns))
            os.fsync(self._target)
            _set_direct(self._target, wanted=True)

    def mark(self, disk: DiskNumber) -> Source:
        """The mark of the copy, once it is sealed. `disk` holds the source."""
        return source_of(disk, self._sealed)

    def verify_chunk(self, most: int = CHUNK_BYTES) -> int:
        """Read the next bytes of the copy back from its device. Returns their number, 0 at the end. Raises
        OSError, and at the end VerificationError."""
        with self._used():
            count = self._read(self._target, self._read_back, most)
            self._of_copy.update(memoryview(self._buffer)[:count])
            self._read_back += count
            if self._read_back == self._size and self._of_copy.digest() != self._of_source.digest():
                raise VerificationError("reads back from the device otherwise than it was written")
            return count

    def publish(self, name: bytes) -> Published:
        """Step 4. Raises SegmentChangedError; OSError if the name certainly does not lie on the disk as this file;
        UncertainPublishError if it may."""
        with self._used():
            assert self._read_back == self._size
            if _moving_attributes(unpack(stat_fd(self._source))) != _moving_attributes(self._sealed):
                raise SegmentChangedError(f"{name.decode()}: was changed while it was copied")
            published = allocate.publish(self._target_dirfd, self._target, name)
            try:
                durable.sync_dir(self._target_dirfd)
            except OSError as error:
                raise UncertainPublishError(f"{name.decode()}: its name may be lost ({error})") from error
            return published

    def close(self) -> None:
        self._is_closed = True
        if self._in_use.acquire(blocking=False):
            self._end()

    def _used(self) -> "_Use":
        return _Use(self)

    def _read(self, fd: int, position: int, most: int) -> int:
        wanted = min(most, CHUNK_BYTES, self._size - position)
        if not wanted:
            return 0
        # O_DIRECT reads whole blocks; at the end of the file fewer bytes come back.
        length = -(-wanted // _ALIGNMENT) * _ALIGNMENT
        count = min(os.preadv(fd, [memoryview(self._buffer)[:length]], position), wanted)
        if count < wanted:
            raise SegmentChangedError(f"ends at {position + count} instead of {self._size}")
        return count

    def _end(self) -> None:
        """The caller has the lock, and keeps it."""
        os.close(self._source)
        if self._target >= 0:
            os.close(self._target)


def _moving_attributes(attributes: FileAttributes) -> tuple[int, ...]:
    return attributes.size, attributes.mtime_ns, attributes.mode, attributes.uid, attributes.gid


class _Use:
    """One call at work on a copy."""

    def __init__(self, copy: SegmentCopy) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        self._copy._in_use.acquire()
        if self._copy._is_closed:
            self._copy._in_use.release()
            raise OSError(errno.EBADF, "closed")

    def __exit__(self, *_: object) -> None:
        if self._copy._is_closed:
            self._copy._end()
        else:
            self._copy._in_use.release()


def remove_stray_copy(dirfd: int, name: bytes, source: Source) -> bool:
    """After UncertainPublishError: remove the copy of `source` if it has got its name. Durable. Returns whether the
    name is free now: another file under it stays. Raises OSError."""
    try:
        ino = unpack(stat_name(dirfd, name)).ino
        if read_mark(dirfd, name, ino) != source:
            return False
        os.unlink(name, dir_fd=dirfd)
    except FileNotFoundError:
        pass
    durable.sync_dir(dirfd)
    return True


def open_source(dirfd: int, name: bytes, ino: int) -> SegmentCopy:
    """The copy of a segment, with nothing done yet. Raises OSError."""
    source = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        # Afterwards a store to a mapping of the file changes its mtime, which tells that the copy is worth nothing.
        os.fsync(source)
        _set_direct(source, wanted=True)
        return SegmentCopy(source, unpack(stat_fd(source)))
    except BaseException:
        os.close(source)
        raise


def _set_direct(fd: int, *, wanted: bool) -> None:
    """Does nothing on a filesystem without direct I/O."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
