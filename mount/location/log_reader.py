"""Reader of the whole log by log offset, through `.commitlogfs/log` of a mount."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from commitlogfs.console.errors import AbsentError, RefusedError, UnreachableError
from commitlogfs.mount.location.status_file import HIDDEN, read_status_file
from commitlogfs.store import record
from commitlogfs.store.record import (
    BlankRecordError,
    NotARecordError,
    Record,
    RecordError,
    TruncatedRecordError,
    WrongOffsetError,
)
from commitlogfs.store.record_layout import SIZE_AND_MAGIC_BYTES

_CHUNK_BYTES: Final = 1 << 20


class LogReader:
    """The open log of one mount."""

    def __init__(self, fd: int, segment_size: int) -> None:
        self._fd = fd
        self.segment_size = segment_size

    def read(self, offset: int, length: int) -> Iterator[bytes]:
        """`length` bytes from `offset` on, in parts. Raises AbsentError at the first byte that no segment holds."""
        end = offset + length
        while offset < end:
            data = self._pread(min(_CHUNK_BYTES, end - offset), offset)
            if not data:
                raise AbsentError(f"log offset {offset}: after the end of the log; nothing is written there yet")
            yield data
            offset += len(data)

    def read_record(self, offset: int) -> tuple[Record, bytes]:
        """The record that begins at `offset`, decoded and raw. Raises AbsentError if there is none."""
        room = self.segment_size - offset % self.segment_size
        try:
            header = b"".join(self.read(offset, min(SIZE_AND_MAGIC_BYTES, room)))
            size = record.peek(header)
            if size > room:
                # A record never continues in the next segment, so these bytes only look like one.
                raise NotARecordError("no record begins here")
            raw = b"".join(self.read(offset, size))
            return record.decode(raw, offset), raw
        except RecordError as error:
            raise AbsentError(f"log offset {offset}: {error}{self._advice(error, offset)}") from error

    def _advice(self, error: RecordError, offset: int) -> str:
        if isinstance(error, BlankRecordError):
            return f", at log offset {offset - offset % self.segment_size + self.segment_size}"
        if isinstance(error, NotARecordError | WrongOffsetError | TruncatedRecordError):
            return "; --offset must be the physical offset of a message (commitLogOffset, or from its message id)"
        return ""

    def _pread(self, length: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOVERFLOW):
                return b""  # the kernel does not allow such an offset, so it is after the end
            if error.errno == errno.EIO:
                raise AbsentError(
                    f"log offset {offset}: no segment holds it, or its disk fails; "
                    f"`commitlogfs locate {offset}` gives the reason"
                ) from error
            raise UnreachableError(f"log offset {offset}: {os.strerror(error.errno or 0)}") from error


@contextlib.contextmanager
def open_log(mountpoint: str) -> Iterator[LogReader]:
    """The log of a mount. Raises UnreachableError if the mount does not answer, RefusedError if this user may not
    read the log."""
    status = read_status_file(mountpoint)
    directory = Path(mountpoint) / HIDDEN
    try:
        fd = os.open(directory / "log", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise RefusedError(
            f"{directory}/log: permission denied; only the owner and the group of {mountpoint} may read the log"
        ) from None
    except OSError as error:
        raise UnreachableError(f"{directory}: {os.strerror(error.errno or 0)}") from error
    try:
        yield LogReader(fd, status["segments"]["size"])
    finally:
        os.close(fd)
