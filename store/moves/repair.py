"""Repair of a damaged segment: a right copy from outside the pool becomes the segment, as the copy of a move does
(store/moves/copy.py), on another disk. The damaged file is kept, because other tools may read more of it.

    step                                        a crash here leaves
    1 sync the damaged file, read its           nothing
      attributes
    2 make the copy, up to its verification     nothing (the kernel frees an unnamed file)
    3 link the name, sync the directory         both files, and the copy has two marks: they are one segment, the
                                                next daemon continues with the copy, and sets the other aside
    4 rename the damaged file into              the copy, perhaps with its marks, which no longer have an effect
      `.commitlogfs/`, as NAME.XXXXXXXX.damaged
    5 remove the marks                          the same

The damaged file keeps its verdict. It is freed when it is cleared (renamed like the source of a move), or when its
segment has left the log. All functions block and belong in a worker thread.
"""

import errno
import os
from typing import Final, NamedTuple

from commitlogfs.store.disks.disk import MEDIUM_ERRORS
from commitlogfs.store.files import safe_open
from commitlogfs.store.files.attributes import FileAttributes, stat_fd, unpack
from commitlogfs.store.moves.restored import has_mark

_TOLERATED: Final = frozenset({*MEDIUM_ERRORS, errno.EROFS})


class DamagedFile(NamedTuple):
    """The file that is to be replaced, as it was when the repair began."""

    attributes: FileAttributes
    """The copy gets owner, mode and mtime of it."""
    is_restored: bool
    """Whether it has the mark of a restored segment that no process has opened for writing."""


def examine(dirfd: int, name: bytes, ino: int) -> DamagedFile:
    """Step 1. Afterwards a store to a mapping of the file changes its mtime. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _TOLERATED:
                raise
        return DamagedFile(unpack(stat_fd(fd)), has_mark(fd))
    finally:
        os.close(fd)
