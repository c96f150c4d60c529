"""Reads a broker's index files: their keys by log offset, and whether their chains are intact."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Ints, Longs
from commitlogfs.pipeline.arrays.compiled import compiled
from commitlogfs.pipeline.broker.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, file_size
from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.store.segment import LARGEST_OFFSET

HEADER = np.dtype(
    [
        ("begin_ms", ">i8"),
        ("end_ms", ">i8"),
        ("begin_offset", ">i8"),
        ("end_offset", ">i8"),
        ("used", ">i4"),
        ("count", ">i4"),
    ]
)
ENTRY = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("former", ">i4")])


class IndexFileError(PipelineError):
    """An index whose files have the size of another configuration."""


class IndexFile(NamedTuple):
    """One file; `entries` are those in use, and the first of them has number 1."""

    path: Path
    slots: int
    entries: int
    begin_offset: int
    end_offset: int
    problem: str = ""
    """Why no entry can be read, in one line; empty if they can. `begin_offset` and `end_offset` are then where the
    files before and after it end and begin."""


def list_index(directory: Path, slots: int, capacity: int, *, growing: bool = False) -> list[IndexFile]:
    """The files in the order of their names, which is that of the log.

    `growing`: a broker is running, which makes a file without a size first. Raises IndexFileError if no file has
    the size of this configuration and one has that of another; OSError.
    """
    paths = sorted(path for path in directory.iterdir() if path.name.isdecimal())
    sizes = {path: path.stat().st_size for path in paths}
    if growing and paths and not sizes[paths[-1]]:
        del sizes[paths[-1]]
    expected = file_size(slots, capacity)
    if expected not in sizes.values():
        _require_none_of_another(sizes, slots, capacity)
    readable = {path: _read_header(path, slots, capacity) for path, size in sizes.items() if size == expected}
    used = [file for file in readable.values() if file.entries]
    return [
        readable.get(path) or _unreadable(path, slots, f"is {size:,} bytes long, not {expected:,}", used)
        for path, size in sizes.items()
    ]


def _require_none_of_another(sizes: Mapping[Path, int], slots: int, capacity: int) -> None:
    """Checks that no file has a size that another configuration gives: for one slot and two entries, or more."""
    for path, size in sizes.items():
        if size >= file_size(1, 2) and size % 4 == 0:
            raise IndexFileError(
                f"{path}: is not {file_size(slots, capacity)} bytes long, the size of an index file with "
                f"maxHashSlotNum={slots} and maxIndexNum={capacity}; name this broker's broker.conf"
            )


def _unreadable(path: Path, slots: int, problem: str, used: Sequence[IndexFile]) -> IndexFile:
    """The file at `path`, whose keys are not known. `used`: files with keys that can be read, in their order."""
    before = [file.end_offset for file in used if file.path < path]
    after = [file.begin_offset for file in used if file.path > path]
    begin, end = before[-1] if before else 0, after[0] if after else LARGEST_OFFSET
    where = [f"from log offset {begin}"] if before else []
    where += [f"up to log offset {end}"] if after else []
    which = f"keys {' '.join(where)} are not" if where else "none of its keys is"
    return IndexFile(path, slots, 0, begin, end, f"{problem}: {which} compared")


def _read_header(path: Path, slots: int, capacity: int) -> IndexFile:
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES), HEADER)[0]
    entries = min(max(int(header["count"]) - 1, 0), capacity - 1)
    return IndexFile(path, slots, entries, int(header["begin_offset"]), int(header["end_offset"]))


def keys_between(file: IndexFile, start: int, stop: int) -> tuple[Ints, Longs]:
    """Hashes and log offsets of the keys whose records begin in [start, stop) of the log.

    Log offsets rise within a file, because the broker enters no record below the file's last one
    (IndexFile#putKey).
    """
    table = _entries(file)
    if table is None:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    first, last = _lower_bound(table, start), _lower_bound(table, stop)
    return table["hash"][first:last].astype(np.int32), table["offset"][first:last].astype(np.int64)


def broken_chains(file: IndexFile, *, growing: bool = False) -> int:
    """Number of entries and slots with a wrong link: the keys behind it cannot be found.

    `growing`: a broker may have added entries since the file was listed.
    """
    table = _entries(file)
    if table is None:
        return 0
    slots = np.memmap(file.path, ">i4", "r", HEADER_BYTES, (file.slots,))
    return _broken(
        table["hash"].astype(np.int32), table["former"].astype(np.int32), slots.astype(np.int32), growing
    )


def first_descent(file: IndexFile) -> int | None:
    """Number of the first entry whose log offset is below the one before it; None if log offsets rise."""
    table = _entries(file)
    if table is None:
        return None
    falls = np.flatnonzero(np.diff(table["offset"].astype(np.int64)) < 0)
    return int(falls[0]) + 2 if len(falls) else None


def _entries(file: IndexFile) -> "np.memmap[tuple[int], np.dtype[np.void]] | None":
    if not file.entries:
        return None
    at = HEADER_BYTES + file.slots * SLOT_BYTES + ENTRY_BYTES  # entry 0 is never used
    return np.memmap(file.path, ENTRY, "r", at, (file.entries,))


def _lower_bound(table: "np.memmap[tuple[int], np.dtype[np.void]]", offset: int) -> int:
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) // 2
        if table[middle]["offset"] < offset:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _broken(hashes: Ints, formers: Ints, slots: Ints, growing: bool) -> int:
    newest = np.zeros(slots.size, np.int32)
    broken = 0
    for i in range(hashes.size):
        code = np.int64(hashes[i])
        slot = code % slots.size if code >= 0 else 0
        if formers[i] != newest[slot]:
            broken += 1
        newest[slot] = i + 1
    for slot in range(slots.size):
        if slots[slot] != newest[slot] and not (growing and slots[slot] > hashes.size):
            broken += 1
    return broken
