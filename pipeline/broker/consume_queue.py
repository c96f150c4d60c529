"""Writes the files of one consume queue, from its entries in the order of the log.

The position of an entry (`queue_entry`) is its queue offset times its length. The name of a file is the byte offset
of its first entry; the file has its full length from the start, with zeros after the last entry. Entries that do
not follow one another are handled as the broker handles them:

- The first entry makes the file that contains its position; all earlier positions in that file get a blank entry.
- An entry that ends at or before the highest log offset seen in this queue is left out.
- An entry with a queue offset below the write position is left out, unless its queue offset is 0.
- Any other entry is appended at the write position, even if its queue offset belongs elsewhere.

Entries are given in pieces, so a long queue needs no more memory than its largest piece.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.arrays.raw_bytes import i32, i64
from commitlogfs.pipeline.broker.queue_entry import BATCH_ENTRY_BYTES, ENTRY_BYTES, SIZE_AT, TAGS_CODE_AT
from commitlogfs.pipeline.log.errors import PipelineError

DEFAULT_FILE_SIZE = 300_000 * ENTRY_BYTES
DEFAULT_BATCH_FILE_SIZE = 300_000 * BATCH_ENTRY_BYTES

_BLANK_ENTRY = (0).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big") + (0).to_bytes(8, "big")
_BLANKS_AT_ONCE = 64 * 1024


class QueueOffsetError(PipelineError):
    """A queue offset for which there is no valid file name."""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Result of writing one queue."""

    files: int
    written: int
    """Entries in the files, without blank ones."""
    left_out: int
    """Entries that were left out: seen before, or below the write position."""
    misplaced: int
    """Entries that were appended at another position than their queue offset's, as the broker does."""
    blanks: int
    """Blank entries before the first entry."""


class _Files:
    """Files of one fixed size, written from front to back; each file gets its full length when it is created."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._fd = -1
        self._base = -1
        self.position = 0
        """Write position, counted over all files."""
        self.count = 0

    def touch(self) -> None:
        """Create the file that contains the write position, if it does not exist."""
        base = self.position - self.position % self._file_size
        if self._fd >= 0 and base == self._base:
            return
        self.close()
        if self.count == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._directory / f"{base:020d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(self._fd, self._file_size)
        self._base = base
        self.count += 1

    def append(self, data: memoryview) -> None:
        while data:
            self.touch()
            at = self.position - self._base
            size = os.pwrite(self._fd, data[: self._file_size - at], at)
            self.position += size
            data = data[size:]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ConsumeQueueFiles:
    """Writes one queue into `directory`, which must not hold any of its files. A context manager.

    `file_size`: mappedFileSizeConsumeQueue, rounded up to whole entries as the broker does.
    """

    def __init__(self, directory: Path, file_size: int = DEFAULT_FILE_SIZE) -> None:
        self._file_size = -(-file_size // ENTRY_BYTES) * ENTRY_BYTES
        self._files = _Files(directory, self._file_size)
        self._furthest = -1
        self._written = self._left_out = self._misplaced = self._blanks = 0

    def feed(self, entries: Bytes, queue_offsets: int | Longs) -> None:
        """Add the next entries of the queue, in the order of the log.

        `queue_offsets`: one for each entry; or the first one, if they rise by one and no entry ends at or before
        the end of the entry before it, so that the first entry decides for all. Raises QueueOffsetError if the
        first entry of the queue is below 0.
        """
        if entries.size == 0:
            return
        if isinstance(queue_offsets, int):
            if self._follows(entries, queue_offsets):
                self._append(entries)
                return
            queue_offsets = np.arange(queue_offsets, queue_offsets + entries.size // ENTRY_BYTES, dtype=np.int64)
        if entries.size != queue_offsets.size * ENTRY_BYTES:
            raise ValueError(f"{entries.size} bytes for {queue_offsets.size} entries")
        start = self._begin(int(queue_offsets[0]), entries) if self._files.count == 0 else 0
        self._feed_rest(entries[start * ENTRY_BYTES :], queue_offsets[start:])

    def close(self) -> QueueSummary:
        self._files.close()
        return QueueSummary(self._files.count, self._written, self._left_out, self._misplaced, self._blanks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def _follows(self, entries: Bytes, first: int) -> bool:
        """Whether the run begins at the write position; for a queue's first run, creates the file that contains
        it."""
        offset, size = _place(entries)
        if offset + size <= self._furthest:
            return False
        if self._files.count == 0:
            self._open_at(first)
        return first * ENTRY_BYTES == self._files.position

    def _begin(self, first: int, entries: Bytes) -> int:
        """Append the first entry of an empty queue, which is never left out."""
        self._open_at(first)
        self._append(entries[:ENTRY_BYTES])
        return 1

    def _open_at(self, first: int) -> None:
        if first < 0:
            raise QueueOffsetError(f"queue offset {first}: a queue cannot begin below 0")
        self._blanks = first % (self._file_size // ENTRY_BYTES)
        self._files.position = (first - self._blanks) * ENTRY_BYTES
        self._files.touch()
        left = self._blanks
        while left:
            some = min(left, _BLANKS_AT_ONCE)
            self._files.append(memoryview(_BLANK_ENTRY * some))
            left -= some

    def _append(self, entries: Bytes) -> None:
        self._files.append(entries.data)
        self._written += entries.size // ENTRY_BYTES
        offset, size = _place(entries[-ENTRY_BYTES:])
        self._furthest = offset + size

    def _feed_rest(self, entries: Bytes, queue_offsets: Longs) -> None:
        if queue_offsets.size == 0:
            return
        next_offset = self._files.position // ENTRY_BYTES
        selected, count, misplaced, furthest, left_out_last = _select(
            entries, queue_offsets, next_offset, self._furthest
        )
        self._files.append(selected[: count * ENTRY_BYTES].data)
        if left_out_last:
            self._files.touch()
        self._written += count
        self._left_out += queue_offsets.size - count
        self._misplaced += misplaced
        self._furthest = furthest


class BatchConsumeQueueFiles:
    """Writes one queue of inner batches (topic attribute queue.type=BatchCQ) into `directory`. A context manager.

    Its entries are appended in order, whatever their queue offsets; an entry whose log offset is not after the last
    one's is left out.
    """

    def __init__(self, directory: Path, file_size: int = DEFAULT_BATCH_FILE_SIZE) -> None:
        if file_size % BATCH_ENTRY_BYTES:
            raise PipelineError(
                f"mapperFileSizeBatchConsumeQueue = {file_size}: is not a multiple of {BATCH_ENTRY_BYTES}, so a "
                "broker cannot fill such files; correct the broker configuration"
            )
        self._files = _Files(directory, file_size)
        self._last = -1
        self._written = self._left_out = 0

    def feed(self, entries: Bytes) -> None:
        """Add the next entries, of BATCH_ENTRY_BYTES each, in the order of the log."""
        rows = entries.reshape(-1, BATCH_ENTRY_BYTES)
        if not len(rows):
            return
        offsets = np.ascontiguousarray(rows[:, :SIZE_AT]).view(">i8").ravel().astype(np.int64)
        furthest = np.maximum.accumulate(np.concatenate((np.array([self._last]), offsets)))
        new = offsets > furthest[:-1]
        selected = np.ascontiguousarray(rows[new]).ravel()
        self._files.append(selected.data)
        self._last = int(furthest[-1])
        self._written += int(new.sum())
        self._left_out += int((~new).sum())

    def close(self) -> QueueSummary:
        self._files.close()
        return QueueSummary(self._files.count, self._written, self._left_out, 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()


def _place(entry: Bytes) -> tuple[int, int]:
    raw = entry[:TAGS_CODE_AT].tobytes()
    return int.from_bytes(raw[:SIZE_AT], "big", signed=True), int.from_bytes(raw[SIZE_AT:], "big", signed=True)


@compiled
def _select(
    entries: Bytes, queue_offsets: Longs, next_offset: int, furthest: int
) -> tuple[Bytes, int, int, int, bool]:
    """The entries to write; their number; how many of them are misplaced; the highest log offset after them; and
    whether a later entry was left out because of its queue offset: for such an entry the broker creates the next
    file when the last one is full."""
    selected = np.empty(queue_offsets.size * ENTRY_BYTES, np.uint8)
    count = 0
    misplaced = 0
    left_out_last = False
    for i in range(queue_offsets.size):
        at = i * ENTRY_BYTES
        end = i64(entries, at) + i32(entries, at + SIZE_AT)
        if end <= furthest:
            continue
        queue_offset = queue_offsets[i]
        if queue_offset != 0 and queue_offset < next_offset + count:
            left_out_last = True
            continue
        if queue_offset != next_offset + count:
            misplaced += 1
        furthest = end
        selected[count * ENTRY_BYTES : (count + 1) * ENTRY_BYTES] = entries[at : at + ENTRY_BYTES]
        count += 1
        left_out_last = False
    return selected, count, misplaced, furthest, left_out_last
