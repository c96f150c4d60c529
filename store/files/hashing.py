"""Checksums of segments on one disk: reading the content, and keeping the result with the file.

The content is read through the page cache with RWF_DONTCACHE: pages that are in memory are read there and stay, and
others leave it again. All functions block and belong in a worker thread.
"""

import errno
import mmap
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

import xxhash

from commitlogfs.store import layout
from commitlogfs.store.checksum import Checksum, Key, format_checksum, parse_checksum
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.errors import SegmentChangedError
from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.files.attributes import FileAttributes, PackedAttributes, stat_fd, stat_name, unpack
from commitlogfs.store.files.direct import ALIGNMENT, set_direct

CHUNK_BYTES: Final = 1 << 20
RWF_DONTCACHE: Final = 0x80
"""preadv2(2), since Linux 6.14."""
_ABSENT: Final = frozenset({errno.ENODATA, errno.ENOTSUP})
_ILLEGIBLE: Final = b"\0"
"""In place of an attribute without a value, which no version writes: it cannot be parsed either."""


class Found(NamedTuple):
    """State of a segment's file, read from its disk."""

    name: bytes
    attributes: PackedAttributes
    is_valid: bool
    """Whether it has a checksum of its present content."""


def key_of(attributes: FileAttributes) -> Key:
    return Key(attributes.ino, attributes.size, attributes.mtime_ns)


def read_checksum(fd: int, state: FileAttributes, *, is_kept: bool = False) -> bytes | None:
    """The digest that an open file has for this state of it, or, if it `is_kept`, from a former state. Raises
    OSError."""
    recorded = read_recorded(fd)
    return recorded.digest if recorded is not None and (is_kept or recorded.key == key_of(state)) else None


def read_recorded(file: int | str) -> Checksum | None:
    """The checksum that a file, given as descriptor or path, has, perhaps of another file or a former state. Raises
    OSError."""
    return parse_checksum(_attribute(file, layout.XATTR_CHECKSUM))


def write_checksum(fd: int, digest: bytes) -> None:
    """Bind the digest to the present state of an open file, whose mtime stays. Not durable before the file is; lost
    in a power cut, it is computed again. Raises OSError."""
    checksum = Checksum(digest, key_of(unpack(stat_fd(fd))))
    os.setxattr(fd, layout.XATTR_CHECKSUM, format_checksum(checksum))


def rebind_checksum(fd: int) -> bool:
    """Bind the digest that an open file has to its present state, whatever state it was of; durable. Returns
    whether it has one. Raises OSError."""
    recorded = read_recorded(fd)
    if recorded is None:
        return False
    if recorded.key != key_of(unpack(stat_fd(fd))):
        write_checksum(fd, recorded.digest)
        os.fsync(fd)
    return True


def read_checksum_of(dirfd: int, name: bytes, ino: int, *, is_kept: bool = False) -> bytes | None:
    """The digest of the file `name` in a disk's directory, if it has one of its present content, or, if it
    `is_kept`, of a former one. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        return read_checksum(fd, unpack(stat_fd(fd)), is_kept=is_kept)
    finally:
        os.close(fd)


def find_checksums(dirfd: int, names: Iterable[bytes]) -> list[Found]:
    """The state of these files, as far as it can be read. Two system calls for each file."""
    found = []
    for name in names:
        try:
            recorded = read_recorded(f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}")
            attributes = stat_name(dirfd, name)
        except OSError:
            continue
        is_valid = recorded is not None and recorded.key == key_of(unpack(attributes))
        found.append(Found(name, attributes, is_valid))
    return found


def drop_checksum(dirfd: int, name: bytes, ino: int) -> bool:
    """Remove the checksum of a file, durably. Returns whether it had one. Raises OSError."""
    return durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_CHECKSUM)


class SegmentHash:
    """The computation of one checksum. For one thread; close it afterwards."""

    def __init__(
        self, dirfd: int, name: bytes, ino: int, clock: Clock, at_rest_s: float = 0.0, *, is_direct: bool = False
    ) -> None:
        """`at_rest_s`: a file that was changed within this time is not at rest. `is_direct`: the content is read
        from the device, past the page cache. Raises OSError."""
        self._name = name
        self._fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
        try:
            self._before = unpack(stat_fd(self._fd))
            self.is_at_rest = abs(clock.wall_ns() - self._before.mtime_ns) >= at_rest_s * 1e9
            self.has_checksum = read_checksum(self._fd, self._before) is not None
            self.is_incomplete = layout.XATTR_UNREADABLE in os.listxattr(self._fd)
            """Whether a part of it could not be read when it was moved: such a segment gets no checksum."""
            self.verdict = read_verdict(self._fd)
            """The attribute of the verdict on it; empty without one."""
            if is_direct:
                set_direct(self._fd)
        except BaseException:
            os.close(self._fd)
            raise
        self._position = 0
        self._digest = xxhash.xxh3_128()
        self._flags = 0 if is_direct else RWF_DONTCACHE
        self._buffer = mmap.mmap(-1, CHUNK_BYTES)

    @property
    def size(self) -> int:
        return self._before.size

    def sync(self) -> None:
        """Before the first chunk. Raises OSError; PermissionError if the result could not be recorded.

        Afterwards a store to a mapping changes the mtime again. The attributes were read before it: a store in
        between is either in the content that is hashed, or changes them.
        """
        if not os.access(f"/proc/self/fd/{self._fd}", os.W_OK):
            raise PermissionError(errno.EACCES, "its checksum cannot be recorded", os.fsdecode(self._name))
        os.fsync(self._fd)

    def rebind(self) -> bool:
        """As rebind_checksum, instead of the computation. Raises OSError."""
        return rebind_checksum(self._fd)

    def read_chunk(self) -> int:
        """Hash the next bytes. Returns their number, 0 at the end. Raises OSError, SegmentChangedError."""
        required = min(CHUNK_BYTES, self.size - self._position)
        filled = 0
        while filled < required:
            count = self._read(memoryview(self._buffer)[filled:], self._position + filled)
            if not count:
                raise SegmentChangedError(f"{self._name.decode()}: ends at {self._position + filled}")
            filled = min(required, filled + count)
            if not self._flags and filled < required and filled % ALIGNMENT:
                raise OSError(errno.EIO, "cannot be read completely", os.fsdecode(self._name))
        self._digest.update(memoryview(self._buffer)[:required])
        self._position += required
        return required

    def checksum(self) -> Checksum:
        """The checksum of the content, once all of it is hashed. Raises OSError, SegmentChangedError."""
        assert self._position == self.size
        after = unpack(stat_fd(self._fd))
        if (key_of(after), after.ctime_ns) != (key_of(self._before), self._before.ctime_ns):
            raise SegmentChangedError(f"{self._name.decode()}: was changed while it was read")
        return Checksum(self._digest.digest(), key_of(self._before))

    def record(self) -> bytes:
        """Give the file its checksum, once all of it is hashed; the digest. Raises OSError, SegmentChangedError."""
        checksum = self.checksum()
        os.setxattr(self._fd, layout.XATTR_CHECKSUM, format_checksum(checksum))
        return checksum.digest

    def close(self) -> None:
        os.close(self._fd)

    def _read(self, into: memoryview, position: int) -> int:
        try:
            return os.preadv(self._fd, [into], position, self._flags)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not self._flags:
                raise
        self._flags = 0  # an older kernel, or another filesystem: past the page cache
        set_direct(self._fd)
        return os.preadv(self._fd, [into], position)


def read_content(dirfd: int, name: bytes, ino: int) -> Checksum:
    """The checksum of what the device returns of a file now. Raises OSError, SegmentChangedError."""
    hashing = SegmentHash(dirfd, name, ino, SYSTEM_CLOCK, is_direct=True)
    try:
        while hashing.read_chunk():
            pass
        return hashing.checksum()
    finally:
        hashing.close()


def read_verdict(file: int | str) -> bytes:
    """The attribute of the verdict (store/scrub/verdict.py) on a file, given as descriptor or path; empty without
    one. One that is empty itself is returned as a zero byte. Raises OSError."""
    return _attribute(file, layout.XATTR_VERDICT)


def _attribute(file: int | str, name: str) -> bytes:
    try:
        return os.getxattr(file, name, follow_symlinks=isinstance(file, int)) or _ILLEGIBLE
    except OSError as error:
        if error.errno in _ABSENT:
            return b""
        raise
