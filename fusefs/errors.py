"""Errnos of the store's errors: the only place that maps them. docs/reference/errors.md documents them for
users."""

import errno
import logging

from commitlogfs.fusefs.kernel.inodes import StaleInodeError
from commitlogfs.store import errors as store
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

_ERRNO_OF: dict[type[store.StoreError], int] = {
    StaleInodeError: errno.ESTALE,
    store.InvalidNameError: errno.EINVAL,
    store.SegmentExistsError: errno.EEXIST,
    store.SegmentNotFoundError: errno.ENOENT,
    store.SegmentIncompleteError: errno.EINVAL,
    store.InvalidSizeError: errno.EINVAL,
    store.BeyondSegmentError: errno.EFBIG,
    store.NotPermittedError: errno.EPERM,
    store.LogGapError: errno.EIO,
    store.DiskFullError: errno.ENOSPC,
    store.DiskReadOnlyError: errno.EROFS,
    store.DiskFailedError: errno.EIO,
    store.DiskSilentError: errno.EIO,
    store.ForeignFileError: errno.EIO,
    store.HoldsDataError: errno.EIO,
    store.UncertainPublishError: errno.EIO,
    store.SegmentChangedError: errno.EIO,
    store.SegmentUnreadableError: errno.EIO,
    store.VerificationError: errno.EIO,
    store.RottenSegmentError: errno.EIO,
}

_FROM_BACKING_FILE = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EINTR,
        errno.EINVAL,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENODATA,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EOVERFLOW,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errnos of a disk's filesystem that are passed on, as they mean the same to the caller."""


def errno_of(error: Exception) -> int:
    """The errno for an error; for an unexpected one EIO, with a traceback in the log."""
    if isinstance(error, store.NoDiskAvailableError):
        if error.no_space:
            return errno.ENOSPC
        return errno.EIO if error.failing else errno.EROFS
    if isinstance(error, store.StoreError):
        for kind in type(error).__mro__:
            if kind in _ERRNO_OF:
                return _ERRNO_OF[kind]
    if isinstance(error, OSError) and error.errno in _FROM_BACKING_FILE:
        return error.errno
    log_event(log, logging.ERROR, "unexpected_error", reason=type(error).__name__, exc_info=error)
    return errno.EIO
