"""Undoing a move while a broker still has the segment's former file open.

A broker that cuts its log (a slave whose master has another history) deletes the segments behind the cut, and goes
on writing to the one before through the file that it has open. If that segment was moved, the open file is not the
one that the log has: so it gets its name back before the deletion is answered.

    step                                        a crash here leaves
    1 remove the mark of the copy           the copy as the segment; the deletion is not answered, so the kernel
    2 mark the former file as moved from    asks the next daemon for it, which begins again
      it, with its owner and mode
    3 give it its name back, sync           both files; the former one is marked: the next daemon takes that
    4 remove the copy                       the former file

If another file of the segment has the name, or may have it on a missing disk, the copy keeps its mark, and step 2
gives that to the former file, too. All files with it are one segment, and the one that was written to since is the
best of them. If somebody has written to the copy, the former file is marked as moved from it instead. If the copy's
mark names the former file then, and no third file is known, step 1 removes it: each of the two would take the place
of the other. A third file is not removed then, and is a duplicate for the next daemon.
"""

import errno
import os
from typing import NamedTuple

from commitlogfs.store import layout
from commitlogfs.store.files import allocate, durable, safe_open
from commitlogfs.store.files.attributes import FileAttributes, PackedAttributes, stat_fd, unpack
from commitlogfs.store.moves.mark import Source, write_mark


class Copy(NamedTuple):
    """The file that the segment was moved to."""

    attributes: FileAttributes
    """A caller may have changed owner and mode since the move."""
    mark: Source
    """Mark that the former file gets."""


def put_back(dirfd: int, retired_name: bytes, ino: int, name: bytes, copy: Copy | None) -> PackedAttributes:
    """Steps 2 and 3, for a file in the directory of retired files. Without `copy`, which is lost then, only step 3.
    Its attributes afterwards. Blocks.

    Raises OSError; FileExistsError if the name is, or may be, taken."""
    directory = safe_open.open_directory(dirfd, layout.RETIRED_DIRECTORY)
    try:
        fd = safe_open.open_file(directory, retired_name, os.O_RDONLY, ino)
        try:
            if copy is not None:
                _set_owner_and_mode(fd, copy.attributes)
                write_mark(fd, copy.mark)
                os.fsync(fd)
            if not allocate.is_certainly_absent(dirfd, name):
                raise FileExistsError(errno.EEXIST, "is taken", os.fsdecode(name))
            os.rename(retired_name, name, src_dir_fd=directory, dst_dir_fd=dirfd)
            durable.sync_dir(directory)
            durable.sync_dir(dirfd)
            return stat_fd(fd)
        finally:
            os.close(fd)
    finally:
        os.close(directory)


def _set_owner_and_mode(fd: int, wanted: FileAttributes) -> None:
    present = unpack(stat_fd(fd))
    if (present.uid, present.gid) != (wanted.uid, wanted.gid):
        os.fchown(fd, wanted.uid, wanted.gid)
    if present.mode != wanted.mode:
        os.fchmod(fd, wanted.mode & allocate.PERMISSION_BITS)
