"""Removing a segment, durably: the name is gone for good before the caller gets an answer.

A segment that is open is *retired*: renamed into the disk's `.commitlogfs/` directory until its last close, so that
a restarted daemon finds it again. The directory exists only while it is needed.

    step                                   a crash here leaves
    1 rename into .commitlogfs/            either name; the segment is whole in both
      (or unlink, if nobody has it open)
    2 sync                                 the removal may be undone: the segment is back, whole
    3 reply
    4 last close: unlink, rmdir            a retired file, swept by the next fresh mount

On a disk without space for the directory, an open segment is unlinked where it lies, and exists only as long as its
descriptors: removing reclaims space, so it must not need any. The same holds if another process has unlinked it.
All functions block and belong in a worker thread.
"""

import contextlib
import errno
import os
import re
import secrets
from enum import Enum
from typing import NamedTuple

from commitlogfs.store import _syscalls, layout
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.files.attributes import PackedAttributes, stat_fd, stat_name, stat_names, unpack
from commitlogfs.store.files.usage import DiskUsage, UsageAfter, measure_usage
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.timing import DEFAULT

_RETIRED_NAME = re.compile(rb"([0-9]{20})\.[0-9a-f]{8}(\.forced|\.moved|\.damaged)?")
_NAME_AND_CODE = re.compile(rb"^[0-9]{20}\.[0-9a-f]{8}")

_FREE_PAUSE_S = 0.001


class FreeWait(NamedTuple):
    """How long to wait until a removed file's blocks show as free."""

    freed_s: float = DEFAULT.requests.freed_s
    clock: Clock = SYSTEM_CLOCK


USUAL_WAIT = FreeWait()
"""For commands and the start of a daemon."""


def remove_file(dirfd: int, name: bytes, ino: int | None = None, wait: FreeWait = USUAL_WAIT) -> DiskUsage:
    """Unlink a name nobody has open; the usage without it: UsageAfter, unless it was gone already. Raises OSError;
    ELOOP where another file than the one with inode `ino` lies there. ENOENT is success (a repeated request)."""
    if ino is not None:
        with contextlib.suppress(FileNotFoundError):
            safe_open.require_file(dirfd, name, ino)
    before = measure_usage(dirfd).free_bytes
    try:
        expected = before + _freed_bytes(dirfd, name)
        os.unlink(name, dir_fd=dirfd)
    except FileNotFoundError:
        durable.sync_dir(dirfd)
        return measure_usage(dirfd)
    gained = measure_usage(dirfd).free_bytes - before  # a sync may take long, and others the space meanwhile
    durable.sync_dir(dirfd)
    return _measure_freed(dirfd, before, expected, wait, gained)


class Reason(Enum):
    """Why an open file was set aside, as the end of its name, for a later daemon."""

    REMOVED = b""
    FORCED = b".forced"
    """By a rule of forced deletion."""
    MOVED = b".moved"
    """Its segment is on another disk. Former versions do not know this ending, and leave such a file alone."""
    DAMAGED = b".damaged"
    """A right copy has replaced it (store/moves/repair.py): it is kept, open or not. The same holds for former
    versions."""


class Retired(NamedTuple):
    """An open file that has left the log."""

    name: bytes
    """In the directory of retired files, if it lies there."""
    vanished: bool
    """The file was not in its place: another process has removed or moved it."""


def retire_file(dirfd: int, name: bytes, ino: int, reason: Reason = Reason.REMOVED) -> Retired:
    """Move the open segment with inode `ino` aside, if it is there, and the disk has space for that.

    Raises OSError; ELOOP where another file lies there, which stays; ENOSPC or EDQUOT for a damaged file, which is
    never unlinked instead.
    """
    retired_name = b"%b.%b" % (name.lstrip(b".")[:20], secrets.token_hex(4).encode())
    retired_name += reason.value
    vanished = False
    try:
        safe_open.require_file(dirfd, name, ino)
        _move_aside(dirfd, name, ino, retired_name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
            raise
        if error.errno != errno.ENOENT and reason is Reason.DAMAGED:
            raise
        if error.errno == errno.ENOENT:
            vanished = True
        else:
            with contextlib.suppress(FileNotFoundError):  # moved already, and only the sync found no space
                safe_open.require_file(dirfd, name, ino)
                os.unlink(name, dir_fd=dirfd)
        drop_empty_directory(dirfd)
        durable.sync_dir(dirfd)
    return Retired(retired_name, vanished)


def reason_of(retired_name: bytes) -> Reason:
    """Why the file of this name was set aside."""
    return Reason(_NAME_AND_CODE.sub(b"", retired_name))


def name_with(retired_name: bytes, reason: Reason) -> bytes:
    """The name of the same file if it was set aside for this reason."""
    return retired_name.removesuffix(reason_of(retired_name).value) + reason.value


def change_reason(dirfd: int, retired_name: bytes, reason: Reason) -> bytes:
    """Rename a retired file, not durably; its new name. Raises OSError."""
    new_name = name_with(retired_name, reason)
    directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    try:
        os.rename(retired_name, new_name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    return new_name


def punch_fd(
    fd: int, dirfd: int, retired_name: bytes, segment_size: int, wait: FreeWait = USUAL_WAIT
) -> tuple[PackedAttributes, DiskUsage]:
    """Free all blocks of a retired segment although it is open: its readers see zeros afterwards. Its size stays,
    because access to a mapping past a file's end kills the process. Returns its attributes, and the usage without
    its blocks. Raises OSError; ENOENT where the file has a name that is not ours, by which another user keeps
    it."""
    _require_no_other_name(fd, dirfd, retired_name)
    before = measure_usage(dirfd).free_bytes
    expected = before + unpack(stat_fd(fd)).allocated_bytes
    _syscalls.fallocate(fd, _syscalls.FALLOC_FL_PUNCH_HOLE | _syscalls.FALLOC_FL_KEEP_SIZE, 0, segment_size)
    os.fsync(fd)
    return stat_fd(fd), _measure_freed(dirfd, before, expected, wait)


def punch_retired(
    dirfd: int, retired_name: bytes, ino: int, segment_size: int, wait: FreeWait = USUAL_WAIT
) -> tuple[PackedAttributes, DiskUsage]:
    """`punch_fd` of a file in the directory of retired files. Raises OSError; ENOENT also where it is not there."""
    directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    try:
        fd = safe_open.open_file(directory, retired_name, os.O_RDWR, ino)
    finally:
        os.close(directory)
    try:
        return punch_fd(fd, dirfd, retired_name, segment_size, wait)
    finally:
        os.close(fd)


def _require_no_other_name(fd: int, dirfd: int, retired_name: bytes) -> None:
    """Raises OSError (ENOENT) where a file has any name but the one in the directory of retired files."""
    attributes = unpack(stat_fd(fd))
    if attributes.nlink == 0:
        return
    if attributes.nlink > 1:
        raise FileNotFoundError(errno.ENOENT, "has another name, too", os.fsdecode(retired_name))
    directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    try:
        safe_open.require_file(directory, retired_name, attributes.ino)
    finally:
        os.close(directory)


def _move_aside(dirfd: int, name: bytes, ino: int, retired_name: bytes) -> None:
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(layout.RETIRED_DIRECTORY, 0o700, dir_fd=dirfd)
        try:
            _rename_into_retired(dirfd, name, retired_name)
        except FileNotFoundError:
            # The last close of another retired file removed the directory - unless the segment itself is gone.
            safe_open.require_file(dirfd, name, ino)
        else:
            return


def drop_retired(dirfd: int, retired_name: bytes, wait: FreeWait = USUAL_WAIT) -> DiskUsage:
    """Free a retired segment after its last close, and the directory with the last one; the usage without it:
    UsageAfter, unless it had no name any more, so that its last close has freed it. Raises OSError."""
    try:
        directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    except FileNotFoundError:
        return measure_usage(dirfd)
    before = measure_usage(dirfd).free_bytes
    is_there = True
    try:
        expected = before + _freed_bytes(directory, retired_name)
        os.unlink(retired_name, dir_fd=directory)
    except FileNotFoundError:
        is_there = False
    finally:
        os.close(directory)
    drop_empty_directory(dirfd)
    return _measure_freed(dirfd, before, expected, wait) if is_there else measure_usage(dirfd)


def list_retired(dirfd: int) -> list[tuple[bytes, BaseOffset, PackedAttributes]]:
    """(name, base offset, attributes) of every retired segment on a disk. Only regular files are taken for
    one. Raises OSError."""
    try:
        directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        with os.scandir(directory) as entries:
            files = [os.fsencode(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
        names = list(filter(_RETIRED_NAME.fullmatch, files))
        return [
            (name, BaseOffset(int(name[:20])), outcome)
            for name, outcome in zip(names, stat_names(directory, names), strict=True)
            if not isinstance(outcome, int)
        ]
    finally:
        os.close(directory)


def list_unknown(dirfd: int) -> list[bytes]:
    """Paths of the entries of the directory of retired files that are none of ours. Raises OSError."""
    try:
        directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        known = {name for name, _, _ in list_retired(dirfd)}
        names = set(map(os.fsencode, os.listdir(directory))) - known
        return sorted(b"%b/%b" % (layout.RETIRED_DIRECTORY, name) for name in names)
    finally:
        os.close(directory)


def drop_empty_directory(dirfd: int) -> None:
    """Remove the directory of retired segments if it is empty. Raises OSError."""
    try:
        os.rmdir(layout.RETIRED_DIRECTORY, dir_fd=dirfd)
    except OSError as error:
        # Another retired segment, or something that is not ours, still lies in it.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
            raise


def _rename_into_retired(dirfd: int, name: bytes, retired_name: bytes) -> None:
    directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    try:
        os.rename(name, retired_name, src_dir_fd=dirfd, dst_dir_fd=directory)
        durable.sync_dir(directory)
        durable.sync_dir(dirfd)
    finally:
        os.close(directory)


def _freed_bytes(dirfd: int, name: bytes) -> int:
    """Bytes that unlinking this name gives back: none while the file has another name."""
    attributes = unpack(stat_name(dirfd, name))
    return attributes.allocated_bytes if attributes.nlink == 1 else 0


def _measure_freed(dirfd: int, free_before: int, expected_free: int, wait: FreeWait, most: int = 0) -> UsageAfter:
    """Measure once the free space has risen as expected, or at the deadline: somebody else may hold the file
    or may have taken the space meanwhile. The gain is the most that was seen; `most` was before."""
    deadline = wait.clock.monotonic() + wait.freed_s
    while True:
        usage = measure_usage(dirfd)
        most = max(most, usage.free_bytes - free_before)
        if usage.free_bytes >= expected_free or wait.clock.monotonic() >= deadline:
            return UsageAfter(usage.total_bytes, usage.free_bytes, usage.available_bytes, most)
        wait.clock.sleep(_FREE_PAUSE_S)
