"""Records of damage with a segment's file: the verdict (store/scrub/verdict.py), and the ranges that a move could
not read (store/moves/unreadable.py). All functions block."""

import errno
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from commitlogfs.store import layout
from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.moves.unreadable import UnreadableRanges, parse_unreadable
from commitlogfs.store.scrub.verdict import (
    Verdict,
    combine,
    format_verdict,
    parse_verdict,
    shortest,
    unreadable_verdict,
)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE})


class Recorded(NamedTuple):
    """Record of one file."""

    name: bytes
    verdict: Verdict | None
    unreadable: UnreadableRanges


def write_verdict(dirfd: int, name: bytes, ino: int, verdict: Verdict) -> None:
    """Durable. A disk without room for all of it gets a shorter one. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        try:
            os.setxattr(fd, layout.XATTR_VERDICT, format_verdict(verdict))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            os.setxattr(fd, layout.XATTR_VERDICT, format_verdict(shortest(verdict)))
        os.fsync(fd)
    finally:
        os.close(fd)


def with_unreadable(recorded: bytes, unreadable: UnreadableRanges, now_s: float) -> bytes:
    """The attribute of a verdict, empty without one, when these ranges, at least one, could not be read either.
    `now_s` is in seconds since 1970."""
    found = unreadable_verdict(unreadable.ranges, round(now_s))
    return format_verdict(combine(parse_verdict(recorded), found))


def remove_verdict(dirfd: int, name: bytes, ino: int) -> None:
    """Durable; also on a read-only filesystem if the file records none. Raises OSError."""
    path = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
    if layout.XATTR_VERDICT in os.listxattr(path, follow_symlinks=False):
        durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_VERDICT)


def find_recorded(dirfd: int, names: Iterable[bytes]) -> tuple[list[Recorded], list[bytes]]:
    """The records of the files in a directory, and the names of those that cannot be read now. One system call for
    each file that records nothing."""
    found, unread = list[Recorded](), list[bytes]()
    for name in names:
        path = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
        try:
            present = os.listxattr(path, follow_symlinks=False)
            verdict = unreadable = b""
            if layout.XATTR_VERDICT in present:
                verdict = os.getxattr(path, layout.XATTR_VERDICT, follow_symlinks=False)
            if layout.XATTR_UNREADABLE in present:
                unreadable = os.getxattr(path, layout.XATTR_UNREADABLE, follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENODATA:  # the attribute was removed a moment ago
                unread.append(name)
            continue
        if verdict or unreadable:
            found.append(Recorded(name, parse_verdict(verdict), parse_unreadable(unreadable)))
    return found, unread
