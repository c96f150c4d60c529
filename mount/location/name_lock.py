"""Lock files of a mount's name: at most one daemon and one keeper have it."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import runtime_directory
from commitlogfs.store.files.locks import share, take_lock


def hold_name(name: str, patience_s: float = 0.0, dying: Collection[int] = ()) -> int:
    """The open lock file of the name; closing it releases the lock.

    `dying`: as for take_lock. Raises RefusedError if another daemon holds it for longer than `patience_s`.
    """
    runtime_directory.ensure_runtime_directory()
    path = runtime_directory.lock_path(name)
    try:
        fd = hold_file(path, patience_s, dying)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be made ({error.strerror}); check the runtime directory") from error
    if fd is None:
        raise RefusedError(f"{name}: its daemon is running already; see `commitlogfs status {name}`")
    return fd


def hold_file(path: Path, patience_s: float, dying: Collection[int] = ()) -> int | None:
    """The lock file at `path`, open and locked; it is made if it is absent.

    `dying`: as for take_lock. None if another process holds it for longer than `patience_s`. Raises OSError.
    """
    while True:
        fd = _open(path)
        if not take_lock(fd, patience_s, dying):
            os.close(fd)
            return None
        if _is_at(path, fd):
            return fd
        os.close(fd)  # its former holder has just removed it


def share_file(path: Path) -> tuple[int, frozenset[int]]:
    """The file at `path`, open and with a shared lock, and the pids of the other processes that have one; it is
    made if it is absent. Raises OSError."""
    while True:
        fd = _open(path)
        others = share(fd)
        if _is_at(path, fd):
            return fd, others
        os.close(fd)  # the last one of them has just removed it


def release_shared(path: Path, fd: int) -> None:
    """Close a file with a shared lock. The last one removes it."""
    with contextlib.suppress(OSError):
        if take_lock(fd) and _is_at(path, fd):
            path.unlink()
    os.close(fd)


def release_file(path: Path, fd: int, name: str) -> None:
    """Close a lock file. Remove it unless the mount of this name still exists, as `recorded_mountpoint` reads
    it."""
    with contextlib.suppress(OSError):
        if _is_at(path, fd) and recorded_mount(name) is None:
            path.unlink()
    os.close(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_at(path: Path, fd: int) -> bool:
    status = os.fstat(fd)
    return runtime_directory.identity(path) == (status.st_dev, status.st_ino)


def recorded_mount(name: str) -> mountinfo.MountEntry | None:
    """The mount of this name that a daemon of this runtime directory has made; another mount may lie on top.

    Raises UsageError for a text that cannot be a name.
    """
    if runtime_directory.recorded_mountpoint(name) is None:
        return None
    found = [entry for entry in mountinfo.read_mounts() if entry.source == name and is_of_this_directory(entry)]
    return found[-1] if found else None


def is_of_this_directory(entry: mountinfo.MountEntry) -> bool:
    """Whether a mount belongs to this runtime directory. Another runtime directory may have a mount of the same
    name."""
    if not mountinfo.is_commitlogfs(entry):
        return False
    try:
        recorded = runtime_directory.recorded_mountpoint(entry.source)
    except UsageError:
        return False
    return recorded is not None and mountinfo.resolve_path(recorded) == entry.mountpoint
