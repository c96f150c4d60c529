"""Attributes as the kernel wants them."""

import stat

from pyfuse3 import EntryAttributes, InodeT, ModeT

from commitlogfs.fusefs import inodes
from commitlogfs.store.allocate import PERMISSION_BITS
from commitlogfs.store.attributes import unpack
from commitlogfs.store.catalog import Role, Segment
from commitlogfs.store.identity import RootAttributes

CACHE_S = 1.0
"""How long the kernel may answer from its own memory. Names and sizes change through the kernel anyway;
this bounds how long a change made by the daemon itself (a forced removal) can go unseen."""

_BLOCK = 4096


def entry_of_file(file: Segment) -> EntryAttributes:
    """From the last known attributes of a file. Raises OSError (EOVERFLOW)."""
    known = unpack(file.attributes)
    entry = EntryAttributes()
    entry.st_ino = inodes.encode(file)
    entry.generation = inodes.generation_of(known)
    entry.entry_timeout = CACHE_S
    entry.attr_timeout = CACHE_S
    entry.st_mode = ModeT(stat.S_IFREG | known.mode & PERMISSION_BITS)
    entry.st_nlink = 0 if file.role is Role.RETIRED else 1
    entry.st_uid = known.uid
    entry.st_gid = known.gid
    entry.st_size = known.size
    entry.st_blksize = _BLOCK
    entry.st_blocks = known.blocks
    entry.st_atime_ns = known.atime_ns
    entry.st_mtime_ns = known.mtime_ns
    entry.st_ctime_ns = known.ctime_ns
    return entry


def entry_of_root(root: RootAttributes, changed_ns: int) -> EntryAttributes:
    return _entry(inodes.ROOT, stat.S_IFDIR | root.mode, root.uid, root.gid, 0, changed_ns)


def entry_of_control(inode: InodeT, mode: int, root: RootAttributes, size: int, now_ns: int) -> EntryAttributes:
    """A control file or folder: belongs to the root directory's owner; never cached, its size moves."""
    entry = _entry(inode, mode, root.uid, root.gid, size, now_ns)
    entry.attr_timeout = 0
    return entry


def _entry(inode: InodeT, mode: int, uid: int, gid: int, size: int, time_ns: int) -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino = inode
    entry.entry_timeout = CACHE_S
    entry.attr_timeout = CACHE_S
    entry.st_mode = ModeT(mode)
    entry.st_nlink = 2 if stat.S_ISDIR(mode) else 1
    entry.st_uid = uid
    entry.st_gid = gid
    entry.st_size = size
    entry.st_blksize = _BLOCK
    entry.st_blocks = 0
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = time_ns
    return entry
