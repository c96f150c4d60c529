import errno
import inspect
import logging
import os

import pytest

from commitlogfs.fusefs.errors import errno_of
from commitlogfs.store import errors as store

EXPECTED = {
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
BIRTH = {kind for kind in vars(store).values() if inspect.isclass(kind) and issubclass(kind, store.PoolError)}
"""Raised while a pool is made or opened: before there is a mount that could answer anybody."""
BASES = {store.StoreError, store.DiskError}


def make(kind: type[store.StoreError]) -> store.StoreError:
    return kind("/data1", "trouble") if issubclass(kind, store.DiskError) else kind("trouble")


@pytest.mark.parametrize(("kind", "code"), EXPECTED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_store_error_has_its_errno(kind, code, caplog):
    assert errno_of(make(kind)) == code
    assert caplog.records == [], "foreseen: no traceback"


def test_no_store_error_is_forgotten():
    every = {kind for kind in vars(store).values() if inspect.isclass(kind) and issubclass(kind, store.StoreError)}
    assert every == {*EXPECTED, *BIRTH, *BASES, store.NoDiskAvailableError}


@pytest.mark.parametrize(("no_space", "code"), [(True, errno.ENOSPC), (False, errno.EROFS)])
def test_no_disk_tells_lack_of_room_from_lack_of_a_writable_disk(no_space, code, caplog):
    assert errno_of(store.NoDiskAvailableError("nowhere", no_space=no_space)) == code
    assert caplog.records == []


def test_a_more_special_error_is_translated_as_its_kind():
    class StrangeFullError(store.DiskFullError):
        pass

    assert errno_of(StrangeFullError("/data1", "trouble")) == errno.ENOSPC


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.EINVAL]
)
def test_errnos_of_the_backing_file_pass(code, caplog):
    assert errno_of(OSError(code, os.strerror(code))) == code
    assert caplog.records == []


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        AssertionError(),
        RuntimeError("bug"),
        OSError("without errno"),
        OSError(errno.ENOTCONN, "from nowhere"),
        OSError(errno.ENOENT, "the backing file vanished: not the caller's ENOENT"),
        OSError(errno.EBADF, "ours, not the caller's"),
        store.PoolError("not at this time"),
    ],
    ids=repr,
)
def test_what_nobody_foresaw_is_eio_with_a_traceback(error, caplog):
    with caplog.at_level(logging.ERROR):
        assert errno_of(error) == errno.EIO
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "unexpected_error"
    assert record.exc_info is not None
    assert record.exc_info[1] is error
