"""Which filesystems can keep the promises of a disk, found out by statfs magic and by trying."""

import errno
import os
from dataclasses import dataclass
from enum import Enum

from commitlogfs.store import _syscalls
from commitlogfs.store.files import safe_open

# linux/magic.h
_KNOWN = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
    0x9123683E: "btrfs",
    0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x65735546: "fuse",
    0x4D44: "vfat",
    0x2011BAB0: "exfat",
    0x858458F6: "ramfs",
}


class Suitability(Enum):
    FULL = "full"
    FOR_TESTS = "for tests"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FilesystemKind:
    name: str
    suitability: Suitability
    reason: str
    attribute_bytes: int = 4096
    """Space for all extended attributes of a directory: one block on ext4. Others have more than is ever used."""


_REASONS = {
    "tmpfs": "its content is lost at reboot",
    "overlayfs": "FUSE passthrough is impossible and durability depends on the filesystem below",
    "btrfs": "a store to a reserved block can still hit a full disk, which kills the broker with SIGBUS",
}


def identify(dirfd: int) -> FilesystemKind:
    """The kind of filesystem behind a descriptor. Raises OSError."""
    magic = _syscalls.fstatfs_type(dirfd)
    name = _KNOWN.get(magic, f"type 0x{magic:x}")
    if name == "ext4":
        return FilesystemKind(name, Suitability.FULL, "", os.fstatvfs(dirfd).f_bsize)
    if name == "xfs":
        return FilesystemKind(name, Suitability.FULL, "")
    if name in ("tmpfs", "overlayfs"):
        return FilesystemKind(name, Suitability.FOR_TESTS, _REASONS[name])
    reason = _REASONS.get(name, "only ext4 and xfs are known to keep a reservation through a full disk")
    return FilesystemKind(name, Suitability.REFUSED, reason)


def missing_ability(dirfd: int) -> str | None:
    """Try what segments need on a writable disk; a short description of the first thing that fails.

    Tried on an unnamed file, which leaves nothing behind: O_TMPFILE and a reservation beyond the size.
    User attributes are tried by the one who writes the identity. Raises OSError for disk trouble.
    """
    try:
        fd = safe_open.open_unnamed(dirfd, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return "it cannot make unnamed files (O_TMPFILE)"
        raise
    try:
        _syscalls.fallocate(fd, _syscalls.FALLOC_FL_KEEP_SIZE, 0, 4096)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return "it cannot reserve space (fallocate)"
        raise
    finally:
        os.close(fd)
    return None
