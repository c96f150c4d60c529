"""One member disk: a folder on its own filesystem, held by a directory descriptor."""

import errno
import os
from dataclasses import dataclass, field
from enum import Enum

from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.errors import (
    DiskError,
    DiskFailedError,
    DiskFullError,
    DiskReadOnlyError,
    FolderError,
    ForeignFileError,
)
from commitlogfs.store.files.filesystem import FilesystemKind
from commitlogfs.store.thresholds import Thresholds


class DiskState(Enum):
    RW = "rw"
    RO = "ro"
    """Cordoned by the operator, or on a read-only filesystem: served, no new segments."""
    DRAINING = "draining"
    OFFLINE = "offline"
    FAILED = "failed"


@dataclass(slots=True)
class Disk:
    """A disk of the open pool.

    `dirfd` is opened once; every later access is relative to it. Mutable fields are changed only by
    CommitLog, on the thread that owns it.
    """

    number: DiskNumber
    disk_id: str
    path: str
    dirfd: int
    filesystem: FilesystemKind
    thresholds: Thresholds
    state: DiskState = DiskState.RW
    weight: float = 1.0
    last_failure: DiskError | None = None
    """Why the last attempt to create a segment here failed; None after a success."""
    retry_at_s: float = field(default=0.0)
    """Monotonic time until which a disk that failed a create is passed over; 0 = not held back."""
    suspected_since_s: float | None = None
    """Monotonic time of the first failure for another reason than space since it was last known to be well."""
    is_failing: bool = False
    """A suspicion that was confirmed (health)."""
    is_read_only: bool = False
    """Its filesystem, when last looked at because the disk was in trouble."""
    unreadable_since_s: float | None = None
    """Monotonic time since when no segment of it could be read, at every look."""

    @property
    def last_error(self) -> str:
        return "" if self.last_failure is None else str(self.last_failure)

    @property
    def present_state(self) -> DiskState:
        """FAILED while no segment can be made there: such a disk may look writable, and empty, to statvfs. One
        create that fails is no proof of that."""
        return DiskState.FAILED if self.is_failing and self.state is DiskState.RW else self.state

    @property
    def is_troubled(self) -> bool:
        """Whether removing a segment there is likely to fail."""
        return self.is_failing or self.is_read_only or self.suspected_since_s is not None

    def close(self) -> None:
        if self.dirfd >= 0:
            os.close(self.dirfd)
            self.dirfd = -1


def open_folder(path: str) -> int:
    """Open a disk's folder for good. Raises FolderError.

    The path itself may lead through symlinks (operators lay out /data that way); nothing beneath it may.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FolderError(path, "no such folder", "mount the disk there or correct the path") from None
    except NotADirectoryError:
        raise FolderError(path, "not a folder", "name the folder that holds, or will hold, segments") from None
    except PermissionError:
        raise FolderError(path, "permission denied", "run as root or as the folder's owner") from None
    except OSError as error:
        raise FolderError(path, f"cannot be opened ({os.strerror(error.errno or 0)})", "check the disk") from None


def is_read_only(dirfd: int) -> bool:
    """Whether the filesystem is mounted read-only now. Raises OSError."""
    return bool(os.fstatvfs(dirfd).f_flag & os.ST_RDONLY)


def translate(disk_path: str, error: OSError) -> DiskError | OSError:
    """The store's word for an OSError met on a disk; errors of the file alone come back unchanged."""
    reason = os.strerror(error.errno or 0)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFullError(disk_path, f"no room for a segment ({reason})")
        case errno.EROFS:
            return DiskReadOnlyError(disk_path, "its filesystem is read-only")
        case errno.EIO | errno.ENODEV | errno.ENXIO | errno.ESTALE | errno.EUCLEAN | errno.ESHUTDOWN:
            return DiskFailedError(disk_path, f"I/O error ({reason})")
        case errno.ELOOP | errno.EXDEV | errno.ENOTDIR:  # only beneath.py's rules can give these
            what = f"{os.fsdecode(error.filename)}: " if error.filename else ""
            return ForeignFileError(disk_path, f"{what}something else lies there now ({reason}): who changed it?")
        case _:
            return error
