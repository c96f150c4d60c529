"""The records of one split, as buffers of whole records and the places where they begin."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from commitlogfs.pipeline.errors import AmbiguousSplitError, DamagedLogError
from commitlogfs.pipeline.segments import SegmentFile, open_segment
from commitlogfs.pipeline.splits import Split
from commitlogfs.pipeline.walk import REASONS, Bytes, Ended, Longs
from commitlogfs.pipeline.window import Window


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

    A split in the middle of a segment begins at the first place that proves to be a record. That is only
    right where no record holds another one at its own place in its body; the split before it, which knows
    where records begin, looks for that at its end. The memory used is a window or one record, whichever is
    larger. Raises DamagedLogError (FAILFAST), AmbiguousSplitError, SegmentGoneError, LocationError.
    """
    segment = split.segment
    with open_segment(segment) as reader:
        window = Window(segment, reader)
        at = split.start if split.start == 0 else window.find(split.start, split.stop)
        needed = 0
        while at is not None and at < split.stop:
            window.load(at, needed)
            positions, walked = window.walk(at, split.stop)
            end, needed = walked.position, walked.needed
            if len(positions):
                yield Chunk(window.data, segment.base_offset + window.begin, positions, segment)
            if walked.ended in (Ended.MORE, Ended.FULL):
                at = end
            elif walked.ended in REASONS:
                at = window.find(end, segment.size)
                yield _skip(split, end, segment.size if at is None else at, REASONS[walked.ended], mode)
                needed = 0
            else:
                _verify_border(split, window, end, blank=walked.ended is Ended.BLANK)
                at = None


def _skip(split: Split, start: int, stop: int, reason: str, mode: DamageMode) -> Damage:
    offset = split.segment.base_offset + start
    if mode is DamageMode.FAILFAST:
        raise DamagedLogError(split.segment.name, offset, reason)
    return Damage(offset, stop - start, reason, split.segment.name)


def _verify_border(split: Split, window: Window, end: int, *, blank: bool) -> None:
    """No later split may begin inside the record, or the blank record, that reaches over this one's stop."""
    size = split.segment.size
    seeming = window.find(max(split.stop, end + 1), size) if blank else window.find(split.stop, end)
    if seeming is not None and seeming < size:
        raise AmbiguousSplitError(
            f"segment {split.segment.name}, log offset {split.segment.base_offset + seeming}: what looks like a "
            f"record lies inside another one: read whole segments, with splitSize={size}"
        )
