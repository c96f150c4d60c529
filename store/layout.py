"""What lies in a disk's folder, and in which format version.

    DISK/00000000000000000000      a segment, exactly RocketMQ's own file
    DISK/.00000000000000000000.x   a copy in progress (rsync's temporary), renamed to its segment when done
    DISK/.commitlogfs/             only while needed: removed segments that somebody still holds open
    DISK/lost+found                ext4's own

Identity is kept in extended attributes of DISK itself, because RocketMQ 4.9 refuses to load a commitlog
directory that holds any other entry.
"""

FORMAT_VERSION = 1

XATTR_IDENTITY = "user.commitlogfs.identity"
XATTR_NEWEST = "user.commitlogfs.newest"
XATTR_ROOT = "user.commitlogfs.root"
XATTR_BIRTH = "user.commitlogfs.birth"
"""Only while `init` or `adopt` is at work: on every disk that has an identity already, gone once all have one."""

RETIRED_FOLDER = b".commitlogfs"

IGNORED_NAMES = frozenset({b"lost+found", RETIRED_FOLDER})
"""Entries that are neither segments nor worth a finding."""
