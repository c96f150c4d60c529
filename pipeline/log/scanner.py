"""Reads the records of one split, as buffers of whole records and the positions where they begin."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.walk import REASONS, Ended
from commitlogfs.pipeline.log.errors import AmbiguousSplitError, DamagedLogError
from commitlogfs.pipeline.log.segments import SegmentFile, open_segment
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.log.window import Window


class DamageMode(Enum):
    FAILFAST = "FAILFAST"
    PERMISSIVE = "PERMISSIVE"


@dataclass(frozen=True, slots=True)
class Damage:
    """A skipped range of the log that holds no readable record."""

    offset: int
    length: int
    reason: str
    segment: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records. `data` and `positions` are valid until the next chunk is requested."""

    data: Bytes
    offset: int
    """Log offset of data[0]."""
    positions: Longs
    """Positions in `data` where records begin, ascending; the lengths of every record are checked."""
    segment: SegmentFile


def scan_split(split: Split, mode: DamageMode = DamageMode.FAILFAST) -> Iterator[Chunk | Damage]:
    """The records that begin in `split`, in order.

    A split in the middle of a segment begins at the first position that proves to be a record. That is correct
    because the split before it, which knows where records begin, checks its own end: no bytes inside its last
    record look like a record, and the next record begins where that one ends. So a damaged range belongs to the
    split of the last record before it. If no split before it is read, the scan walks from the segment's beginning,
    and reports the damaged range in which the split begins. Memory use is one window or one record, whichever is
    larger.

    Raises DamagedLogError (FAILFAST), AmbiguousSplitError, SegmentGoneError, LocationError.
    """
    with open_segment(split.segment) as reader:
        yield from _Scan(split, mode, Window(split.segment, reader)).run()


class _Scan:
    """The scan of one split. Positions count from the segment's first byte."""

    def __init__(self, split: Split, mode: DamageMode, window: Window) -> None:
        self._split, self._mode, self._window = split, mode, window
        self._segment = split.segment

    def run(self) -> Iterator[Chunk | Damage]:
        split, window = self._split, self._window
        at, damage = self._first_place()
        if damage is not None:
            yield self._skip(damage[0], at, damage[1])
        needed = 0
        while at is not None and at < split.stop:
            window.load(at, needed)
            positions, walked = window.walk(at, split.stop)
            end, needed = walked.position, walked.needed
            if len(positions):
                yield Chunk(window.data, self._segment.base_offset + window.begin, positions, self._segment)
            if walked.ended in (Ended.MORE, Ended.FULL):
                at = end
            elif walked.ended in REASONS:
                at = window.find(end, split.limit)
                yield self._skip(end, at, REASONS[walked.ended])
                needed = 0
            else:
                if walked.ended is Ended.BLANK:
                    self._refuse_ambiguous(max(split.stop, end + 1), self._segment.size)
                else:
                    self._refuse_ambiguous(split.stop, end)
                    yield from self._check_next(end)
                return

    def _first_place(self) -> tuple[int | None, tuple[int, str] | None]:
        """Position of the first record; and position and reason of the damaged range before it, unless another
        split reports that range."""
        split, window = self._split, self._window
        if split.exact:
            return split.start, None
        if not split.alone:
            return window.find(split.start, split.stop), None
        arrival = window.walk_to(split.start, split.limit)
        return arrival.first, arrival.damage

    def _refuse_ambiguous(self, start: int, stop: int) -> None:
        """Raises AmbiguousSplitError if bytes in [start, stop), which is inside a record, look like a record: a
        later split would take them for one."""
        seeming = self._window.find(start, stop)
        if seeming is not None:
            raise AmbiguousSplitError(
                f"segment {self._segment.name}, log offset {self._segment.base_offset + seeming}: bytes inside a "
                f"record look like a record; use splitSize={self._segment.size}, which reads whole segments"
            )

    def _check_next(self, end: int) -> Iterator[Damage]:
        """Reports what the next split passes over: it searches its first record and reports nothing before it."""
        if end < self._split.limit:
            following = self._window.find(end, self._split.limit)
            if following != end:
                self._window.load(end)
                _, walked = self._window.walk(end, end + 1)
                yield self._skip(end, following, REASONS.get(walked.ended, REASONS[Ended.OTHER]))

    def _skip(self, start: int, stop: int | None, reason: str) -> Damage:
        """Damage from `start` to `stop`, or to the split's limit if `stop` is None. Raises DamagedLogError
        (FAILFAST)."""
        offset = self._segment.base_offset + start
        if self._mode is DamageMode.FAILFAST:
            raise DamagedLogError.at(self._segment.name, offset, reason)
        return Damage(offset, (stop or self._split.limit) - start, reason, self._segment.name)
