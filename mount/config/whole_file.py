"""Writing a file as a whole and durably, or not at all."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from commitlogfs.store.files.durable import sync_dir

NEW_FILE_MODE = 0o644


def write_whole(
    path: Path,
    content: bytes,
    *,
    replace: bool,
    like: os.stat_result | None = None,
    last_check: Callable[[], None] | None = None,
) -> None:
    """Write `path`. Without `replace` it must not exist. It gets the mode and owner of `like`.

    `last_check` is called just before the file appears; what it raises leaves everything as it was. Raises OSError.
    """
    temporary = path.with_name(f"{_prefix(path)}{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if like is not None:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, like.st_uid, like.st_gid)
            os.fsync(fd)
        if last_check is not None:
            last_check()
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # fails where the name exists, unlike a rename
    finally:
        temporary.unlink(missing_ok=True)
    dirfd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_dir(dirfd)
    finally:
        os.close(dirfd)


def remove_stale(path: Path) -> None:
    """Remove what writers of `path` have left that were killed. No other one may be at work. Raises OSError."""
    for left in path.parent.iterdir():
        if left.name.startswith(_prefix(path)) and left.name.removeprefix(_prefix(path)).isdecimal():
            left.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    return f".{path.name}."
