"""The verdict that a segment's file records (store/scrub/verdict.py). All functions block."""

import errno
import os
from collections.abc import Iterable
from typing import Final

from commitlogfs.store import layout
from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.scrub.verdict import Verdict, format_verdict, parse_verdict, shortest

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE})


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


def remove_verdict(dirfd: int, name: bytes, ino: int) -> None:
    """Durable. Raises OSError."""
    durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_VERDICT)


def find_verdicts(dirfd: int, names: Iterable[bytes]) -> list[tuple[bytes, Verdict]]:
    """Those of the files in a directory that record one. One system call for each file."""
    found = []
    for name in names:
        path = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
        try:
            verdict = parse_verdict(os.getxattr(path, layout.XATTR_VERDICT, follow_symlinks=False))
        except OSError:
            continue
        if verdict is not None:
            found.append((name, verdict))
    return found
