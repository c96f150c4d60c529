"""Errors of the store, one class for each cause. They carry no errno: fusefs.errors alone maps them to errnos.

Every message is one line: `<object>: <fact>; <what to do>`.
"""


class StoreError(Exception):
    """Base class of all errors that the store raises on purpose."""


# --- names and requests ------------------------------------------------------------------------------


class InvalidNameError(StoreError):
    """The name cannot be that of a segment or a temporary of this pool."""


class SegmentExistsError(StoreError):
    """The name is taken: by a segment, by a quarantined file, or by a file on an absent disk."""


class SegmentNotFoundError(StoreError):
    """No such name or inode."""


class SegmentIncompleteError(StoreError):
    """The temporary is shorter than a segment, so it cannot be renamed to one."""


class InvalidSizeError(StoreError):
    """The size is neither allowed nor possible: a segment grows once, from 0 to the segment size, and never
    shrinks."""


class BeyondSegmentError(StoreError):
    """The write would go past the end of the fixed-size segment."""


class NotPermittedError(StoreError):
    """The operation does not exist in this filesystem (link, symlink, mkdir, rename of a segment...)."""


class LogGapError(StoreError):
    """The log was read at offsets that no segment holds."""


class UncertainPublishError(StoreError):
    """A disk failed while a segment got its name, so an empty file of that name may exist there. The create records
    it as a leftover and tries the next disk."""


# --- disks -------------------------------------------------------------------------------------------


class DiskError(StoreError):
    """One disk is in trouble. The error carries the disk's path for the log."""

    def __init__(self, disk: str, message: str) -> None:
        super().__init__(f"{disk}: {message}")
        self.disk = disk


class DiskFullError(DiskError):
    """ENOSPC or EDQUOT on one disk."""


class DiskReadOnlyError(DiskError):
    """The disk's filesystem is, or has just become, read-only."""


class DiskFailedError(DiskError):
    """The disk returns I/O errors, or does not answer."""


class DiskSilentError(DiskFailedError):
    """The disk has not answered in time. That alone proves no fault: the answer may be late, and good."""


class HoldsDataError(StoreError):
    """A file that was given up as empty may hold data by now, so it is not removed."""


class SegmentChangedError(StoreError):
    """A segment was written while it was copied, so the copy is worth nothing."""


class SegmentUnreadableError(StoreError):
    """No block of a segment can be read, so nothing of it can be salvaged."""


class VerificationError(StoreError):
    """A copy does not hold what was written to it, or what was checked before."""


class RottenSegmentError(VerificationError):
    """The content of a segment differs from its checksum: its disk has changed it."""


class ForeignFileError(DiskError):
    """A file is missing or replaced by another one: another program has changed the disk's directory."""


class NoDiskAvailableError(StoreError):
    """No disk takes a new segment: all are full (`no_space`), some fail (`failing`), or none is writable."""

    def __init__(self, message: str, *, no_space: bool, failing: bool = False) -> None:
        super().__init__(message)
        self.no_space = no_space
        self.failing = failing


# --- the birth and the opening of a pool --------------------------------------------------------------


class PoolError(StoreError):
    """The pool cannot be made, opened or taken over; nothing was changed."""


class DirectoryError(PoolError):
    """One disk's directory cannot be used."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class SegmentSizeError(PoolError):
    """Most segments found do not have the segment size that was given, so that size is probably wrong."""

    def __init__(self, given: int, found: int, number: int, total: int) -> None:
        super().__init__(f"the segment size given is {given}, but {number} of {total} segments have {found} bytes")
        self.given = given
        self.found = found
        """Bytes."""
        self.number = number
        """Number of segments that have `found` bytes, out of `total` that are not empty."""
        self.total = total


class NoIdentityError(PoolError):
    """No directory carries an identity: most likely the disks are not mounted."""


class PoolInUseError(PoolError):
    """Another process uses these directories."""
