"""Content of a disk's directory, and the version of its format.

    DISK/00000000000000000000      a segment, exactly RocketMQ's own file
    DISK/.00000000000000000000.x   a copy in progress (rsync's temporary), renamed to its segment when done
    DISK/.commitlogfs/             removed segments that are still open, and damaged files of repaired segments;
                                   exists only while there are any
    DISK/lost+found                ext4's own

The identity is in extended attributes of DISK itself, because RocketMQ 4.9 refuses to load a commitlog directory
that holds any other entry.
"""

FORMAT_VERSION = 1
DESTROYED_VERSION = 0
"""Version in the identity of a disk that `destroy` has begun to clear. It is as long as FORMAT_VERSION, so it
always has room, and every version of commitlogfs refuses it."""

XATTR_IDENTITY = "user.commitlogfs.identity"
XATTR_NEWEST = "user.commitlogfs.newest"
XATTR_ROOT = "user.commitlogfs.root"
XATTR_BIRTH = "user.commitlogfs.birth"
"""Mark of an unfinished `init` or `adopt`: on each disk that has its identity, until all disks have theirs."""

XATTR_JOINING = "user.commitlogfs.joining"
"""Mark of a directory that `disk add` has prepared, until the directory is a disk of the pool."""

XATTR_MOVED_FROM = "user.commitlogfs.moved-from"
"""Mark of a segment's copy on another disk, until the file that it was copied from is gone."""

XATTR_REPAIRS = "user.commitlogfs.repairs"
"""Mark of a segment's right copy, until the damaged file that it replaces is set aside (store/moves/repair.py)."""

XATTR_UNREADABLE = "user.commitlogfs.unreadable"
"""Ranges of a segment that could not be read when it was moved away from a failing disk."""

XATTR_RESTORED = "user.commitlogfs.restored"
"""Mark of a restored segment until a process opens it for writing, as a broker does: a broker that was running does
not know the segment."""

XATTR_CHECKSUM = "user.commitlogfs.xxh3"
"""Checksum of a sealed segment (store/checksum.py)."""

XATTR_VERDICT = "user.commitlogfs.verdict"
"""Verdict of a scrub on a damaged segment, until it is cleared (store/scrub/verdict.py)."""

XATTR_SCRUB = "user.commitlogfs.scrub"
"""How far the scrub of a disk is (store/scrub/progress.py)."""

DISK_RECORDS = (
    *(XATTR_NEWEST, XATTR_ROOT, XATTR_BIRTH, XATTR_JOINING, XATTR_SCRUB),
    XATTR_IDENTITY,
)
"""Everything that the directory of a disk records; the identity last, as it says whose the others are."""

RETIRED_DIRECTORY = b".commitlogfs"

IGNORED_NAMES = frozenset({b"lost+found", RETIRED_DIRECTORY})
"""Entries that are neither segments nor worth a finding."""
