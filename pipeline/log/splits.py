"""Dividing a log into ranges that are read independently: whole segments, or parts of them."""

from dataclasses import dataclass

from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile

DEFAULT_SPLIT_BYTES = 128 << 20
_MOST_SPLITS = 2_000_000
"""Each costs the driver some hundred bytes and a task; 60 TB are 500,000 of the default size."""


@dataclass(frozen=True, slots=True)
class Split:
    """Positions [start, stop) of one segment. A record belongs to the split in which it begins."""

    segment: SegmentFile
    start: int
    stop: int
    exact: bool
    """A record must begin at `start`; else the first one from there on is meant."""
    alone: bool
    """The split before it is not read: nobody proves where this one begins, so that it has to do so itself."""
    limit: int
    """Where what is asked for ends in this segment: at or behind `stop`."""

    @property
    def start_offset(self) -> int:
        return self.segment.base_offset + self.start

    @property
    def stop_offset(self) -> int:
        return self.segment.base_offset + self.stop


def plan_splits(
    listing: LogListing,
    end_offset: int,
    *,
    start_offset: int = 0,
    exact_start: bool = False,
    split_size: int = DEFAULT_SPLIT_BYTES,
) -> list[Split]:
    """The splits of the records that begin in [start_offset, end_offset) of the log, in its order.

    `end_offset`: where the log ends (`tail.find_end`) or an earlier place; nothing before it may be unwritten.
    `exact_start`: a record is known to begin at `start_offset`, so that it is damage if there is none. No I/O:
    whatever is outside is never opened. Raises OptionError for more splits than Spark can be told of.
    """
    wanted = sum(segment.end_offset > start_offset for segment in listing.segments)
    wanted += max(0, end_offset - max(start_offset, listing.begin_offset)) // split_size
    if wanted > _MOST_SPLITS:
        raise OptionError(
            f"parts of {split_size} bytes would be some {wanted:,}, and more than {_MOST_SPLITS:,} are not "
            "planned: give a larger splitSize, or a smaller minPartitions"
        )
    splits = []
    for segment in listing.segments:
        first = max(0, start_offset - segment.base_offset)
        end = min(segment.size, end_offset - segment.base_offset)
        splits += [
            Split(
                segment,
                start,
                min(start + split_size, end),
                exact=start == 0 or (start == first and exact_start),
                alone=start == first,
                limit=end,
            )
            for start in range(first, end, split_size)
        ]
    return splits
