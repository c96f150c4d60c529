"""Copying one segment to another disk, step by step, so that its caller can pause or stop between any two.

    step                                        a crash here leaves
    1 unnamed file on the target, all blocks    nothing (the kernel frees an unnamed file)
    2 copy, owner, mode, times, mark,           nothing
      checksum, sync
    3 read the copy back from its device        nothing
    4 link the name, sync the directory         both files, and the copy is marked: they are one segment, and the
                                                next daemon continues with the copy
    5 remove the source, or set it aside        the copy, perhaps with its mark, which no longer has an effect
      while somebody has it open

A segment that is restored from outside the pool has no mark and no step 5: its source is not a file of the pool.
One that replaces a damaged file has the mark of that file (store/moves/repair.py).

Source and copy are read and written past the page cache (O_DIRECT), so that the pages of a broker stay in memory,
and so that step 3 sees what the device has. All functions block and belong in a worker thread.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import xxhash

from commitlogfs.store import layout
from commitlogfs.store.disks.disk import MEDIUM_ERRORS
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import (
    RottenSegmentError,
    SegmentChangedError,
    SegmentUnreadableError,
    UncertainPublishError,
    VerificationError,
)
from commitlogfs.store.files import allocate, durable, safe_open
from commitlogfs.store.files.allocate import Owner, Published
from commitlogfs.store.files.attributes import FileAttributes, stat_fd, stat_name, unpack
from commitlogfs.store.files.direct import ALIGNMENT, set_direct
from commitlogfs.store.files.hashing import read_checksum, read_verdict, write_checksum
from commitlogfs.store.moves.mark import (
    Source,
    copy_repair_mark,
    read_mark,
    source_of,
    write_mark,
    write_repair_mark,
)
from commitlogfs.store.moves.restored import has_mark, mark_restored
from commitlogfs.store.moves.unreadable import (
    UnreadableRanges,
    parse_unreadable,
    read_unreadable_record,
    write_unreadable,
)

CHUNK_BYTES: Final = 1 << 20
_SALVAGED_AT_ONCE: Final = 8 * ALIGNMENT
"""Bytes of a failing range that one call reads: a disk may take seconds for each bad block, and a step of a copy
has a deadline."""
_PROBES: Final = 16
"""Blocks, spread over a segment, of which one must be readable for the segment to be worth a copy."""


class Restored(NamedTuple):
    """A segment from outside the pool, and what its copy gets."""

    owner: Owner
    mtime_ns: int
    digest: bytes
    """xxh3_128 of the content that was checked."""
    damaged: Source | None = None
    """The file that it replaces; None for a segment that was missing."""
    is_unknown: bool = True
    """Whether a running broker does not know the segment."""


class _Witnesses(NamedTuple):
    """The records of a segment's file that tell whether its content is right."""

    verdict: bytes | None = b""
    """The attribute of the verdict; empty without one, None if there is another sign of damage than a verdict: a
    record that the disk cannot read, or one of unreadable ranges that cannot be parsed."""
    checksum: bytes | None = None
    """The digest that counts."""
    keeps_checksum: bool = False
    """Whether the copy gets no other one."""
    unreadable: bytes | None = None
    """The attribute of the ranges that an earlier move could not read; None without one."""


_NO_WITNESSES: Final = _Witnesses()


class SegmentCopy:
    """A copy in progress. One thread at a time uses it; `close` may be called beside it, and takes effect when the
    other call ends, so that a disk that hangs does not lead to a closed descriptor in use."""

    def __init__(
        self,
        source: int,
        before: FileAttributes,
        restored: Restored | None = None,
        *,
        salvages: bool = False,
        witnesses: _Witnesses = _NO_WITNESSES,
        common: Source | None = None,
    ) -> None:
        """`common`: mark that the source has, and its copy gets, too, if it is certainly equal. `salvages`: blocks
        that cannot be read become zeros, and are recorded with the copy; and content that differs from the checksum
        of the source is copied. `witnesses` are those of the source."""
        self._source = source
        self.common = common
        self._restored = restored
        self._salvages = salvages
        self.unreadable = UnreadableRanges()
        """Positions of what could not be read."""
        self.newly_unreadable = UnreadableRanges()
        """Those of this move, without what the source lacks since an earlier one. Known once the copy is sealed."""
        self._checksum = witnesses.checksum
        self._keeps_checksum = witnesses.keeps_checksum
        self._former_unreadable = witnesses.unreadable
        self.verdict = witnesses.verdict
        """As of _Witnesses, when the copy is sealed."""
        self.is_rotten = False
        """Whether everything could be read, and differs from the source's checksum."""
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

    def require_size(self, size: int) -> None:
        """Raises SegmentChangedError unless the source has this size."""
        if self._size != size:
            raise SegmentChangedError(f"has {self._size} bytes instead of {size}")

    def reserve(self, target_dirfd: int) -> None:
        """Step 1. Raises OSError."""
        with self._used():
            self._target = allocate.reserve(target_dirfd, self._size, self._owner())
            self._target_dirfd = target_dirfd
            os.ftruncate(self._target, self._size)
            set_direct(self._target)

    def read_chunk(self, most: int = CHUNK_BYTES) -> int:
        """Read the next bytes of the source, at most `most`. Returns their number, 0 at the end. Raises OSError,
        SegmentChangedError; SegmentUnreadableError if nothing of it can be salvaged."""
        with self._used():
            try:
                self._filled = self._read(self._source, self._position, most)
            except OSError as error:
                if not self._salvages or error.errno not in MEDIUM_ERRORS:
                    raise
                self._filled = self._salvage(min(most, _SALVAGED_AT_ONCE, self._size - self._position))
            self._of_source.update(memoryview(self._buffer)[: self._filled])
            return self._filled

    def write_chunk(self) -> None:
        """Write to the copy what was read. Raises OSError."""
        with self._used():
            chunk = memoryview(self._buffer)[: self._filled]
            if self._filled % ALIGNMENT:
                set_direct(self._target, wanted=False)
            written = 0
            while written < self._filled:
                written += os.pwritev(self._target, [chunk[written:]], self._position + written)
            self._position += self._filled
            self._filled = 0

    def require_unchanged(self) -> None:
        """The source is as it was when it was copied, and as it was when its checksum was made. Raises OSError,
        SegmentChangedError, RottenSegmentError."""
        with self._used():
            assert self._position == self._size
            self._sealed = unpack(stat_fd(self._source))
            if (self._sealed.size, self._sealed.mtime_ns) != (self._size, self._before.mtime_ns):
                raise SegmentChangedError("was changed while it was copied")
            if self._checksum in (None, self._of_source.digest()) or self.unreadable.ranges:
                return
            self.is_rotten = True
            if not self._salvages:
                raise RottenSegmentError(
                    "its content differs from its checksum, and is not copied; to copy it as it is, drain its disk "
                    "with --failing"
                )

    def seal(
        self,
        disk: DiskNumber | None,
        add_to_verdict: Callable[[bytes | None, UnreadableRanges], bytes] | None = None,
    ) -> None:
        """Give the copy attributes, mark, verdict and checksum, durably. `disk` holds the source; None for a
        restored segment. `add_to_verdict` returns the attribute of the copy, for that of the source and the ranges
        that cannot be read. Raises OSError, and VerificationError if that is not what was checked."""
        with self._used():
            if self._restored is not None and self._of_source.digest() != self._restored.digest:
                raise VerificationError("is not what was checked: it has changed since")
            owner, copy = self._owner(), os.fstat(self._target)
            if (copy.st_uid, copy.st_gid) != (owner.uid, owner.gid):
                os.fchown(self._target, owner.uid, owner.gid)
            os.fchmod(self._target, owner.mode & allocate.PERMISSION_BITS)
            if disk is not None:
                write_mark(self._target, self.mark(disk))
                if self.common is not None and self.is_compared:
                    copy_repair_mark(self._source, self._target)
            elif self._restored is not None and self._restored.damaged is not None:
                write_mark(self._target, self._restored.damaged)
                write_repair_mark(self._target, self._restored.damaged)
            if self._restored is None:
                self.newly_unreadable = self.unreadable
                self._write_verdict(add_to_verdict)
                self._write_unreadable()
            if self._is_unknown():
                mark_restored(self._target)
            mtime_ns = self._sealed.mtime_ns if self._restored is None else self._restored.mtime_ns
            os.utime(self._target, ns=(self._sealed.atime_ns, mtime_ns))
            if self.has_checksum:
                write_checksum(self._target, self._checksum or self._of_source.digest())
            os.fsync(self._target)
            set_direct(self._target)

    def _write_verdict(self, add: Callable[[bytes | None, UnreadableRanges], bytes] | None) -> None:
        """The copy gets the verdict on the source. Without room for it there, the daemon still knows it."""
        if self.verdict is not None:
            with contextlib.suppress(OSError):  # it was read when the copy began
                self.verdict = read_verdict(self._source)
        verdict = self.verdict
        if add is not None:
            verdict = add(verdict, self.newly_unreadable)
        with contextlib.suppress(OSError):
            if verdict:
                os.setxattr(self._target, layout.XATTR_VERDICT, verdict)

    def _write_unreadable(self) -> None:
        """The copy also lacks what an earlier move could not read. A record of that which cannot be parsed moves
        along as it is: a segment that has one gets no checksum."""
        former = self._former_unreadable
        if former is not None:
            self.unreadable = UnreadableRanges([*parse_unreadable(former).ranges, *self.unreadable.ranges])
        if self.unreadable.ranges:
            write_unreadable(self._target, self.unreadable)
        elif former is not None:
            os.setxattr(self._target, layout.XATTR_UNREADABLE, former)

    @property
    def has_checksum(self) -> bool:
        """Whether the copy gets a checksum, once it is sealed. A rotten segment keeps the one it had, so that the
        difference is found again."""
        return not self.unreadable.ranges and (self._checksum is not None or not self._keeps_checksum)

    @property
    def is_compared(self) -> bool:
        """Whether all of the source was read, and had its checksum."""
        return self._checksum is not None and not self.is_rotten and not self.unreadable.ranges

    def mark(self, disk: DiskNumber) -> Source:
        """The mark of the copy, once it is sealed. `disk` holds the source."""
        if self.common is not None and self.is_compared:
            return self.common
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
            now = unpack(stat_fd(self._source))
            if _moving_attributes(now) != _moving_attributes(self._sealed):
                raise SegmentChangedError(f"{name.decode()}: was changed while it was copied")
            if self._has_cleared_record():
                raise SegmentChangedError(f"{name.decode()}: its verdict was cleared while it was copied")
            if self._restored is None and now.atime_ns != self._sealed.atime_ns:  # by a reader, or by utimes
                os.utime(self._target, ns=(now.atime_ns, now.mtime_ns))
            published = allocate.publish(self._target_dirfd, self._target, name)
            try:
                durable.sync_dir(self._target_dirfd)
            except OSError as error:
                raise UncertainPublishError(f"{name.decode()}: its name may be lost ({error})") from error
            return published

    def _has_cleared_record(self) -> bool:
        """Whether the copy has a record of damage that was removed from its source since."""
        with contextlib.suppress(OSError):  # they were read when the copy began
            present = os.listxattr(self._source)
            if self.verdict and layout.XATTR_VERDICT not in present:
                return True
            return self._former_unreadable is not None and layout.XATTR_UNREADABLE not in present
        return False

    def close(self) -> None:
        """A call that begins afterwards fails with EBADF."""
        self._is_closed = True
        if self._in_use.acquire(blocking=False):
            self._end()

    def _used(self) -> "_Use":
        return _Use(self)

    def _owner(self) -> Owner:
        if self._restored is not None:
            return self._restored.owner
        return Owner(self._sealed.uid, self._sealed.gid, self._sealed.mode)

    def _is_unknown(self) -> bool:
        return has_mark(self._source) if self._restored is None else self._restored.is_unknown

    def _read(self, fd: int, position: int, most: int) -> int:
        wanted = min(most, CHUNK_BYTES, self._size - position)
        filled = 0
        while filled < wanted:
            # O_DIRECT reads whole blocks; at the end of the file fewer bytes come back.
            length = -(-(wanted - filled) // ALIGNMENT) * ALIGNMENT
            count = os.preadv(fd, [memoryview(self._buffer)[filled : filled + length]], position + filled)
            if not count:
                raise SegmentChangedError(f"ends at {position + filled} instead of {self._size}")
            if filled + count >= wanted:
                break
            # A read ends before a bad block; the next one fails.
            if count < ALIGNMENT:
                raise OSError(errno.EIO, "cannot be read completely")
            filled += count // ALIGNMENT * ALIGNMENT
        return wanted

    def _salvage(self, wanted: int) -> int:
        """Fill the buffer with what can be read of the next bytes, and zeros."""
        if not self._position:
            self._require_any_readable()
        buffer = memoryview(self._buffer)
        for at in range(0, wanted, ALIGNMENT):
            block = buffer[at : at + ALIGNMENT]
            if not self._read_block(self._position + at, block):
                block[:] = bytes(ALIGNMENT)
                self.unreadable.add(self._position + at, min(self._position + at + ALIGNMENT, self._size))
        return wanted

    def _require_any_readable(self) -> None:
        blocks = self._size // ALIGNMENT
        places = {blocks * number // _PROBES * ALIGNMENT for number in range(_PROBES)}
        if not any(self._read_block(place, memoryview(self._buffer)[:ALIGNMENT]) for place in sorted(places)):
            raise SegmentUnreadableError("cannot be read at all")

    def _read_block(self, position: int, block: memoryview) -> bool:
        try:
            return os.preadv(self._source, [block], position) == min(ALIGNMENT, self._size - position)
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise
            return False

    def _end(self) -> None:
        """The caller has the lock, and keeps it."""
        os.close(self._source)
        if self._target >= 0:
            os.close(self._target)


def _moving_attributes(attributes: FileAttributes) -> tuple[int, ...]:
    return attributes.size, attributes.mtime_ns, attributes.mode, attributes.uid, attributes.gid


class _Use:
    """One call at work on a copy. No call waits for another one: the last of them closes the files of a closed
    copy, and keeps the lock."""

    def __init__(self, copy: SegmentCopy) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        if not self._copy._in_use.acquire(blocking=False):
            raise OSError(errno.EBADF, "closed")

    def __exit__(self, *_: object) -> None:
        self._copy._in_use.release()
        if self._copy._is_closed:
            self._copy.close()


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


def open_source(
    dirfd: int,
    name: bytes,
    ino: int,
    *,
    salvages: bool = False,
    keeps_checksum: Callable[[bytes], bool] = lambda _: False,
    common: Source | None = None,
) -> SegmentCopy:
    """The copy of a segment, with nothing done yet. `salvages`, `common`: as for SegmentCopy. `keeps_checksum`
    returns, for the attribute of the verdict on it (empty without one), whether its checksum counts although it may
    be of a former state. Raises OSError; SegmentChangedError if it was written to since it got the `common` mark.
    """
    source = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        # Afterwards a store to a mapping of the file changes its mtime, which tells that the copy is worth nothing.
        _sync(source, {*MEDIUM_ERRORS, errno.EROFS} if salvages else ())
        set_direct(source)
        before = unpack(stat_fd(source))
        if common is not None and common.mtime_ns != before.mtime_ns:
            raise SegmentChangedError(f"{name.decode()}: was changed when its copy began")
        witnesses = _witnesses_of(source, before, keeps_checksum, salvages=salvages)
        return SegmentCopy(source, before, salvages=salvages, witnesses=witnesses, common=common)
    except BaseException:
        os.close(source)
        raise


def _witnesses_of(
    source: int, before: FileAttributes, keeps_checksum: Callable[[bytes], bool], *, salvages: bool
) -> _Witnesses:
    """`salvages`: a copy is made even if the disk cannot read them. It gets no checksum then: that would make it
    look right."""
    unreadable = None
    try:
        unreadable = read_unreadable_record(source)
        is_illegible = unreadable is not None and not parse_unreadable(unreadable).ranges
        verdict = read_verdict(source)
        is_kept = is_illegible or keeps_checksum(verdict)
        checksum = read_checksum(source, before, is_kept=is_kept)
    except OSError as error:
        if not salvages or error.errno not in MEDIUM_ERRORS:
            raise
        return _Witnesses(None, None, True, unreadable)
    return _Witnesses(verdict or (None if is_illegible else b""), checksum, is_kept, unreadable)


def open_restored(source: int, size: int, restored: Restored) -> SegmentCopy:
    """The copy of an open file from outside the pool, with nothing done yet. The descriptor stays the caller's.
    Raises OSError; SegmentChangedError if the file does not have `size` bytes."""
    source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 0)
    try:
        before = unpack(stat_fd(source))
        if before.size != size:
            raise SegmentChangedError(f"has {before.size} bytes instead of {size}")
        set_direct(source)
        return SegmentCopy(source, before, restored)
    except BaseException:
        os.close(source)
        raise


def _sync(fd: int, tolerated: Collection[int]) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in tolerated:
            raise
