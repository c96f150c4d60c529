"""The guard: it makes the bare directory of a mountpoint useless to a broker while nothing is mounted there.

A RocketMQ broker that starts on an empty commitlog directory deletes its whole consumequeue and begins the log
again at offset 0; a running one would continue to write into the bare directory. The guard is a file whose length
no segment has, so that a broker refuses to start, in a directory that is immutable (as by `chattr +i`), so that
nobody can create files there. An immutable directory can be mounted over.

Everything here acts on the bare directory only. If a mount is on top, it refuses and does not touch that mount.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.segment import looks_like_segment

GUARD_NAME = "COMMITLOG-NOT-MOUNTED"

_TEXT = """\
This is the bare directory of a commitlogfs mountpoint. The commitlog is NOT mounted here.

This file keeps a RocketMQ broker from starting on the empty directory, where it would delete its
consumequeue and begin a new log at offset 0. Do not remove it to start a broker. Mount the commitlog
first: `commitlogfs mount`, or start its systemd unit. The segments are safe on their disks.

To use the directory for something else: `commitlogfs umount --unguard`.

directory-mode: {mode:04o}
"""
_RECORDED_MODE = re.compile(rb"^directory-mode: ([0-7]{4})$", re.MULTILINE)
_GUARDED_MODE = 0o555
_DIRECTORY_MODE = 0o755
_NAMES_SHOWN = 3

# Linux's _IOR('f', 1, long) and _IOW('f', 2, long) as asm-generic defines them (x86, ARM, RISC-V, s390).
_LONG_SIZE = struct.calcsize("l")
_FS_IOC_GETFLAGS = 0x80006601 | _LONG_SIZE << 16
_FS_IOC_SETFLAGS = 0x40006602 | _LONG_SIZE << 16
_FS_IMMUTABLE_FL = 0x10
_NO_FLAGS_HERE = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES}


class BareState(Enum):
    """State of the bare directory at a mountpoint's path."""

    MOUNTED = "mounted"
    """A mount is on top, so the bare directory is not visible."""
    ABSENT = "absent"
    EMPTY = "empty"
    GUARDED = "guarded"
    OCCUPIED = "occupied"
    NOT_A_DIRECTORY = "not a directory"
    SYMLINK = "symlink"


class Protection(Enum):
    """Protection of a guarded directory against new files."""

    IMMUTABLE = "immutable"
    """Nobody can create files, not even root."""
    MODE = "mode 0555"
    """Only root can create files."""
    FILE_ONLY = "guard file only"
    """Every user who may write to the directory can create files. A broker still refuses to start on the guard
    file."""


@dataclass(frozen=True, slots=True)
class BareDirectory:
    """The result of `check_bare`.

    `foreign` are the first few names apart from the guard, sorted; `segments` is the number of names that a broker
    would take for its segments. `message` is one line for the operator.
    """

    path: str
    state: BareState
    message: str
    foreign: tuple[str, ...] = ()
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """The result of `raise_guard`. `changed` is false if the same guard was there already."""

    path: str
    protection: Protection
    changed: bool


def check_bare(path: str | os.PathLike[str]) -> BareDirectory:
    """State of the bare directory at `path`. Changes nothing.

    Raises OSError if the directory cannot be read, RefusedError if something is mounted there meanwhile.
    """
    bare = _resolve(path)
    entry = mountinfo.find_mount(bare)
    if entry is not None:
        return BareDirectory(
            bare,
            BareState.MOUNTED,
            f"{bare}: a filesystem is mounted here ({entry.fstype}); unmount it, or choose another mountpoint",
        )
    try:
        with _open_path(bare) as path_fd:
            mode = os.fstat(path_fd).st_mode
    except FileNotFoundError:
        return BareDirectory(bare, BareState.ABSENT, f"{bare}: does not exist")
    except NotADirectoryError:
        return BareDirectory(
            bare, BareState.NOT_A_DIRECTORY, f"{bare}: a parent of it is not a directory; correct the path"
        )
    if stat.S_ISLNK(mode):
        message = f"{bare}: is a symbolic link; give the directory that it points to"
        return BareDirectory(bare, BareState.SYMLINK, message)
    if not stat.S_ISDIR(mode):
        return BareDirectory(bare, BareState.NOT_A_DIRECTORY, f"{bare}: is not a directory; correct the path")
    with _open_bare(bare) as directory_fd:
        return _examine(bare, directory_fd)


def raise_guard(
    path: str | os.PathLike[str], *, protect: bool = True, owner: tuple[int, int] | None = None
) -> Guard:
    """Guard the bare directory at `path`. It and its parents are made (mode 0755) if they are absent. Idempotent.

    Parents that are made belong to `owner` (uid, gid), as a broker has to write its store root; existing ones stay
    as they are. On return the guard file and the directory's name are durable. The directory is immutable if
    filesystem and capabilities allow it, else it gets mode 0555. With `protect=False` its mode stays: fusermount
    lets a user without privileges mount only on a directory that this user can write.

    Raises RefusedError if the directory is neither absent nor empty nor guarded, if a mount is on top, or if it
    cannot be written.
    """
    with _refusing(os.fspath(path), "raise"):
        return _raise_guard(check_bare(path), protect, owner)


def _raise_guard(bare: BareDirectory, protect: bool, owner: tuple[int, int] | None) -> Guard:
    if bare.state is BareState.ABSENT:
        _make_directory(Path(bare.path), owner)
    elif bare.state not in (BareState.EMPTY, BareState.GUARDED):
        raise RefusedError(bare.message)
    with _open_bare(bare.path) as directory_fd:
        now = _examine(bare.path, directory_fd)
        if now.state not in (BareState.EMPTY, BareState.GUARDED):
            raise RefusedError(now.message)
        immutable = is_immutable(directory_fd)
        changed = bare.state is BareState.ABSENT
        if not _is_guard_whole(directory_fd):
            if immutable:
                set_immutable(directory_fd, False)
                immutable = False
            _write_guard(directory_fd, stat.S_IMODE(os.fstat(directory_fd).st_mode))
            changed = True
        if not protect:
            mode = stat.S_IMODE(os.fstat(directory_fd).st_mode)
            standing = Protection.MODE if mode == _GUARDED_MODE else Protection.FILE_ONLY
            return Guard(bare.path, Protection.IMMUTABLE if immutable else standing, changed)
        if immutable or set_immutable(directory_fd, True):
            return Guard(bare.path, Protection.IMMUTABLE, changed or not immutable)
        if stat.S_IMODE(os.fstat(directory_fd).st_mode) != _GUARDED_MODE:
            os.fchmod(directory_fd, _GUARDED_MODE)
            os.fsync(directory_fd)
            changed = True
        return Guard(bare.path, Protection.MODE, changed)


def lower_guard(path: str | os.PathLike[str]) -> bool:
    """Remove the guard, so that the directory is empty, writable and has its former mode again.

    Returns False if there was no guard. Raises RefusedError if a mount is on top, for a symbolic link, or if the
    directory cannot be made writable.
    """
    bare = check_bare(path)
    if bare.state in (BareState.MOUNTED, BareState.SYMLINK, BareState.NOT_A_DIRECTORY):
        raise RefusedError(bare.message)
    if bare.state is BareState.ABSENT:
        return False
    with _refusing(bare.path, "lower"), _open_bare(bare.path) as directory_fd:
        text = _read_guard(directory_fd)
        if text is None:
            return False
        if is_immutable(directory_fd) and not set_immutable(directory_fd, False):
            raise RefusedError(f"{bare.path}: is immutable, which only root can change; run this as root")
        recorded = _RECORDED_MODE.search(text)
        if recorded is not None and stat.S_IMODE(os.fstat(directory_fd).st_mode) == _GUARDED_MODE:
            os.fchmod(directory_fd, int(recorded[1], 8))
        os.unlink(GUARD_NAME, dir_fd=directory_fd)
        os.fsync(directory_fd)
    return True


def is_immutable(directory_fd: int) -> bool:
    """Whether the open file or directory is immutable; False if its filesystem has no such flag."""
    flags = _get_flags(directory_fd)
    return flags is not None and bool(flags & _FS_IMMUTABLE_FL)


def set_immutable(directory_fd: int, immutable: bool) -> bool:
    """Set or clear the immutable flag; False if the filesystem or our capabilities do not allow it."""
    flags = _get_flags(directory_fd)
    if flags is None:
        return False
    flags = flags | _FS_IMMUTABLE_FL if immutable else flags & ~_FS_IMMUTABLE_FL
    try:
        fcntl.ioctl(directory_fd, _FS_IOC_SETFLAGS, struct.pack("I", flags).ljust(_LONG_SIZE, b"\0"))
    except OSError as error:
        if error.errno in _NO_FLAGS_HERE:
            return False
        raise
    return is_immutable(directory_fd) == immutable


def _get_flags(fd: int) -> int | None:
    """The inode flags; None if the filesystem has none. The kernel writes an int, although the ioctl's number says
    long."""
    try:
        answer = fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(_LONG_SIZE))
    except OSError as error:
        if error.errno in _NO_FLAGS_HERE:
            return None
        raise
    return int(struct.unpack_from("I", answer)[0])


def _resolve(path: str | os.PathLike[str]) -> str:
    """`path` made absolute with its parents resolved. The last component stays, so that a symbolic link is
    noticed."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  pathlib has no purely textual form
    return str(Path(mountinfo.resolve_path(absolute.parent)) / absolute.name)


@contextlib.contextmanager
def _refusing(bare: str, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(f"{bare}: cannot {verb} the guard: {error.strerror}") from error


@contextlib.contextmanager
def _open_path(bare: str) -> Iterator[int]:
    """An O_PATH descriptor of the file at `bare`. Raises RefusedError if it is the root of a mount.

    O_PATH does not call the filesystem, so a mount that hangs cannot block this.
    """
    fd = os.open(bare, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fdinfo = Path(f"/proc/self/fdinfo/{fd}").read_text()
        mount_id = int(next(line for line in fdinfo.splitlines() if line.startswith("mnt_id:")).split()[1])
        if any(e.mount_id == mount_id and e.mountpoint == bare for e in mountinfo.read_mounts()):
            raise RefusedError(f"{bare}: a filesystem has just been mounted here")
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _open_bare(bare: str) -> Iterator[int]:
    """A descriptor of the bare directory itself. Raises OSError if there is none."""
    with _open_path(bare) as path_fd:
        fd = os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _examine(bare: str, directory_fd: int) -> BareDirectory:
    names = sorted(os.listdir(directory_fd))
    foreign = [name for name in names if name != GUARD_NAME]
    if GUARD_NAME in names and not stat.S_ISREG(
        os.stat(GUARD_NAME, dir_fd=directory_fd, follow_symlinks=False).st_mode
    ):
        foreign.append(GUARD_NAME)
    if not foreign and names:
        return BareDirectory(bare, BareState.GUARDED, f"{bare}: guarded, not mounted")
    if not foreign:
        return BareDirectory(bare, BareState.EMPTY, f"{bare}: empty")
    segments = [name for name in foreign if looks_like_segment(os.fsencode(name))]
    shown = ", ".join(ascii(name)[1:-1] for name in foreign[:_NAMES_SHOWN])
    more = ", ..." if len(foreign) > _NAMES_SHOWN else ""
    if segments:
        message = (
            f"{bare}: holds a RocketMQ commitlog ({len(segments)} segments from {segments[0]}), which a mount "
            "would hide; take it over with `commitlogfs adopt`, or choose another mountpoint"
        )
    else:
        message = f"{bare}: is not empty ({shown}{more}); empty it or choose another mountpoint"
    return BareDirectory(bare, BareState.OCCUPIED, message, tuple(foreign[:_NAMES_SHOWN]), len(segments))


def _make_directory(directory: Path, owner: tuple[int, int] | None) -> None:
    """Make a directory and its parents with mode 0755, each name durable. New parents belong to `owner`."""
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    above = os.open(missing[-1].parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for new in reversed(missing):
            made_fd, is_ours = _make_below(above, new.name)
            os.close(above)
            above = made_fd
            if is_ours:
                os.fchmod(made_fd, _DIRECTORY_MODE)
            if is_ours and owner is not None and new != directory:
                with contextlib.suppress(PermissionError):  # `doctor` and `ready` report the consequence
                    os.fchown(made_fd, *owner)
    finally:
        os.close(above)


def _make_below(above: int, name: str) -> tuple[int, bool]:
    """A descriptor of the directory `name`, and whether it was made here.

    It is opened relative to a descriptor and not through links, so that a user who may write to `above` cannot have
    the owner of another file changed.
    """
    try:
        os.mkdir(name, _DIRECTORY_MODE, dir_fd=above)
        made = True
    except FileExistsError:
        made = False
    os.fsync(above)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        return fd, made and os.fstat(fd).st_uid == os.geteuid() and not os.listdir(fd)  # noqa: PTH208
    except BaseException:
        os.close(fd)
        raise


def _read_guard(directory_fd: int) -> bytes | None:
    try:
        fd = os.open(GUARD_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 2 * len(_TEXT)) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _is_guard_whole(directory_fd: int) -> bool:
    text = _read_guard(directory_fd)
    if text is None:
        return False
    recorded = _RECORDED_MODE.search(text)
    return recorded is not None and text == _guard_text(int(recorded[1], 8))


def _guard_text(directory_mode: int) -> bytes:
    return _TEXT.format(mode=directory_mode).encode()


def _write_guard(directory_fd: int, directory_mode: int) -> None:
    """Write or repair the guard file. It is at no moment empty, as a broker deletes an empty last file."""
    text = _guard_text(_DIRECTORY_MODE if directory_mode == _GUARDED_MODE else directory_mode)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(GUARD_NAME, flags, 0o644, dir_fd=directory_fd)
    try:
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
        os.fchmod(fd, 0o644)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.fsync(directory_fd)
