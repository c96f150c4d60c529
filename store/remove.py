"""Removing a segment, durably: the name is gone for good before anyone is told so.

A segment that somebody holds open is *retired*: renamed into the disk's `.commitlogfs/` folder until its last
close, so that a restarted daemon finds it again. The folder exists only while it is needed.

    step                                   a crash here leaves
    1 rename into .commitlogfs/            either name; the segment is whole in both
      (or unlink, if nobody has it open)
    2 sync                                 the removal may be undone: the segment is back, whole
    3 reply
    4 last close: unlink, rmdir            a retired file, swept by the next fresh mount
All functions block and belong in a worker thread.
"""

import contextlib
import errno
import os
import re
import secrets

from commitlogfs.store import beneath, durable, layout
from commitlogfs.store.attributes import stat_names, unpack
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.usage import DiskUsage, measure_usage

_RETIRED_NAME = re.compile(rb"([0-9]{20})\.[0-9a-f]{8}")


def remove_file(dirfd: int, name: bytes) -> DiskUsage:
    """Unlink a name nobody has open. Raises OSError; ENOENT is success (a repeated request)."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)
    durable.sync_dir(dirfd)
    return measure_usage(dirfd)


def retire_file(dirfd: int, name: bytes) -> bytes:
    """Move an open segment aside; its new name inside the retired folder. Raises OSError."""
    retired_name = b"%b.%b" % (name.lstrip(b".")[:20], secrets.token_hex(4).encode())
    with contextlib.suppress(FileExistsError):
        os.mkdir(layout.RETIRED_FOLDER, 0o700, dir_fd=dirfd)
    folder = beneath.open_folder(dirfd, layout.RETIRED_FOLDER)
    try:
        os.rename(name, retired_name, src_dir_fd=dirfd, dst_dir_fd=folder)
        durable.sync_dir(folder)
        durable.sync_dir(dirfd)
    finally:
        os.close(folder)
    return retired_name


def drop_retired(dirfd: int, retired_name: bytes) -> DiskUsage:
    """Free a retired segment after its last close, and the folder with the last one. Raises OSError."""
    try:
        folder = beneath.open_folder(dirfd, layout.RETIRED_FOLDER)
    except FileNotFoundError:
        return measure_usage(dirfd)
    try:
        os.unlink(retired_name, dir_fd=folder)
    except FileNotFoundError:
        pass
    finally:
        os.close(folder)
    _remove_empty_folder(dirfd)
    return measure_usage(dirfd)


def list_retired(dirfd: int) -> list[tuple[bytes, BaseOffset, int]]:
    """(name, base offset, inode) of every retired segment on a disk. Raises OSError."""
    try:
        folder = beneath.open_folder(dirfd, layout.RETIRED_FOLDER)
    except FileNotFoundError:
        return []
    try:
        with os.scandir(folder) as entries:
            names = [name for entry in entries if _RETIRED_NAME.fullmatch(name := os.fsencode(entry.name))]
        return [
            (name, BaseOffset(int(name[:20])), unpack(outcome).ino)
            for name, outcome in zip(names, stat_names(folder, names), strict=True)
            if not isinstance(outcome, int)
        ]
    finally:
        os.close(folder)


def _remove_empty_folder(dirfd: int) -> None:
    try:
        os.rmdir(layout.RETIRED_FOLDER, dir_fd=dirfd)
    except OSError as error:
        # Another retired segment, or something that is not ours, still lies in it.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
            raise
