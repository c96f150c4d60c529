"""One member disk: a directory on its own filesystem, which its open descriptor stands for."""

import errno
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from commitlogfs.store.disks.membership import Cordon, DiskNumber, Drain
from commitlogfs.store.errors import (
    DirectoryError,
    DiskError,
    DiskFailedError,
    DiskFullError,
    DiskReadOnlyError,
    ForeignFileError,
)
from commitlogfs.store.files.filesystem import FilesystemKind
from commitlogfs.store.findings import REPAIR_DISK
from commitlogfs.store.slowness.load import DeviceRates
from commitlogfs.store.slowness.policy import Comparison, Slowness
from commitlogfs.store.thresholds import Thresholds

MEDIUM_ERRORS: Final = frozenset(
    {errno.EIO, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ, errno.EUCLEAN, errno.EBADMSG}
)
"""Errors of reads and syncs for which the medium of a disk, or what it holds, is to blame. Direct reads fail with
ENODATA for a bad sector (blk_errors in the kernel's block/blk-core.c), and ext4 and xfs answer EBADMSG for metadata
with a wrong checksum."""

_DISK_ERRORS: Final = frozenset(
    {
        *(errno.EIO, errno.EUCLEAN, errno.EBADMSG),
        *(errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESHUTDOWN),
        *(errno.ETIMEDOUT, errno.ENOLINK, errno.EREMOTEIO, errno.EBADE),
    }
)
"""Errors of a whole disk: it is damaged, is gone, or the way to it failed (blk_errors in the kernel's
block/blk-core.c; EBADE: another machine has reserved it)."""


class DiskState(Enum):
    RW = "rw"
    RO = "ro"
    """`readonly` in the configuration, or on a read-only filesystem: it is served, but nothing is written."""
    CORDONED = "cordoned"
    """By the operator: it gets no new segments. Everything else is written and removed as on any disk."""
    LEAVING = "leaving"
    """Empty, and about to leave the pool: it gets no new segments."""
    JOINING = "joining"
    """About to become a disk of the pool: it gets segments when its identity is on it."""
    DRAINING = "draining"
    """To become empty: it gets no new segments, and its segments are moved to other disks, or expire."""
    OFFLINE = "offline"
    """Released by the operator: it gets no new segments, and the next daemon does not serve it. Also reported for a
    disk whose fill level is unknown."""
    FAILED = "failed"
    UNREADABLE = "unreadable"
    """Checks can read none of its segments: it gets no new ones, whether it can be written or not."""
    VANISHED = "vanished"
    """Its path does not lead to it any more: it gets no new segments."""
    UNRESPONSIVE = "unresponsive"
    """A check has no answer, and its device ends no requests. Only reported: the rules see RW until it is
    FAILED."""
    SLOW = "slow"
    """Its device needs much longer for an operation than its peers. Only reported, as UNRESPONSIVE is."""


@dataclass(slots=True)
class Disk:
    """A disk of the open pool.

    `dirfd` is opened once; every later access is relative to it. Only the thread that owns the CommitLog changes
    the fields.
    """

    number: DiskNumber
    disk_id: str
    path: str
    dirfd: int
    filesystem: FilesystemKind
    thresholds: Thresholds
    state: DiskState = DiskState.RW
    """RW or RO: whether anything may be written there."""
    cordon: Cordon | None = None
    drain: Drain | None = None
    is_joining: bool = False
    is_leaving: bool = False
    is_offline: bool = False
    """Released by the operator; the next daemon does not serve it."""
    weight: float = 1.0
    device: int = 0
    """Device number of its filesystem when the directory was opened: a disk that is gone cannot be asked."""
    ino: int = 0
    """Inode number of the directory."""
    last_failure: DiskError | None = None
    """Why the last attempt to create a segment here failed; None after a success."""
    retry_at_s: float = field(default=0.0)
    """Monotonic time until which a disk that failed a create is tried last; 0 if it is not in backoff."""
    suspected_since_s: float | None = None
    """Monotonic time of the first failure, other than for lack of space, after the last success."""
    is_failing: bool = False
    """Whether a suspicion was confirmed (store/disks/health.py)."""
    is_read_only: bool = False
    """Whether the last probe of this disk found its filesystem read-only."""
    unreadable_since_s: float | None = None
    """Monotonic time since which no probe could read a segment of it."""
    is_unresponsive: bool = False
    """Whether a check of it has no answer (store/checks/check_policy.py)."""
    unreadable_reason: str = ""
    """Why the latest checks could read no segment of it; "" if they could."""
    is_vanished: bool = False
    """Whether its path leads to something else (store/checks/place.py): it was unmounted under its users."""
    slowness: Slowness | None = None
    """Slowness of its device: tried last, or only noted (store/slowness/policy.py)."""
    operation_times: tuple[Comparison, ...] = ()
    """Times of a read and a write on its device in the latest window."""
    device_rates: DeviceRates | None = None
    """Work of its device in the latest window; None without counters, and before the first one."""

    @property
    def last_error(self) -> str:
        if self.last_failure is None and self.is_unreadable:
            return f"{self.path}: none of the blocks that were tried can be read ({self.unreadable_reason})"
        return "" if self.last_failure is None else str(self.last_failure)

    @property
    def is_unreadable(self) -> bool:
        return bool(self.unreadable_reason)

    @property
    def is_slow(self) -> bool:
        """Whether it is tried last because of its slowness."""
        return self.slowness is not None and self.slowness.probe_at_s is not None

    @property
    def present_state(self) -> DiskState:
        """State that also shows failure: FAILED while no segment can be made there, UNREADABLE while none can be
        read.

        statvfs may show such a disk as writable and empty. One create that fails is not enough.
        """
        if self.state is DiskState.RW and self.is_failing:
            return DiskState.FAILED
        if self.state is DiskState.RW and self.is_unreadable:
            return DiskState.UNREADABLE
        return self.intended_state

    @property
    def reported_state(self) -> DiskState:
        """State for people, which also shows a disk that has not answered for seconds, one that is not at its path,
        a read-only one that cannot be read, and a slow one."""
        if self.is_unresponsive:
            return DiskState.UNRESPONSIVE
        if self.is_vanished:
            return DiskState.VANISHED
        if self.is_unreadable and self.present_state is not DiskState.FAILED:
            return DiskState.UNREADABLE
        if self.is_slow and self.present_state is DiskState.RW:
            return DiskState.SLOW
        return self.present_state

    @property
    def intended_state(self) -> DiskState:
        """State by what the operator and the filesystem allow, whether the disk works or not. Only an RW disk gets
        new segments."""
        if self.state is not DiskState.RW:
            return self.state
        if self.is_joining:
            return DiskState.JOINING
        if self.is_leaving:
            return DiskState.LEAVING
        if self.is_offline:
            return DiskState.OFFLINE
        if self.drain is not None:
            return DiskState.DRAINING
        if self.cordon is not None:
            return DiskState.CORDONED
        return DiskState.VANISHED if self.is_vanished else DiskState.RW

    @property
    def is_troubled(self) -> bool:
        """Whether removing a segment there is likely to fail."""
        return self.is_failing or self.is_read_only or self.suspected_since_s is not None

    @property
    def forbids_writes(self) -> bool:
        """Whether nothing can change there: the filesystem is read-only, or the configuration says so."""
        return self.is_read_only or self.state is DiskState.RO

    def close(self) -> None:
        if self.dirfd >= 0:
            os.close(self.dirfd)
            self.dirfd = -1


def open_directory(path: str) -> int:
    """Descriptor of a disk's directory, open as long as the pool. Raises DirectoryError.

    The path itself may lead through symlinks, as operators arrange /data in that way. Paths below it may not.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DirectoryError(path, "no such directory", "mount the disk there or correct the path") from None
    except NotADirectoryError:
        raise DirectoryError(path, "not a directory", "give the directory for the disk's segments") from None
    except PermissionError:
        raise DirectoryError(path, "permission denied", "run as root or as the directory's owner") from None
    except OSError as error:
        raise DirectoryError(path, f"cannot be opened ({os.strerror(error.errno or 0)})", REPAIR_DISK) from None


def is_read_only(dirfd: int) -> bool:
    """Whether the filesystem is mounted read-only now. Raises OSError."""
    return bool(os.fstatvfs(dirfd).f_flag & os.ST_RDONLY)


def translate(disk_path: str, error: OSError) -> DiskError | OSError:
    """The store's error for an OSError on a disk. Errors that concern only the file are returned unchanged."""
    reason = os.strerror(error.errno or 0)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFullError(disk_path, f"not enough space for a segment ({reason})")
        case errno.EROFS:
            return DiskReadOnlyError(disk_path, "its filesystem is read-only")
        case code if code in _DISK_ERRORS:
            return DiskFailedError(disk_path, f"I/O error ({reason})")
        case errno.ELOOP | errno.EXDEV | errno.ENOTDIR:  # only the rules of store/files/safe_open.py give these
            file = f"{os.fsdecode(error.filename)}: " if error.filename else ""
            return ForeignFileError(
                disk_path,
                f"{file}replaced or changed outside commitlogfs ({reason}); run `commitlogfs check`",
            )
        case _:
            return error
