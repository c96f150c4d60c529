"""The runtime directory: it holds the sockets, lock files and journals of running
daemons.

Other users may pass through it (0711), to a status socket that their group may use; its files are private.

It is /run/commitlogfs for root; for other users $XDG_RUNTIME_DIR/commitlogfs, else ~/.cache/commitlogfs/run. It is
never a directory that another user could have made, such as one in /tmp. $COMMITLOGFS_RUNTIME_DIR overrides it.
"""

import fcntl
import grp
import os
import re
import socket
import stat
from pathlib import Path
from typing import Final

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.user_directories import home_directory

OVERRIDE = "COMMITLOGFS_RUNTIME_DIR"
OF_ROOT = Path("/run/commitlogfs")
STATUS_GROUP = "commitlogfs"
"""Members of this system group, if it exists, may read the state of all mounts."""

_SOCKET_SUFFIX = ".sock"
_STATUS_SUFFIX = ".stat"
_LOCK_SUFFIX = ".lock"
_KEEPER_LOCK_SUFFIX = ".keep"
_DAEMONS_SUFFIX = ".daemons"
_NOTIFY_SUFFIX = ".note"
_JOURNAL_SUFFIX = ".journal"
_TRACES = (
    *(_SOCKET_SUFFIX, _STATUS_SUFFIX, _LOCK_SUFFIX, _KEEPER_LOCK_SUFFIX, _DAEMONS_SUFFIX),
    _JOURNAL_SUFFIX,
)
_MODE = 0o711
_READS: Final = 100
"""Attempts to read a line that has no end."""
_LONGEST_LINE: Final = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,63}")
_MAX_SOCKET_PATH = 107
"""struct sockaddr_un holds 108 bytes, the last of them NUL."""


def runtime_directory() -> Path:
    """Path of the runtime directory, which may not exist yet. Touches nothing. Raises UsageError if there is no
    place for it."""
    override = os.environ.get(OVERRIDE)
    if override:
        if not Path(override).is_absolute():
            raise UsageError(f"${OVERRIDE}: {override!r} is not absolute; set an absolute path")
        return Path(override)
    if os.geteuid() == 0:
        return OF_ROOT
    xdg = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if xdg.is_absolute() and _is_ours(xdg):
        return xdg / "commitlogfs"
    home = home_directory()
    if home is None:
        raise UsageError(f"runtime directory: this user has no home; set $XDG_RUNTIME_DIR or ${OVERRIDE}")
    return home / ".cache/commitlogfs/run"


def ensure_runtime_directory() -> Path:
    """Make the runtime directory (mode 0711) if it is absent, and check it. Another mode is changed to that.

    Raises RefusedError if it is a symbolic link, not a directory or owned by another user, or cannot be made.
    """
    directory = runtime_directory()
    try:
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RefusedError(f"{directory}: is not a directory; remove it") from error
    except OSError as error:
        raise RefusedError(
            f"{directory}: the runtime directory cannot be made ({error.strerror}){_advice()}"
        ) from error
    _check(directory)
    return directory


def is_name(text: str) -> bool:
    """Whether a text can be the name of a mount."""
    return _NAME.fullmatch(text) is not None


def socket_path(name: str) -> Path:
    """Path of the control socket of the mount `name`. Touches nothing.

    Raises UsageError for a text that cannot be a name, and for a path that is too long for a socket.
    """
    if not is_name(name):
        raise UsageError(f"{name!r}: not a mount name; use letters, digits, and _ . @ : - (at most 64)")
    path = runtime_directory() / (name + _SOCKET_SUFFIX)
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise UsageError(
            f"{path}: longer than {_MAX_SOCKET_PATH} bytes, too long for a socket; "
            f"use a shorter name, or set ${OVERRIDE}"
        )
    return path


def status_socket_path(name: str, directory: Path | None = None) -> Path:
    """Path of the status socket of the mount `name`, in this runtime directory or another one. Touches nothing.
    It is as long as the control socket's path.

    Raises UsageError.
    """
    path = socket_path(name).with_suffix(_STATUS_SUFFIX)
    return path if directory is None else directory / path.name


def lock_path(name: str) -> Path:
    """Path of the file that the daemon of `name` keeps locked while it lives; removed after an unmount.

    Raises UsageError.
    """
    return socket_path(name).with_suffix(_LOCK_SUFFIX)


def daemons_path(name: str) -> Path:
    """Path of the file that every daemon of `name` shares a lock of while its process is there, even if it was
    killed. The last one removes it.

    Raises UsageError.
    """
    return socket_path(name).with_suffix(_DAEMONS_SUFFIX)


def keeper_lock_path(name: str) -> Path:
    """Path of the file that the keeper of `name` keeps locked while it lives; removed after an unmount.

    Raises UsageError.
    """
    return socket_path(name).with_suffix(_KEEPER_LOCK_SUFFIX)


def journal_path(name: str) -> Path:
    """Path of the journal of decisions of `name`, which each of its daemons continues; removed after an unmount.

    Raises UsageError.
    """
    return socket_path(name).with_suffix(_JOURNAL_SUFFIX)


def notify_path(name: str) -> Path:
    """Path of the socket at which the keeper of `name` receives its daemon's notifications.

    It is as long as the control socket's path.

    Raises UsageError.
    """
    return socket_path(name).with_suffix(_NOTIFY_SUFFIX)


def record_mountpoint(lock_fd: int, mountpoint: str) -> None:
    """Record the mountpoint in the daemon's open lock file, for commands that run when the daemon is dead."""
    text = os.fsencode(mountpoint) + b"\n"
    os.pwrite(lock_fd, text, 0)
    os.ftruncate(lock_fd, len(text))


def recorded_mountpoint(name: str) -> str | None:
    """Mountpoint of the latest daemon of `name`, alive or dead; None if it is not known.

    Names belong to a runtime directory, mounts to the whole machine: a mount of another runtime directory may have
    the same name. Raises UsageError.
    """
    try:
        text = lock_path(name).read_bytes()
    except OSError:
        return None
    return os.fsdecode(text[:-1]) if text.endswith(b"\n") else None


def record_trouble(name: str, text: str) -> None:
    """Record in the lock file of this process, the keeper, why no daemon serves the mount; empty if one does.

    Raises UsageError, OSError.
    """
    line = text.encode(errors="surrogateescape") + b"\n"
    with keeper_lock_path(name).open("r+b", buffering=0) as file:
        # Written over the former line, so that a reader never finds the file empty in between.
        file.write(line)
        file.truncate(len(line))


def recorded_trouble(name: str) -> str | None:
    """Reason that the keeper of `name` has recorded why no daemon serves the mount; empty without one, or without a
    living keeper; None if this user may not read it. Raises UsageError."""
    try:
        with keeper_lock_path(name).open("rb") as file:
            line = _read_first_line(file.fileno())
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return line.decode(errors="replace")
    except PermissionError:
        return None
    except OSError:
        pass
    return ""


def _read_first_line(fd: int) -> bytes:
    """The first line of a file, which is written over. A reader may see the bytes of a longer line with the size
    of a shorter one, and no end of the line: it reads again. A killed writer may have left such a line."""
    for _ in range(_READS):
        line, end, _ = os.pread(fd, _LONGEST_LINE, 0).partition(b"\n")
        if end or not line:
            break
    return line


def bind_private(unbound: socket.socket, path: Path) -> None:
    """Bind a socket at `path` with mode 0600; a file that was left there is removed. Raises OSError."""
    path.unlink(missing_ok=True)
    former = os.umask(0o177)
    try:
        unbound.bind(os.fspath(path))
    finally:
        os.umask(former)


def find_status_group() -> int | None:
    """Id of STATUS_GROUP; None if there is no such group on this machine."""
    try:
        return grp.getgrnam(STATUS_GROUP).gr_gid
    except KeyError:
        return None


def bind_for_group(unbound: socket.socket, path: Path, group: int | None) -> None:
    """Bind a socket at `path`, to which members of the group may connect (0660); without a group as `bind_private`.
    Raises OSError."""
    bind_private(unbound, path)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o660)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at `path`; None if there is none. They differ once the file was replaced."""
    try:
        st = path.lstat()
    except OSError:
        return None
    return st.st_dev, st.st_ino


def list_names() -> list[str]:
    """Names that have a control socket, sorted; a dead daemon may have left one.

    Raises RefusedError if the runtime directory exists but another user could have made it.
    """
    return sorted(item.stem for item in _items() if item.suffix == _SOCKET_SUFFIX and _is_socket(item))


def known_names() -> list[str]:
    """Names that have any file of a daemon or keeper, sorted. Raises RefusedError as `list_names` does."""
    return sorted({item.stem for item in _items() if item.suffix in _TRACES})


def _items() -> list[Path]:
    directory = runtime_directory()
    try:
        _check(directory)
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise RefusedError(f"{directory}: cannot be read by this user{_advice()}") from error


def _check(directory: Path) -> None:
    # O_NOFOLLOW and fstat, so that the directory that is checked is the one whose mode is narrowed.
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        if not os.path.lexists(directory):  # a parent of it is not a directory
            raise FileNotFoundError(error.errno, error.strerror, str(directory)) from error
        raise RefusedError(f"{directory}: is not a directory, or is a symbolic link; remove it") from error
    try:
        state = os.fstat(fd)
        if state.st_uid != os.geteuid():
            raise RefusedError(
                f"{directory}: belongs to user {state.st_uid}, not to you (user {os.geteuid()}); run the command "
                "as that user, or remove the directory if no daemon of that user runs"
            )
        if stat.S_IMODE(state.st_mode) != _MODE:
            os.fchmod(fd, _MODE)
    finally:
        os.close(fd)


def _advice() -> str:
    """Remedy for a runtime directory in a home that may belong to another user."""
    if os.geteuid() == 0 or os.environ.get(OVERRIDE):
        return ""
    return f"; set $HOME to this user's home, or $XDG_RUNTIME_DIR or ${OVERRIDE}"


def _is_ours(directory: Path) -> bool:
    try:
        return directory.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _is_socket(item: Path) -> bool:
    try:
        return stat.S_ISSOCK(item.lstat().st_mode)
    except FileNotFoundError:
        return False
