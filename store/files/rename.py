"""Renaming a finished copy onto its segment's name, durably.

    step                                   a crash here leaves
    1 sync of the content                  the copy under its temporary name
    2 link of the new name                 two names of one file; the next start removes the temporary one
    3 unlink of the old name
    4 sync of the directory                a power cut may undo 2 and 3

All functions block and belong in a worker thread.
"""

import os

from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.files.attributes import PackedAttributes, stat_name


def rename_copy(dirfd: int, old_name: bytes, new_name: bytes, ino: int) -> PackedAttributes:
    """Rename the copy with inode `ino`; its attributes afterwards. Raises OSError, FileExistsError where the new
    name is taken. After an error, the file may have either name, or both."""
    # Passthrough keeps the content from the daemon, and rsync syncs nothing, so this is the only sync before the
    # name.
    fd = safe_open.open_file(dirfd, old_name, os.O_RDONLY, ino)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    # rename(2) would replace a file that has appeared there meanwhile.
    os.link(old_name, new_name, src_dir_fd=dirfd, dst_dir_fd=dirfd, follow_symlinks=False)
    os.unlink(old_name, dir_fd=dirfd)
    durable.sync_dir(dirfd)
    return stat_name(dirfd, new_name)
