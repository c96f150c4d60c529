"""Divides a log into ranges that are read independently: whole segments, or parts of them."""

from dataclasses import dataclass

from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile

DEFAULT_SPLIT_BYTES = 128 << 20
_MOST_SPLITS = 2_000_000
"""Limit on the number of splits. Each costs the driver some hundred bytes and a task; 60 TB have 500,000 splits of
the default size."""


@dataclass(frozen=True, slots=True)
class Split:
    """Positions [start, stop) of one segment. A record belongs to the split in which it begins."""

    segment: SegmentFile
    start: int
    stop: int
    exact: bool
    """Whether a record must begin at `start`; otherwise the split begins with the first record from there on."""
    alone: bool
    """Whether the split before this one is not read, so that this one has to find its first record without it."""
    limit: int
    """End of the requested range in this segment: at or after `stop`."""

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
    """The splits of the records that begin in [start_offset, end_offset) of the log, in order.

    `end_offset`: the end of the log (`tail.find_end`) or an earlier place; everything before it must be written.
    `exact_start`: a record is known to begin at `start_offset`, so that anything else there is damage. Opens no
    file. Raises OptionError for more splits than Spark can handle.
    """
    count = sum(segment.end_offset > start_offset for segment in listing.segments)
    count += max(0, end_offset - max(start_offset, listing.begin_offset)) // split_size
    if count > _MOST_SPLITS:
        raise OptionError(
            f"splitSize = {split_size}: the log has some {count:,} splits of this size, more than the limit of "
            f"{_MOST_SPLITS:,}; set a larger splitSize or a smaller minPartitions"
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
