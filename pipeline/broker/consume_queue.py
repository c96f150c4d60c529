"""The files of one consume queue, from its entries in the order of the log.

An entry (`queue_entry`) stands at its queue offset times its length. A file of the queue is named by the byte
offset of its first entry and has its full length from the start, zero after the last entry. What the broker does
with entries that do not follow one another is done here, too:

- the first entry makes the file that covers it; all earlier places in that file hold a blank entry;
- an entry that ends at or before the furthest byte of the log seen in this queue is left out;
- one with a queue offset below the place to write at is left out, unless its queue offset is 0;
- any other is appended at the place to write at, wherever it belongs.

Entries come in pieces, so a queue of any length needs no more memory than its largest piece.
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
    """A queue offset for which there is no file name."""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """What became of one queue's entries."""

    files: int
    written: int
    """Entries in the files, without blanks."""
    left_out: int
    """Of those given: seen before, or below the place to write at."""
    misplaced: int
    """Appended at another place than their queue offset's, as the broker does."""
    blanks: int
    """Before the first entry."""


class _Files:
    """Files of one fixed size, written from front to back; each has its full length as soon as it is there."""

    def __init__(self, folder: Path, file_size: int) -> None:
        self._folder = folder
        self._file_size = file_size
        self._fd = -1
        self._base = -1
        self.position = 0
        """Where the next byte goes, counted over all files."""
        self.count = 0

    def touch(self) -> None:
        """Make the file that holds the position, when it is not there."""
        base = self.position - self.position % self._file_size
        if self._fd >= 0 and base == self._base:
            return
        self.close()
        if self.count == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._folder / f"{base:020d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
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
    """Writes one queue into `folder`, which must not hold any of its files. A context manager: closed at its end.

    `file_size`: mappedFileSizeConsumeQueue, rounded up to whole entries as the broker does.
    """

    def __init__(self, folder: Path, file_size: int = DEFAULT_FILE_SIZE) -> None:
        self._file_size = -(-file_size // ENTRY_BYTES) * ENTRY_BYTES
        self._files = _Files(folder, self._file_size)
        self._furthest = -1
        self._written = self._left_out = self._misplaced = self._blanks = 0

    def feed(self, entries: Bytes, queue_offsets: int | Longs) -> None:
        """The next entries of the queue, in the order of the log.

        `queue_offsets`: of each; or of the first, where they rise by one and no entry ends at or before the end
        of the one before it, so that what holds for the first decides for all.
        Raises QueueOffsetError for an entry below 0 that would be the first.
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
        """Whether the whole run belongs at the place to write at; makes the place for a queue's first run."""
        offset, size = _place(entries)
        if offset + size <= self._furthest:
            return False
        if self._files.count == 0:
            self._open_at(first)
        return first * ENTRY_BYTES == self._files.position

    def _begin(self, first: int, entries: Bytes) -> int:
        """The first entry of an empty queue, which is always taken."""
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
        kept, count, misplaced, furthest, looked_up = _select(entries, queue_offsets, next_offset, self._furthest)
        self._files.append(kept[: count * ENTRY_BYTES].data)
        if looked_up:
            self._files.touch()
        self._written += count
        self._left_out += queue_offsets.size - count
        self._misplaced += misplaced
        self._furthest = furthest


class BatchConsumeQueueFiles:
    """Writes one queue of inner batches (topic attribute queue.type=BatchCQ) into `folder`. A context manager.

    Its entries are appended in order, whatever their offsets; one that does not lie behind the last in the log is
    left out.
    """

    def __init__(self, folder: Path, file_size: int = DEFAULT_BATCH_FILE_SIZE) -> None:
        if file_size % BATCH_ENTRY_BYTES:
            raise PipelineError(
                f"mapperFileSizeBatchConsumeQueue = {file_size} is no multiple of {BATCH_ENTRY_BYTES}: a broker "
                "cannot fill such files"
            )
        self._files = _Files(folder, file_size)
        self._last = -1
        self._written = self._left_out = 0

    def feed(self, entries: Bytes) -> None:
        """The next entries, of BATCH_ENTRY_BYTES each, in the order of the log."""
        rows = entries.reshape(-1, BATCH_ENTRY_BYTES)
        if not len(rows):
            return
        offsets = np.ascontiguousarray(rows[:, :SIZE_AT]).view(">i8").ravel().astype(np.int64)
        furthest = np.maximum.accumulate(np.concatenate((np.array([self._last]), offsets)))
        new = offsets > furthest[:-1]
        kept = np.ascontiguousarray(rows[new]).ravel()
        self._files.append(kept.data)
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
    """The entries that are kept; their number; how many of them are misplaced; the furthest byte of the log then;
    and whether one came after the last of them that was left out for its queue offset: the broker makes the
    file for it all the same, when the one before it is full."""
    kept = np.empty(queue_offsets.size * ENTRY_BYTES, np.uint8)
    count = 0
    misplaced = 0
    looked_up = False
    for i in range(queue_offsets.size):
        at = i * ENTRY_BYTES
        end = i64(entries, at) + i32(entries, at + SIZE_AT)
        if end <= furthest:
            continue
        wanted = queue_offsets[i]
        if wanted != 0 and wanted < next_offset + count:
            looked_up = True
            continue
        if wanted != next_offset + count:
            misplaced += 1
        furthest = end
        kept[count * ENTRY_BYTES : (count + 1) * ENTRY_BYTES] = entries[at : at + ENTRY_BYTES]
        count += 1
        looked_up = False
    return kept, count, misplaced, furthest, looked_up
