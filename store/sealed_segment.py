"""The check of a whole sealed segment: an unbroken chain of records, each with its own log offset and with right
checksums, up to a blank record that fills the rest.

A segment that passes can become a part of a log from whatever place it comes. A segment that was sealed early ends
with zeros instead of a blank record. It may also be one that is not complete yet, so it passes only if the caller
knows the digest of the right content, or accepts zeros at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import xxhash

from commitlogfs.store.errors import StoreError
from commitlogfs.store.record import BlankRecordError, RecordError, TruncatedRecordError, decode, peek
from commitlogfs.store.record_layout import SIZE_AND_MAGIC_BYTES
from commitlogfs.store.segment import BaseOffset

WINDOW_BYTES: Final = 4 << 20

Read = Callable[[int, int], bytes]
"""(position, length) -> the bytes there; fewer only at the end of the file. Raises OSError."""


class UnsoundSegmentError(StoreError):
    """The file is not a sound sealed segment; the message says where and why."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that has passed."""

    messages: int
    last_store_timestamp_ms: int
    """When the broker stored the last message; 0 without one."""
    digest: bytes
    """xxh3_128 of the whole file."""
    zeros_begin: int | None = None
    """Position from which the file has zeros, and no blank record; None usually."""
    fault: str = ""
    """Where and why the chain is not right, if only the digest is; empty usually."""


def check_sealed(
    read: Read,
    base_offset: BaseOffset,
    size: int,
    on_progress: Callable[[int], None] = lambda _: None,
    *,
    right: bytes | None = None,
    may_end_early: bool = False,
) -> SealedSegment:
    """Read the file with this base offset and size, in windows, and check it. `on_progress` gets the number of
    bytes read. `right` is the xxh3_128 of the right content, if it is known: a file with it passes, whatever its
    chain is. `may_end_early`: zeros after the last record pass, too. Raises UnsoundSegmentError, OSError."""
    check = _Check(read, base_offset, size, on_progress)
    try:
        return check.run(may_end_early=may_end_early)
    except UnsoundSegmentError as error:
        if right is None or check.digest() != right:
            raise
        return replace(check.result(), fault=str(error))


class _Check:
    def __init__(self, read: Read, base_offset: BaseOffset, size: int, on_progress: Callable[[int], None]) -> None:
        self._read = read
        self._base_offset = base_offset
        self._size = size
        self._on_progress = on_progress
        self._digest = xxhash.xxh3_128()
        self._data = b""
        """A window of the file: what was read last, from the record at hand on."""
        self._begin = 0
        """Position of the window's first byte."""
        self._loaded = 0
        """Number of bytes that were read."""
        self._messages = 0
        self._last_ms = 0

    def run(self, *, may_end_early: bool) -> SealedSegment:
        """Raises UnsoundSegmentError, OSError."""
        position = 0
        while True:
            try:
                record = decode(self._record(position), self._base_offset + position)
            except BlankRecordError as blank:
                if blank.size != self._size - position:
                    raise self._unsound(position, f"a blank record of {blank.size} bytes ends elsewhere") from blank
                return self.result()
            except RecordError as error:
                if may_end_early and self._ends_with_zeros(position):
                    return self.result(position)
                raise self._unsound(position, str(error)) from error
            if not record.body_crc_ok or record.property_crc_ok is False:
                raise self._unsound(position, "the checksum of the message is wrong")
            position += record.total_size
            self._messages, self._last_ms = self._messages + 1, record.store_timestamp_ms

    def digest(self) -> bytes:
        """Reads what is left. Raises OSError, UnsoundSegmentError."""
        while self._load():
            self._data = b""
        return self._digest.digest()

    def result(self, zeros_begin: int | None = None) -> SealedSegment:
        """Raises OSError, UnsoundSegmentError."""
        return SealedSegment(self._messages, self._last_ms, self.digest(), zeros_begin)

    def _ends_with_zeros(self, position: int) -> bool:
        """Whether no byte from a position on is set. Raises OSError, UnsoundSegmentError."""
        self._data = self._data[position - self._begin :]
        while not self._data.strip(b"\0"):
            self._data = b""
            if not self._load():
                return True
        return False

    def _record(self, position: int) -> bytes:
        """The bytes of the record that begins there. Raises RecordError."""
        header = self._bytes(position, SIZE_AND_MAGIC_BYTES)
        return self._bytes(position, peek(header))

    def _bytes(self, position: int, length: int) -> bytes:
        """Raises TruncatedRecordError."""
        if position + length > self._size:
            raise TruncatedRecordError(length, self._size - position)
        while position + length > self._begin + len(self._data):
            self._data = self._data[position - self._begin :]
            self._begin = position
            if not self._load():
                raise TruncatedRecordError(length, len(self._data))
        at = position - self._begin
        return self._data[at : at + length]

    def _load(self) -> bool:
        """Read one more window; False at the end of the file. Raises OSError, UnsoundSegmentError."""
        wanted = min(WINDOW_BYTES, self._size - self._loaded)
        if not wanted:
            return False
        data = self._read(self._loaded, wanted)
        if len(data) < wanted:
            raise UnsoundSegmentError(f"ends at {self._loaded + len(data)} instead of {self._size}")
        self._digest.update(data)
        self._data += data
        self._loaded += wanted
        self._on_progress(self._loaded)
        return True

    def _unsound(self, position: int, reason: str) -> UnsoundSegmentError:
        return UnsoundSegmentError(f"log offset {self._base_offset + position}: {reason}")
