"""The records of one split, as buffers of whole records and the places where they begin."""

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
    """A range of the log that holds no readable record and was skipped."""

    offset: int
    length: int
    reason: str
    segment: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records. `data` and `positions` are valid until the next chunk is asked for."""

    data: Bytes
    offset: int
    """Log offset of data[0]."""
    positions: Longs
    """Where in data each record begins, ascending; all its lengths are proven."""
    segment: SegmentFile


def scan_split(split: Split, mode: DamageMode = DamageMode.FAILFAST) -> Iterator[Chunk | Damage]:
    """The records that begin in `split`, in their order.

    A split in the middle of a segment begins at the first place that proves to be a record. That is right
    because the split before it, which knows where records begin, proves it at its own end: nothing that looks
    like a record lies inside its last one, and the next one begins where that ends. So a damage belongs to the
    split of the last record before it. A split without one before it is walked to from the segment's begin, and
    tells of the damage in which it begins.
    The memory used is a window or one record, whichever is larger.

    Raises DamagedLogError (FAILFAST), AmbiguousSplitError, SegmentGoneError, LocationError.
    """
    with open_segment(split.segment) as reader:
        yield from _Scan(split, mode, Window(split.segment, reader)).run()


class _Scan:
    """Positions are the segment's."""

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
                    self._refuse_seeming(max(split.stop, end + 1), self._segment.size)
                else:
                    self._refuse_seeming(split.stop, end)
                    yield from self._check_next(end)
                return

    def _first_place(self) -> tuple[int | None, tuple[int, str] | None]:
        """Where to begin; and begin and reason of the damage that was passed over to come there, unless another
        split tells of it."""
        split, window = self._split, self._window
        if split.exact:
            return split.start, None
        if not split.alone:
            return window.find(split.start, split.stop), None
        way = window.walk_to(split.start, split.limit)
        return way.first, way.damage

    def _refuse_seeming(self, start: int, stop: int) -> None:
        """What lies in [start, stop) is inside a record: no later split may take something there for one."""
        seeming = self._window.find(start, stop)
        if seeming is not None:
            raise AmbiguousSplitError(
                f"segment {self._segment.name}, log offset {self._segment.base_offset + seeming}: what looks like "
                f"a record lies inside another one: read whole segments, with splitSize={self._segment.size}"
            )

    def _check_next(self, end: int) -> Iterator[Damage]:
        """The next split looks for its first record only; what it passes over is told here."""
        if end < self._split.limit:
            following = self._window.find(end, self._split.limit)
            if following != end:
                self._window.load(end)
                _, walked = self._window.walk(end, end + 1)
                yield self._skip(end, following, REASONS.get(walked.ended, REASONS[Ended.OTHER]))

    def _skip(self, start: int, stop: int | None, reason: str) -> Damage:
        """[start, stop) holds no record, to the limit for a `stop` of None."""
        offset = self._segment.base_offset + start
        if self._mode is DamageMode.FAILFAST:
            raise DamagedLogError(self._segment.name, offset, reason)
        return Damage(offset, (stop or self._split.limit) - start, reason, self._segment.name)
