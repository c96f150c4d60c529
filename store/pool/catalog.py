"""Base offset -> segment: the index that resolves log offsets and names. In memory, rebuilt by scanning."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Set
from enum import Enum, IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from commitlogfs.store import layout
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import LogGapError
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, size_of
from commitlogfs.store.gaps import gaps_between
from commitlogfs.store.segment import BaseOffset, LogOffset, format_segment_name

NEWEST_KEPT: Final = 3
"""Number of the newest segments to which a broker writes, or which it cuts: they are not moved, and have no
checksum."""


class Role(IntEnum):
    """Role of a backing file in the pool."""

    SEGMENT = 0
    TEMPORARY = 1
    """A copy in progress under `.NAME.suffix`, in the disk's directory."""
    RETIRED = 2
    """Removed from the log, still open somewhere, in the disk's directory of retired files."""
    GIVEN_UP = 3
    """Left empty, under its segment's name, on a disk that failed; the segment is made on another (leftovers)."""
    MOVED = 4
    """The file from which a segment was copied to another disk (store.moves), still under its segment's name."""
    LINKING = 5
    """Without a name, on a disk that was asked to give it one and has not answered. Its create has ended."""
    LINKING_TOO_LATE = 6
    """The same, and another file has had the name since: GIVEN_UP if its disk answers."""


class SizeChange(Enum):
    """The answer of a new segment's disk to the change to its full size."""

    NONE = "none"
    """There is no such change, or its disk has made it."""
    UNDER_WAY = "under way"
    FAILED = "failed"
    """An error, to this change or to one before it."""


class Segment:
    """One backing file. `attributes` is the last known state of it.

    `placed_as` is its file name where that is not the segment's own name (roles TEMPORARY and RETIRED).
    """

    __slots__ = ("attributes", "base_offset", "disk", "ino", "is_compared", "placed_as", "role", "size_change")

    def __init__(
        self,
        base_offset: BaseOffset,
        disk: DiskNumber,
        attributes: PackedAttributes,
        role: Role = Role.SEGMENT,
        placed_as: bytes = b"",
    ) -> None:
        self.base_offset = base_offset
        self.disk = disk
        self.ino = ino_of(attributes)
        self.attributes = attributes
        self.role = role
        self.placed_as = placed_as
        self.size_change = SizeChange.NONE
        """With any other one the size is not known: what a stat sees may never get to the disk."""
        self.is_compared: bool | None = None
        """Whether the move that has made this file, and all before it, have compared the content with the
        segment's checksum. None if this daemon knows of no such move, or it was undone."""

    @property
    def name(self) -> bytes:
        """The file's name in its directory."""
        return self.placed_as or format_segment_name(self.base_offset)

    @property
    def path(self) -> bytes:
        """The file's path below its disk's directory."""
        return layout.RETIRED_DIRECTORY + b"/" + self.placed_as if self.role is Role.RETIRED else self.name

    @property
    def size(self) -> int:
        return size_of(self.attributes)

    def __repr__(self) -> str:
        return f"Segment({self.name!r}, disk={self.disk}, ino={self.ino}, {self.role.name.lower()})"


class LogRange(NamedTuple):
    """A part of a log read that lies in one segment."""

    segment: Segment
    position: int
    length: int


_NONE: Final[frozenset[BaseOffset]] = frozenset()


class Catalog:
    """Segments in order of base offset.

    Lookup by offset is O(1) while the log is contiguous, a binary search when it has gaps. Segments are
    normally added at the end and removed at the front. Gaps and partial segments are kept as ledgers: reporting
    them costs no walk over the log.
    """

    def __init__(self, segment_size: int, segments: Iterable[Segment] = ()) -> None:
        """`segments` come in order of base offset. Raises ValueError as `add` does."""
        self.segment_size = segment_size
        self._segments: list[Segment] = list(segments)
        self._bases: list[BaseOffset] = [segment.base_offset for segment in self._segments]
        self._by_ino: dict[DiskNumber, dict[int, Segment]] = {}
        self._without_checksum: dict[DiskNumber, set[BaseOffset]] = {}
        for before, after in pairwise(self._bases):
            if before >= after:
                raise ValueError(f"base offset {after} is taken or out of order")
        self._gaps = gaps_between(self._bases, segment_size)
        self._partial = {s.base_offset: s for s in self._segments if s.size != segment_size}
        for segment in self._segments:
            self._record_ino(segment)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def at(self, index: int) -> Segment:
        """The segment with this number, from the oldest on. Raises IndexError."""
        return self._segments[index]

    @property
    def first(self) -> Segment | None:
        return self._segments[0] if self._segments else None

    @property
    def last(self) -> Segment | None:
        return self._segments[-1] if self._segments else None

    def newest(self, count: int) -> list[Segment]:
        """The last `count` segments, or all there are, in order."""
        return self._segments[-count:]

    def is_settled(self, segment: Segment) -> bool:
        """Whether a segment of the log is whole, and not among the newest, to which a broker writes."""
        return segment.size == self.segment_size and self.is_sealed(segment)

    def is_sealed(self, segment: Segment) -> bool:
        """Whether a segment of the log is not among the newest. Only a change on its disk, past the daemon, makes
        such a segment shorter than it was, be it to nothing."""
        if not self.holds(segment):
            return False
        return segment not in self.newest(NEWEST_KEPT)

    def oldest(self, count: int) -> list[Segment]:
        """The first `count` segments, or all there are, in order."""
        return self._segments[:count]

    def get(self, base_offset: int) -> Segment | None:
        """The segment that begins exactly at `base_offset`."""
        index = self._index_at_or_before(base_offset)
        if index < 0:
            return None
        segment = self._segments[index]
        return segment if segment.base_offset == base_offset else None

    def find(self, log_offset: int) -> Segment | None:
        """The segment that holds `log_offset`; None before, after and inside a gap."""
        index = self._index_at_or_before(log_offset)
        if index < 0:
            return None
        segment = self._segments[index]
        return segment if log_offset - segment.base_offset < self.segment_size else None

    def holds(self, segment: Segment) -> bool:
        """Whether this file is a segment of the log now, and no other one of the same inode."""
        return self.by_ino(segment.disk, segment.ino) is segment

    def by_ino(self, disk: DiskNumber, ino: int) -> Segment | None:
        inos = self._by_ino.get(disk)
        return None if inos is None else inos.get(ino)

    def on_disk(self, disk: DiskNumber) -> list[Segment]:
        """The segments on one disk, in no particular order."""
        return list(self._by_ino.get(disk, {}).values())

    def count_on_disk(self, disk: DiskNumber) -> int:
        return len(self._by_ino.get(disk, ()))

    def record_size(self, segment: Segment) -> None:
        """To be called when the size of a segment in the catalog has changed."""
        if segment.size != self.segment_size:
            self._partial[segment.base_offset] = segment
        else:
            self._partial.pop(segment.base_offset, None)

    @property
    def partial_count(self) -> int:
        """Number of segments of another size than the segment size."""
        return len(self._partial)

    def whole_count_on_disk(self, disk: DiskNumber) -> int:
        """Number of segments on one disk that have the segment size."""
        return self.count_on_disk(disk) - sum(segment.disk == disk for segment in self._partial.values())

    @property
    def first_whole(self) -> Segment | None:
        """The first segment that has the segment size."""
        return next((segment for segment in self._segments if segment.base_offset not in self._partial), None)

    @property
    def last_whole(self) -> Segment | None:
        """The last segment that has the segment size."""
        newest_first = reversed(self._segments)
        return next((segment for segment in newest_first if segment.base_offset not in self._partial), None)

    def predecessor(self, base_offset: int) -> Segment | None:
        """The nearest segment before `base_offset`, contiguous or not."""
        index = bisect_left(self._bases, base_offset) - 1
        return self._segments[index] if index >= 0 else None

    def after(self, base_offset: int) -> Iterator[Segment]:
        """Segments with a base offset greater than `base_offset`, in order. Not to be held across changes."""
        for index in range(bisect_right(self._bases, base_offset), len(self._segments)):
            yield self._segments[index]

    # --- checksums -----------------------------------------------------------------------------------

    def without_checksum(self, disk: DiskNumber) -> Set[BaseOffset]:
        """Base offsets of the segments on a disk that are not known to have a checksum of their content. The set
        changes with the catalog."""
        return self._without_checksum.get(disk, _NONE)

    @property
    def checksum_count(self) -> int:
        """Number of segments that are known to have a checksum of their content."""
        return len(self._segments) - sum(map(len, self._without_checksum.values()))

    def record_checksum(self, segment: Segment, *, is_valid: bool) -> None:
        """Whether a segment has a checksum of its content. Nothing for a file that is not in the catalog."""
        if not self.holds(segment):
            return
        if is_valid:
            self._without_checksum[segment.disk].discard(segment.base_offset)
        else:
            self._without_checksum[segment.disk].add(segment.base_offset)

    # --- the log as one file -------------------------------------------------------------------------

    @property
    def end_offset(self) -> LogOffset:
        """The log offset just past the last whole segment; 0 for an empty log."""
        last = self.last_whole
        return LogOffset(0 if last is None else last.base_offset + self.segment_size)

    def split_range(self, offset: int, length: int) -> list[LogRange]:
        """The segments that hold log offsets [offset, offset + length), clipped at the end of the log.

        Raises LogGapError where the first byte lies in no whole segment. A gap further on ends the range
        early: what precedes it can be read.
        """
        ranges: list[LogRange] = []
        end = min(offset + length, self.end_offset)
        while offset < end:
            segment = self.find(offset)
            if segment is None or segment.size != self.segment_size:
                if ranges:
                    break
                raise LogGapError(f"log offset {offset}: no segment holds it")
            position = offset - segment.base_offset
            count = min(end - offset, self.segment_size - position)
            ranges.append(LogRange(segment, position, count))
            offset += count
        return ranges

    # --- changes -------------------------------------------------------------------------------------

    def add(self, segment: Segment) -> None:
        """Raises ValueError if the base offset or the inode is taken."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._bases[index] == segment.base_offset:
            raise ValueError(f"base offset {segment.base_offset} is taken")
        self._record_ino(segment)
        before, after = self._neighbours(index, index)
        self._drop_gap(before, after)
        self._keep_gap(before, segment.base_offset)
        self._keep_gap(segment.base_offset, after)
        self._bases.insert(index, segment.base_offset)
        self._segments.insert(index, segment)
        self.record_size(segment)

    def remove(self, segment: Segment) -> None:
        """Raises KeyError if this segment is not in the catalog."""
        if not self.holds(segment):
            raise KeyError(segment.base_offset)
        index = bisect_left(self._bases, segment.base_offset)
        before, after = self._neighbours(index, index + 1)
        self._drop_gap(before, segment.base_offset)
        self._drop_gap(segment.base_offset, after)
        self._keep_gap(before, after)
        self._partial.pop(segment.base_offset, None)
        self._without_checksum[segment.disk].discard(segment.base_offset)
        del self._by_ino[segment.disk][segment.ino]
        del self._bases[index], self._segments[index]

    def replace(self, segment: Segment, copy: Segment) -> None:
        """`copy` is the segment from now on. Raises KeyError if `segment` is not in the catalog, ValueError if the
        copy's inode is taken."""
        if not self.holds(segment):
            raise KeyError(segment.base_offset)
        self._record_ino(copy)
        if copy.disk != segment.disk:
            self._without_checksum[segment.disk].discard(segment.base_offset)
        del self._by_ino[segment.disk][segment.ino]
        self._segments[bisect_left(self._bases, segment.base_offset)] = copy
        self._partial.pop(segment.base_offset, None)
        self.record_size(copy)

    def gaps(self) -> list[tuple[BaseOffset, BaseOffset]]:
        """Missing ranges [start, end) between the first and the last segment."""
        return list(self._gaps)

    @property
    def gap_count(self) -> int:
        return len(self._gaps)

    def _neighbours(self, end: int, start: int) -> tuple[BaseOffset | None, BaseOffset | None]:
        """The base offsets before index `end` and from index `start` on."""
        before = self._bases[end - 1] if end else None
        return before, self._bases[start] if start < len(self._bases) else None

    def _keep_gap(self, before: BaseOffset | None, after: BaseOffset | None) -> None:
        """The segments at these offsets are neighbours now."""
        if before is not None and after is not None and after - before > self.segment_size:
            insort(self._gaps, (BaseOffset(before + self.segment_size), after))

    def _drop_gap(self, before: BaseOffset | None, after: BaseOffset | None) -> None:
        """They are no longer."""
        if before is not None and after is not None and after - before > self.segment_size:
            del self._gaps[bisect_left(self._gaps, (BaseOffset(before + self.segment_size), after))]

    def _record_ino(self, segment: Segment) -> None:
        inos = self._by_ino.setdefault(segment.disk, {})
        if inos.setdefault(segment.ino, segment) is not segment:
            raise ValueError(f"disk {segment.disk} inode {segment.ino} is taken")
        self._without_checksum.setdefault(segment.disk, set()).add(segment.base_offset)

    def _index_at_or_before(self, offset: int) -> int:
        """Index of the last segment with base offset <= `offset`, -1 if there is none."""
        bases = self._bases
        if not bases or offset < bases[0]:
            return -1
        guess = offset // self.segment_size - bases[0] // self.segment_size
        if guess >= len(bases):
            guess = len(bases) - 1
        # Contiguous up to here exactly when the segment at the guessed place has the expected offset.
        if bases[guess] <= offset < bases[guess] + self.segment_size:
            return guess
        return bisect_right(bases, offset) - 1
