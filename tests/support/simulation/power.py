"""The media of simulated disks, and power cuts, which undo changes that are not on the medium yet.

As on ext4 and xfs: names, sizes and attributes get there in the order of the changes (a journal), and a sync of a
file commits all changes up to the last one of that file. Content gets there in any order, sector by sector, and a
sync of a file commits its content. The kernel writes everything some time later without being asked.
"""

import contextlib
import os
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from commitlogfs.store import _syscalls

SECTOR: Final = 512
WRITTEN_BACK_S: Final = 35.0
"""Older changes are on the medium: dirty pages expire after 30 s (vm.dirty_expire_centisecs), and a journal commits
after 5 s."""

# The functions of `os` are replaced while a simulation runs; these are the real ones.
_rename, _unlink, _mkdir, _rmdir = os.rename, os.unlink, os.mkdir, os.rmdir
_setxattr, _removexattr, _utime, _truncate = os.setxattr, os.removexattr, os.utime, os.truncate
_pread, _pwrite = os.pread, os.pwrite


@dataclass(frozen=True, slots=True)
class _Change:
    """One change that the medium may lack."""

    inodes: frozenset[int]
    """A sync of one of these commits it."""
    made_s: float
    undo: Callable[[], None]
    forget: Callable[[], None]
    """Called when it is on the medium."""


@dataclass(frozen=True, slots=True)
class _Sector:
    """Content that the medium has of a sector with other content."""

    made_s: float
    content: bytes


class Medium:
    """The medium of one disk."""

    def __init__(self, root: Path, removed: Path, now_s: Callable[[], float]) -> None:
        """`root` is the disk's directory. Files without a name that a power cut may give their name again lie in
        `removed`."""
        removed.mkdir()
        self._root = root
        self._removed = removed
        self._now_s = now_s
        self._changes: list[_Change] = []
        self._sectors: dict[int, dict[int, _Sector]] = {}
        """By inode and number."""
        self._count = 0

    def has(self, path: str) -> bool:
        return path.startswith((f"{self._root}/", f"{self._removed}/")) or path == str(self._root)

    def sync(self, inode: int) -> None:
        self._sectors.pop(inode, None)
        last = max((index for index, change in enumerate(self._changes) if inode in change.inodes), default=-1)
        self._commit(last + 1)

    def has_all_of(self, inode: int) -> bool:
        """Whether a power cut would leave this file as it is."""
        self._write_back()
        return inode not in self._sectors and not any(inode in change.inodes for change in self._changes)

    def cut_power(self, seed: random.Random) -> None:
        """Only what is on the medium remains, and of the rest what the seed chooses."""
        self._write_back()
        kept = seed.choice([0, len(self._changes), seed.randint(0, len(self._changes))])
        for change in reversed(self._changes[kept:]):
            change.undo()
        del self._changes[kept:]
        self._commit(kept)
        share = seed.choice([0.0, 0.5, 1.0])
        for inode, sectors in self._sectors.items():
            lost = {number: one.content for number, one in sectors.items() if seed.random() < share}
            self._put(inode, lost)
        self._sectors.clear()

    # --- changes: each is made by the function that records it, or has been made before ---------------

    def record(
        self, inodes: Collection[int], undo: Callable[[], None], forget: Callable[[], None] | None = None
    ) -> None:
        self._write_back()
        self._changes.append(_Change(frozenset(inodes), self._now_s(), undo, forget or _nothing))

    def record_content(self, fd: int, offset: int, length: int) -> None:
        """Content is about to be written."""
        status = os.fstat(fd)
        self.record_times(fd)
        if offset + length > status.st_size:
            self.record_size(fd)
        sectors = self._sectors.setdefault(status.st_ino, {})
        for number in range(offset // SECTOR, -(-(offset + length) // SECTOR)):
            if number not in sectors:
                sectors[number] = _Sector(self._now_s(), _content(fd, number * SECTOR, SECTOR).ljust(SECTOR, b"\0"))

    def record_loss(self, fd: int, offset: int) -> None:
        """Content from `offset` on is about to be cut off or freed."""
        status = os.fstat(fd)
        content, sectors = _content(fd, offset, status.st_size), self._sectors.pop(status.st_ino, {})
        first = -(-offset // SECTOR)
        self._sectors[status.st_ino] = {number: one for number, one in sectors.items() if number < first}

        def put_back(path: str) -> None:
            _truncate(path, status.st_size)
            _write(path, offset, content)
            self._sectors.setdefault(status.st_ino, {}).update(sectors)

        self.record([status.st_ino], partial(self._at, status.st_ino, put_back))

    def record_size(self, fd: int) -> None:
        status = os.fstat(fd)
        self.record([status.st_ino], partial(self._at, status.st_ino, partial(_truncate, length=status.st_size)))

    def record_owner(self, fd: int) -> None:
        status = os.fstat(fd)

        def put_back(path: str) -> None:
            os.chown(path, status.st_uid, status.st_gid)
            os.chmod(path, status.st_mode & 0o7777)

        self.record([status.st_ino], partial(self._at, status.st_ino, put_back))

    def record_times(self, fd: int) -> None:
        status = os.fstat(fd)
        times = (status.st_atime_ns, status.st_mtime_ns)
        self.record([status.st_ino], partial(self._at, status.st_ino, lambda path: _utime(path, ns=times)))

    def record_attribute(self, place: int | str, name: str | bytes) -> None:
        inode = os.stat(place).st_ino
        try:
            former = os.getxattr(place, name)
        except OSError:

            def remove(path: str) -> None:
                with contextlib.suppress(OSError):
                    _removexattr(path, name)

            self.record([inode], partial(self._at, inode, remove))
            return
        self.record([inode], partial(self._at, inode, lambda path: _setxattr(path, name, former)))

    def record_name(self, path: str) -> None:
        """A file or directory has just got a name."""
        inodes = [os.lstat(path).st_ino, os.stat(os.path.dirname(path)).st_ino]
        self.record(inodes, partial(_rmdir if os.path.isdir(path) else _unlink, path))

    def remove_name(self, path: str) -> None:
        inodes = [os.lstat(path).st_ino, os.stat(os.path.dirname(path)).st_ino]
        self._count += 1
        kept = self._removed / f"{self._count}"
        _rename(path, kept)
        self.record(inodes, partial(_rename, kept, path), partial(_unlink, kept))

    def remove_directory(self, path: str) -> None:
        status = os.stat(path)
        inodes = [status.st_ino, os.stat(os.path.dirname(path)).st_ino]
        _rmdir(path)
        self.record(inodes, partial(_mkdir, path, status.st_mode & 0o7777))

    def change_name(self, path: str, new: str) -> None:
        if os.path.lexists(new):
            self.remove_name(new)
        inodes = [os.lstat(path).st_ino, *(os.stat(os.path.dirname(one)).st_ino for one in (path, new))]
        _rename(path, new)
        self.record(inodes, partial(_rename, new, path))

    # --- the medium ----------------------------------------------------------------------------------

    def _write_back(self) -> None:
        written_s = self._now_s() - WRITTEN_BACK_S
        self._commit(sum(change.made_s < written_s for change in self._changes))
        for inode, sectors in list(self._sectors.items()):
            left = {number: one for number, one in sectors.items() if one.made_s >= written_s}
            if left:
                self._sectors[inode] = left
            else:
                del self._sectors[inode]

    def _commit(self, count: int) -> None:
        for change in self._changes[:count]:
            change.forget()
        del self._changes[:count]

    def _put(self, inode: int, sectors: dict[int, bytes]) -> None:
        def put(path: str) -> None:
            size = os.stat(path).st_size
            for number, content in sectors.items():
                change_on_medium(path, number * SECTOR, content[: max(0, size - number * SECTOR)])

        self._at(inode, put)

    def _at(self, inode: int, function: Callable[[str], None]) -> None:
        """Call a function with the path of a file. One without a name is gone after a power cut."""
        path = next((path for path in self._paths() if os.lstat(path).st_ino == inode), None)
        if path is not None:
            function(path)

    def _paths(self) -> Iterator[str]:
        for top in (self._root, self._removed):
            for directory, _, names in os.walk(top):
                yield directory
                yield from (os.path.join(directory, name) for name in names)


def _nothing() -> None:
    pass


def _content(fd: int, offset: int, length: int) -> bytes:
    """`fd` may be open for writing only."""
    readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _pread(readable, length, offset)
    finally:
        os.close(readable)


def _write(path: str, offset: int, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _pwrite(fd, content, offset)
    finally:
        os.close(fd)


def change_on_medium(path: str, offset: int, content: bytes) -> None:
    """Change content without a write: the times of the file stay."""
    status = os.stat(path)
    _write(path, offset, content)
    _utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Recorder:
    """Makes system calls that change a disk, and lets its medium know."""

    def __init__(self, medium_of: Callable[[str], Medium | None]) -> None:
        """`medium_of` returns the medium of the disk on which a path lies; None for other paths."""
        self._medium_of = medium_of

    def make(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        recorded = getattr(self, f"_{name}", None)
        call = partial(function, *arguments, **named)
        return call() if recorded is None else recorded(call, *arguments, **named)

    def sync(self, fd: int) -> None:
        medium = self._medium_of(path_of(fd))
        if medium is not None:
            medium.sync(os.fstat(fd).st_ino)

    def _pwrite(self, call: Callable[[], Any], fd: int, content: bytes, offset: int) -> Any:
        if medium := self._medium_of(path_of(fd)):
            medium.record_content(fd, offset, len(content))
        return call()

    def _pwritev(self, call: Callable[[], Any], fd: int, buffers: list[bytes], offset: int, _flags: int = 0) -> Any:
        if medium := self._medium_of(path_of(fd)):
            medium.record_content(fd, offset, sum(map(len, buffers)))
        return call()

    def _ftruncate(self, call: Callable[[], Any], fd: int, size: int) -> Any:
        if medium := self._medium_of(path_of(fd)):
            if size < os.fstat(fd).st_size:
                medium.record_loss(fd, size)
            else:
                medium.record_size(fd)
        return call()

    def _fallocate(self, call: Callable[[], Any], fd: int, mode: int, offset: int, _length: int) -> Any:
        """Blocks that are only reserved make no difference to what is read."""
        if mode & _syscalls.FALLOC_FL_PUNCH_HOLE and (medium := self._medium_of(path_of(fd))):
            medium.record_loss(fd, offset)
        return call()

    def _fchmod(self, call: Callable[[], Any], fd: int, *_: int) -> Any:
        if medium := self._medium_of(path_of(fd)):
            medium.record_owner(fd)
        return call()

    _fchown = _fchmod

    def _utime(self, call: Callable[[], Any], fd: int, **_: object) -> Any:
        if medium := self._medium_of(path_of(fd)):
            medium.record_times(fd)
        return call()

    def _setxattr(self, call: Callable[[], Any], place: int | str, name: str, *_: object) -> Any:
        if medium := self._medium_of(path_of(place)):
            medium.record_attribute(place, name)
        return call()

    _removexattr = _setxattr

    def _link(
        self, call: Callable[[], Any], _source: Any, new: Any, *, dst_dir_fd: int | None = None, **_: object
    ) -> Any:
        call()
        path = path_of(new, dst_dir_fd)
        if medium := self._medium_of(path):
            medium.record_name(path)

    def _mkdir(self, call: Callable[[], Any], place: Any, *_: int, dir_fd: int | None = None) -> Any:
        call()
        path = path_of(place, dir_fd)
        if medium := self._medium_of(os.path.dirname(path)):
            medium.record_name(path)

    def _unlink(self, call: Callable[[], Any], place: Any, *, dir_fd: int | None = None) -> Any:
        path = path_of(place, dir_fd)
        medium = self._medium_of(path)
        if medium is None or not os.path.lexists(path) or os.path.isdir(path):
            return call()
        return medium.remove_name(path)

    def _rmdir(self, call: Callable[[], Any], place: Any, *, dir_fd: int | None = None) -> Any:
        path = path_of(place, dir_fd)
        medium = self._medium_of(os.path.dirname(path))
        if medium is None or not os.path.isdir(path) or os.listdir(path):
            return call()
        return medium.remove_directory(path)

    def _rename(
        self,
        call: Callable[[], Any],
        place: Any,
        new: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> Any:
        path, new_path = path_of(place, src_dir_fd), path_of(new, dst_dir_fd)
        medium = self._medium_of(os.path.dirname(path))
        if medium is None or not os.path.lexists(path):
            return call()
        return medium.change_name(path, new_path)


def path_of(place: int | str | bytes, dir_fd: int | None = None) -> str:
    """Path of an open file, or of a name in a directory that is open."""
    if isinstance(place, int):
        return os.readlink(f"/proc/self/fd/{place}")
    path = os.fsdecode(place)
    if dir_fd is not None:
        return os.path.join(path_of(dir_fd), path)
    return os.readlink(path) if path.startswith("/proc/self/fd/") else path
