"""The broker's index files: the distribution of keys to files, and the bytes of one file.

A file (IndexFile, IndexHeader; big-endian) is a header of 40 bytes, `slots` slots of 4, `capacity` entries of 20:

    header  begin timestamp 8, end timestamp 8, begin offset 8, end offset 8, slots in use 4, entries + 1 in 4
    slot    number of the newest entry whose key hash falls into it
    entry   key hash 4, physical offset 8, seconds since the header's begin timestamp 4, the slot's former number 4

Entry 0 is never used, so a file holds `capacity` - 1 entries, and the n-th key of the log is in file
n // (capacity - 1): counts alone decide where a key goes, so files can be built in parallel. A file depends on the
last key of the file before it: its first entry counts seconds from that key's store time.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.arrays.array_types import Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.arrays.raw_bytes import put

Keys = npt.NDArray[np.void]

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
DEFAULT_SLOTS = 5_000_000
DEFAULT_CAPACITY = 20_000_000

KEY = np.dtype([("hash", "<i4"), ("offset", "<u4"), ("time", "<u4")])
"""One key; offset and time count from its block's base."""


class KeyBlock(NamedTuple):
    """Keys in the order of the log: `keys` (dtype KEY), and the base of their offsets and store times."""

    keys: Keys
    base_offset: int
    base_ms: int

    @property
    def last(self) -> tuple[int, int]:
        """Log offset and store time of the last key."""
        return self.base_offset + int(self.keys["offset"][-1]), self.base_ms + int(self.keys["time"][-1])


def pack_keys(hashes: Ints, offsets: Longs, times_ms: Longs) -> Iterator[KeyBlock]:
    """The smallest number of blocks: a new one begins where an offset or store time is too far from the base.

    `offsets` rise; store times may jump, because clocks do.
    """
    start = 0
    while start < hashes.size:
        stop, base_ms = _longest_block(offsets, times_ms, start)
        keys = np.empty(stop - start, KEY)
        keys["hash"] = hashes[start:stop]
        keys["offset"] = offsets[start:stop] - offsets[start]
        keys["time"] = times_ms[start:stop] - base_ms
        yield KeyBlock(keys, int(offsets[start]), base_ms)
        start = stop


# --- distribution to files -------------------------------------------------------------------------------


class Share(NamedTuple):
    """Keys [start, stop) of one block of the log, for one file. `before`: the first of them is not an entry of this
    file but the last entry of the file before it."""

    file: int
    block: int
    start: int
    stop: int
    before: bool


def plan_files(counts: Iterable[int], capacity: int = DEFAULT_CAPACITY) -> list[Share]:
    """The distribution of blocks with these numbers of keys, in the order of the log, to files; by file, then
    block."""
    per_file = capacity - 1
    shares: list[Share] = []
    total = 0
    for block, count in enumerate(counts):
        at = 0
        while at < count:
            file, filled = divmod(total + at, per_file)
            stop = min(count, at + per_file - filled)
            shares.append(Share(file, block, at, stop, before=False))
            if filled + stop - at == per_file:
                # For the next file, if there is one.
                shares.append(Share(file + 1, block, stop - 1, stop, before=True))
            at = stop
        total += count
    if shares and shares[-1].before:
        shares.pop()
    return sorted(shares, key=lambda share: (share.file, share.block, share.start))


def file_size(slots: int, capacity: int) -> int:
    """Size of each file in bytes, whatever it holds."""
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * capacity


def file_names(begin_ms: Sequence[int], zone: tzinfo | None = None) -> list[str]:
    """Names of files whose first entries have these store times: yyyyMMddHHmmssSSS.

    The broker names a file by the wall clock at its creation, shortly after its first message was stored, and loads
    the files in the order of their names. So the name is that store time in `zone` (None: this machine's zone),
    plus as many milliseconds as are needed for the names to rise. A damaged store time outside the calendar counts
    as the calendar's beginning or end.
    """
    names: list[str] = []
    for found_ms in begin_ms:
        ms = max(0, min(found_ms, _LATEST_MS))
        name = _format_time(ms, zone)
        while names and name <= names[-1]:
            ms += max(1, _lag_ms(names[-1], name))
            name = _format_time(ms, zone)
        names.append(name)
    return names


_LATEST_MS = 253_370_764_800_000
"""The beginning of 9999: a name that must rise has a year left, in any zone."""


def _format_time(ms: int, zone: tzinfo | None) -> str:
    # From the epoch: fromtimestamp refuses times below 0 on some systems, and rounds because it uses a float.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    local = moment.astimezone(zone)
    return f"{local:%Y%m%d%H%M%S}{local.microsecond // 1000:03d}".rjust(17, "0")


def _lag_ms(later: str, earlier: str) -> int:
    form = "%Y%m%d%H%M%S%f"
    difference = datetime.strptime(later, form) - datetime.strptime(earlier, form)
    return difference // timedelta(milliseconds=1)


# --- one file --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Result of writing one file."""

    entries: int
    begin_ms: int
    """Store time of the first entry; if there is a file before it, of that file's last entry."""
    end_offset: int
    end_ms: int


class IndexFileWriter:
    """Builds one file at `path`, which must not exist, from its keys in the order of the log. A context manager.

    Slots are kept in memory (4 bytes each) and written at the end. Entries are written directly.
    """

    def __init__(
        self,
        path: Path,
        slots: int = DEFAULT_SLOTS,
        capacity: int = DEFAULT_CAPACITY,
        before: tuple[int, int] | None = None,
    ) -> None:
        """`before`: physical offset and store time of the last key in the file before it; None for the first
        file."""
        self._slots = np.zeros(slots, np.int32)
        self._capacity = capacity
        self._entries_at = HEADER_BYTES + SLOT_BYTES * slots
        self._entries = 0
        self._used = 0
        offset, ms = before or (0, 0)
        self._begin_offset = self._end_offset = max(0, offset)
        self._begin_ms = self._end_ms = max(0, ms)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(self._fd, self._entries_at + ENTRY_BYTES * capacity)

    def feed(self, block: KeyBlock) -> None:
        """Add the next keys; there must be room for them."""
        count = block.keys.size
        if not count:
            return
        if self._entries + count >= self._capacity:
            raise ValueError(f"{self._entries + count} keys in an index file for {self._capacity - 1}")
        hashes, offsets, times = block.keys["hash"], block.keys["offset"], block.keys["time"]
        entries = np.empty(count * ENTRY_BYTES, np.uint8)
        self._used += _fill(
            entries,
            self._slots,
            self._entries + 1,
            hashes,
            offsets,
            times,
            block.base_offset,
            block.base_ms,
            self._begin_ms,
        )
        if self._entries == 0:
            self._begin_offset = block.base_offset + int(offsets[0])
            self._begin_ms = block.base_ms + int(times[0])
        self._end_offset, self._end_ms = block.last
        self._write(entries.data, self._entries_at + ENTRY_BYTES * (self._entries + 1))
        self._entries += count

    def close(self) -> IndexSummary:
        """Write slots and header; the file is then complete."""
        self._write(self._slots.astype(">i4").view(np.uint8).data, HEADER_BYTES)
        times = (self._begin_ms, self._end_ms, self._begin_offset, self._end_offset)
        header = b"".join(value.to_bytes(8, "big", signed=True) for value in times)
        header += self._used.to_bytes(4, "big") + (self._entries + 1).to_bytes(4, "big")
        self._write(memoryview(header), 0)
        os.close(self._fd)
        self._fd = -1
        return IndexSummary(self._entries, self._begin_ms, self._end_offset, self._end_ms)

    def release(self) -> None:
        """Close the descriptor of an unfinished file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _write(self, data: memoryview, at: int) -> None:
        while data:
            size = os.pwrite(self._fd, data, at)
            data, at = data[size:], at + size


@compiled
def _longest_block(offsets: Longs, times_ms: Longs, start: int) -> tuple[int, int]:
    """End of the block that begins at `start`, and the earliest store time in it."""
    earliest = times_ms[start]
    latest = earliest
    for i in range(start + 1, offsets.size):
        low = min(earliest, times_ms[i])
        high = max(latest, times_ms[i])
        if offsets[i] - offsets[start] > 0xFFFFFFFF or high - low > 0xFFFFFFFF or high - low < 0:
            return i, earliest
        earliest = low
        latest = high
    return offsets.size, earliest


@compiled
def _fill(
    entries: Bytes,
    slots: Ints,
    number: int,
    hashes: Ints,
    offsets: npt.NDArray[np.uint32],
    times: npt.NDArray[np.uint32],
    base_offset: int,
    base_ms: int,
    begin_ms: int,
) -> int:
    """Writes the entries from `number` on into `entries` (20 bytes each) and their numbers into `slots`. Returns
    how many of these slots were empty. `begin_ms`: the header's begin timestamp when the first entry is written."""
    used = 0
    begin = np.int64(begin_ms)
    for i in range(hashes.size):
        time_ms = base_ms + np.int64(times[i])
        seconds = np.int64(0)
        if begin > 0 and time_ms > begin:
            seconds = min((time_ms - begin) // 1000, np.int64(0x7FFFFFFF))
        if number + i == 1:
            begin = time_ms
        code = np.int64(hashes[i])
        if code < 0:
            code = -code if code > -0x80000000 else np.int64(0)
        slot = code % slots.size
        former = slots[slot]
        slots[slot] = number + i
        if former == 0:
            used += 1
        at = i * 20
        put(entries, at, code, 4)
        put(entries, at + 4, base_offset + np.int64(offsets[i]), 8)
        put(entries, at + 12, seconds, 4)
        put(entries, at + 16, np.int64(former), 4)
    return used
