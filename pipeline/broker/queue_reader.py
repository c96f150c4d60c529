"""Reads a broker's consume queues: entries by queue offset, and by file."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.arrays.array_types import Bools, Longs
from commitlogfs.pipeline.broker.queue_entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, ENTRY, ENTRY_BYTES
from commitlogfs.store.segment import looks_like_segment

_BLANK_SIZE = 0x7FFFFFFF
_AT_ONCE = 1 << 20


class QueueEntries(NamedTuple):
    """Consecutive entries, including zero and blank ones; `first` is the queue offset of the first."""

    first: int
    offsets: Longs
    sizes: Longs
    tags_codes: Longs
    batch: Longs
    """Store times, queue offsets, counts and the rest of a queue of batches, in four rows; otherwise no rows."""

    @property
    def used(self) -> Bools:
        """Which entries point at a record."""
        used: Bools = (self.sizes > 0) & (self.sizes != _BLANK_SIZE)
        return used


class QueueReader:
    """The files in `directory`, which need not exist. Raises OSError if a file cannot be read."""

    def __init__(self, directory: Path, *, batch: bool = False) -> None:
        self._dtype = BATCH_ENTRY if batch else ENTRY
        self._width = BATCH_ENTRY_BYTES if batch else ENTRY_BYTES
        try:
            paths = sorted(path for path in directory.iterdir() if looks_like_segment(os.fsencode(path.name)))
        except FileNotFoundError:
            paths = []
        self._files = [(int(path.name), path) for path in paths]
        self._bases = [base for base, _ in self._files]

    @property
    def exists(self) -> bool:
        return bool(self._files)

    def read(self, first: int, count: int) -> QueueEntries:
        """The entries from queue offset `first` on; zero where there is no file."""
        out = np.zeros(count, self._dtype)
        raw = out.view(np.uint8).reshape(-1)
        at, end = first * self._width, (first + count) * self._width
        while at < end:
            index = bisect_right(self._bases, at) - 1
            following = self._bases[index + 1] if index + 1 < len(self._bases) else end
            stop = min(end, following)
            if index >= 0:
                base, path = self._files[index]
                with path.open("rb") as file:
                    if at - base < os.fstat(file.fileno()).st_size:
                        file.seek(at - base)
                        data = file.read(stop - at)
                        raw[at - first * self._width :][: len(data)] = np.frombuffer(data, np.uint8)
            at = stop
        return _entries(first, out)

    def end(self) -> int:
        """The queue offset after the last entry that points at a record; 0 without such an entry."""
        for base, path in reversed(self._files):
            first, size = base // self._width, path.stat().st_size // self._width
            for start in reversed(range(0, size, _AT_ONCE)):
                entries = self.read(first + start, min(_AT_ONCE, size - start))
                used = np.flatnonzero(entries.used)
                if len(used) and len(entries.batch):
                    _, queue_offset, count, _ = entries.batch[:, used[-1]].tolist()
                    return int(queue_offset + max(count, 1))
                if len(used):
                    return first + start + int(used[-1]) + 1
        return 0

    def find_batches(self, offsets: Longs) -> QueueEntries:
        """The entries of a queue of batches for these log offsets, which rise; zero where there is none."""
        found = _entries(0, np.zeros(len(offsets), BATCH_ENTRY))
        for part in self.scan():
            used = part.used
            at = np.searchsorted(offsets, part.offsets[used])
            at = np.minimum(at, len(offsets) - 1)
            same = offsets[at] == part.offsets[used]
            for column, values in zip(found[1:], part[1:], strict=True):
                column[..., at[same]] = values[..., used][..., same]
        return found

    def scan(self) -> Iterator[QueueEntries]:
        """All entries in order, in pieces."""
        for base, path in self._files:
            size = path.stat().st_size // self._width
            for start in range(0, size, _AT_ONCE):
                yield self.read(base // self._width + start, min(_AT_ONCE, size - start))


def _entries(first: int, table: npt.NDArray[np.void]) -> QueueEntries:
    names = table.dtype.names or ()
    columns = np.empty((len(names), len(table)), np.int64)
    for column, name in zip(columns, names, strict=True):
        column[:] = table[name]
    return QueueEntries(first, columns[0], columns[1], columns[2], columns[3:])
