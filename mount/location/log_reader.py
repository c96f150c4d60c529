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
from commitlogfs.store.record_layout import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC_BYTES

_CHUNK_BYTES: Final = 1 << 20
_LARGEST_RECORD_BYTES: Final = 8 << 20
"""More than a record with a body of `maxMessageSize`, which is 4 MiB by default."""
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_SIZE_BYTES: Final = 4
"""A record begins with its size, and the magic code follows."""


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
            around = self._record_around(offset)
            if around is not None:
                return f"; the message at log offset {around} contains it: `commitlogfs read --offset {around}`"
            return "; --offset must be the physical offset of a message (commitLogOffset, or from its message id)"
        return ""

    def _record_around(self, offset: int) -> int | None:
        """Log offset of the record that contains `offset`; None if none of the sizes that brokers accept does.

        A record names its own log offset, so bytes of a body that look like a record are passed over.
        """
        begin = max(offset - offset % self.segment_size, offset - _LARGEST_RECORD_BYTES)
        try:
            data = b"".join(self.read(begin, offset - begin + SIZE_AND_MAGIC_BYTES))
        except (AbsentError, UnreachableError):
            return None
        at = offset - begin + _SIZE_BYTES
        while (at := max(data.rfind(magic, 0, at + len(magic) - 1) for magic in _MAGICS)) >= _SIZE_BYTES:
            start = begin + at - _SIZE_BYTES
            try:
                size = record.peek(data[at - _SIZE_BYTES :][:SIZE_AND_MAGIC_BYTES])
                if start + size > offset:
                    record.decode(b"".join(self.read(start, size)), start)
                    return start
            except (RecordError, AbsentError, UnreachableError):
                continue
        return None

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
