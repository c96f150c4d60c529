"""The system calls of simulated disks: while a call of a daemon is made, those that reach a disk can fail, or end
in the middle because the daemon is killed."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from support.simulation.power import Recorder, path_of

from commitlogfs.store import _syscalls

_READS: Final = ((os, "pread"), (os, "preadv"))
_CHANGES: Final = (
    *(
        (os, name)
        for name in ("fchmod", "fchown", "ftruncate", "link", "mkdir", "pwrite", "pwritev", "removexattr")
    ),
    *((os, name) for name in ("rename", "rmdir", "setxattr", "unlink", "utime", "write")),
    (_syscalls, "fallocate"),
)
_SYNCS: Final = ((os, "fdatasync"), (os, "fsync"))


class KilledError(BaseException):
    """The daemon ends here. Nothing in the product handles it."""


class SystemCalls:
    """Only what goes to the disk fails: names and attributes are in the kernel's memory."""

    def __init__(self, room: Callable[[str], tuple[int, int] | None], recorder: Recorder) -> None:
        """`room` returns the bytes of the disk on which a file lies, and those that are free; None for other
        files."""
        self._room = room
        self._recorder = recorder
        self._error = 0
        self._left: int | None = None
        """Changes that are still made before the daemon dies; None if it lives."""

    @contextlib.contextmanager
    def failing(self, error: int) -> Iterator[None]:
        self._error = error
        try:
            yield
        finally:
            self._error = 0

    def make_partly(self, work: Callable[[], object], changes: int) -> None:
        """Make a call whose caller is killed after that many changes: nobody gets its result, and the kernel closes
        what it has opened."""
        before = set(os.listdir("/proc/self/fd"))
        self._left = changes
        try:
            work()
        except (KilledError, Exception):  # noqa: S110
            pass
        finally:
            self._left = None
        for descriptor in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(OSError):  # the directory that was listed
                os.close(int(descriptor))

    @contextlib.contextmanager
    def simulated(self) -> Iterator[None]:
        """A sync only lets the medium of a disk know, since the directories are not what is tested."""
        with pytest.MonkeyPatch.context() as patch:
            for module, name in _READS:
                patch.setattr(module, name, self._failing(getattr(module, name)))
            for module, name in _CHANGES:
                patch.setattr(module, name, self._changing(name, getattr(module, name)))
            patch.setattr(os, "statvfs", self._statvfs(os.statvfs))
            patch.setattr(_syscalls, "fallocate", self._reserving(_syscalls.fallocate))
            for module, name in _SYNCS:
                patch.setattr(module, name, self._failing(self._recorder.sync))
            patch.setattr(_syscalls, "sync_file_range", self._failing(lambda *_: None))
            yield

    def _statvfs(self, function: Callable[..., os.statvfs_result]) -> Callable[..., os.statvfs_result]:
        def call(place: int | str) -> os.statvfs_result:
            found = function(place)
            room = self._room(path_of(place))
            if room is None:
                return found
            total, free = (count // found.f_frsize for count in room)
            return os.statvfs_result((found.f_bsize, found.f_frsize, total, free, free, *found[5:]))

        return call

    def _reserving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, mode: int, offset: int, length: int) -> Any:
            room = self._room(path_of(fd))
            if room is not None and not mode & _syscalls.FALLOC_FL_PUNCH_HOLE and room[1] < length:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(fd, mode, offset, length)

        return call

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._error:
                raise OSError(self._error, os.strerror(self._error))
            return function(*arguments, **named)

        return call

    def _changing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._error:
                raise OSError(self._error, os.strerror(self._error))
            if self._left is not None:
                if not self._left:
                    raise KilledError
                self._left -= 1
            return self._recorder.make(name, function, *arguments, **named)

        return call
