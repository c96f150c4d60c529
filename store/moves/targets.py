"""Where segments that leave a disk can go. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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
    usage, thresholds = target.usage, target.thresholds
    below_force = -(-thresholds.force * usage.entire_bytes // 100) - 1 - usage.used_bytes
    available = usage.available_bytes - thresholds.min_free_bytes
    return max(0, min(below_force, available) // segment_size)


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
