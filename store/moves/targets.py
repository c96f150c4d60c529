"""Where segments that leave a disk can go. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from commitlogfs.store.disks.forecast import Expiry
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Target:
    """A disk that takes segments now."""

    number: DiskNumber
    usage: DiskUsage
    """As measured: nothing that is on its way out counts as free."""
    thresholds: Thresholds


def segments_below_force(target: Target, segment_size: int) -> int:
    """Number of segments that fit on a disk below its `force` threshold, and leave its `min_free`."""
    return _segments_below(target, target.thresholds.force, segment_size)


def segments_below_clean(target: Target, segment_size: int) -> int:
    """The same for `clean`."""
    return _segments_below(target, target.thresholds.clean, segment_size)


def _segments_below(target: Target, percent: int, segment_size: int) -> int:
    usage = target.usage
    below = -(-percent * usage.entire_bytes // 100) - 1 - usage.used_bytes
    available = usage.available_bytes - target.thresholds.min_free_bytes
    return max(0, min(below, available) // segment_size)


def expiry_of(
    targets: Sequence[Target],
    segment_size: int,
    held: int,
    newer: int,
    now_s: float,
    changed_s: float,
    bytes_per_second: float,
) -> Expiry:
    """Facts about a disk that gets no new segments any more. `targets` are the disks that get them, also those
    above `force`: they get segments again when old ones are removed there. They hold `held` segments, of which
    `newer` are newer than the disk's newest, which was changed last at `changed_s`."""
    older = held - newer
    return Expiry(
        now_s,
        changed_s,
        (older + sum(segments_below_clean(target, segment_size) for target in targets)) * segment_size,
        (older + sum(segments_below_force(target, segment_size) for target in targets)) * segment_size,
        bytes_per_second,
    )


def choose_target(
    targets: Sequence[Target], segment_size: int, neighbours: Collection[DiskNumber]
) -> DiskNumber | None:
    """The disk for a segment: the least full one, rather none that holds a neighbour of it. None if it fits on
    none."""
    fitting = [target for target in targets if segments_below_force(target, segment_size)]
    if not fitting:
        return None
    best = min(fitting, key=lambda t: (t.number in neighbours, t.usage.used_ratio, t.number))
    return best.number
