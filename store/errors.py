"""One class per cause. No errno inside: fusefs.errors is the single place that translates.

Every message is one line: what, which disk or file, what to do.
"""


class StoreError(Exception):
    """Base of everything the store raises on purpose."""


# --- names and requests ------------------------------------------------------------------------------


class InvalidNameError(StoreError):
    """The name can never be a segment or a temporary of this pool."""


class SegmentExistsError(StoreError):
    """The name is taken: by a segment, by a quarantined file, or by a file on an absent disk."""


class SegmentNotFoundError(StoreError):
    """No such name or inode."""


class SegmentIncompleteError(StoreError):
    """Only a whole segment can be published under its name."""


class InvalidSizeError(StoreError):
    """A segment grows once, from 0 to the segment size, and never shrinks."""


class BeyondSegmentError(StoreError):
    """A write would pass the end of the fixed-size segment."""


class NotPermittedError(StoreError):
    """The operation does not exist in this filesystem (link, symlink, mkdir, rename of a segment...)."""


class LogGapError(StoreError):
    """A read of the log touched offsets that no segment holds."""


class UncertainPublishError(StoreError):
    """A disk failed while a segment got its name: no other disk may be tried for it."""


# --- disks -------------------------------------------------------------------------------------------


class DiskError(StoreError):
    """Trouble with one disk; carries its name for the log."""

    def __init__(self, disk: str, message: str) -> None:
        super().__init__(f"{disk}: {message}")
        self.disk = disk


class DiskFullError(DiskError):
    """ENOSPC or EDQUOT on one disk."""


class DiskReadOnlyError(DiskError):
    """The disk's filesystem is, or has just become, read-only."""


class DiskFailedError(DiskError):
    """The disk answers with I/O errors, or not at all."""


class HoldsDataError(StoreError):
    """A file that was taken for empty may hold data: it is left alone."""


class ForeignFileError(DiskError):
    """Something else, or nothing, lies where a file of ours was: somebody changed the disk's folder."""


class NoDiskAvailableError(StoreError):
    """No disk takes a new segment: for lack of room, because one or more fail, or because none is writable."""

    def __init__(self, message: str, *, no_space: bool, failing: bool = False) -> None:
        super().__init__(message)
        self.no_space = no_space
        self.failing = failing


# --- the birth and the opening of a pool --------------------------------------------------------------


class PoolError(StoreError):
    """The pool cannot be made, opened or taken over; nothing was changed."""


class FolderError(PoolError):
    """One disk's folder cannot be used."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}: {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class SegmentSizeError(PoolError):
    """Most of the segments found have another size than the one given: that one is wrong, not they."""

    def __init__(self, given: int, found: int, number: int, total: int) -> None:
        super().__init__(f"the segment size given is {given}, but {number} of {total} segments have {found} bytes")
        self.given = given
        self.found = found
        """Bytes."""
        self.number = number
        """How many segments have `found` bytes, of `total` with any content."""
        self.total = total


class NoIdentityError(PoolError):
    """A folder carries no identity: most likely a disk that is not mounted."""


class PoolInUseError(PoolError):
    """Another process works on these folders."""
