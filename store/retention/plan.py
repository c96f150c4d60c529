"""The segments whose removal reaches a goal: always the shortest prefix of the log that does. Pure."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from commitlogfs.store.disks.capacity import KEPT_SEGMENTS
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention.facts import DiskFacts, SegmentFacts, Snapshot

Usages = Mapping[DiskNumber, DiskUsage]
Goal = Callable[[Usages], bool]
"""Whether enough has been removed, by the usage of the writable disks. More free space never undoes it."""


def removable_prefix(snapshot: Snapshot) -> Iterator[SegmentFacts]:
    """Segments that may be removed now, oldest first.

    The prefix ends before the newest KEPT_SEGMENTS, and before the first segment that cannot be removed now,
    because removing a later one would leave a hole. Segments on a lost disk count as absent and are passed over.
    """
    if snapshot.is_removing:
        return
    disks = {disk.number: disk for disk in snapshot.disks}
    for segment in itertools.islice(snapshot.log, max(0, len(snapshot.log) - KEPT_SEGMENTS)):
        disk = disks.get(segment.disk)
        if disk is not None and disk.is_lost:
            continue
        if disk is None or not disk.allows_removal:
            return
        yield segment


def obstacle(snapshot: Snapshot) -> tuple[SegmentFacts, DiskFacts] | None:
    """The oldest segment that cannot be removed because of the state of its disk, if there is one."""
    closed = {disk.number: disk for disk in snapshot.disks if not disk.allows_removal and not disk.is_lost}
    if not closed:
        return None
    older = itertools.islice(snapshot.log, max(0, len(snapshot.log) - KEPT_SEGMENTS))
    return next(((segment, closed[segment.disk]) for segment in older if segment.disk in closed), None)


def plan_prefix(snapshot: Snapshot, goal: Goal) -> tuple[SegmentFacts, ...] | None:
    """The shortest prefix whose removal reaches the goal: () if it is reached already, None if no prefix reaches
    it."""
    usages = usages_of(snapshot)
    if goal(usages):
        return ()
    if not goal(best_case(snapshot)):
        return None
    planned = []
    not_reclaiming = disks_not_reclaiming(snapshot)
    for segment in removable_prefix(snapshot):
        planned.append(segment)
        if segment.disk in usages and segment.disk not in not_reclaiming:
            usages[segment.disk] = usages[segment.disk].with_pending_free(segment.allocated_bytes)
            if goal(usages):
                return tuple(planned)
    return None


def usages_of(snapshot: Snapshot) -> dict[DiskNumber, DiskUsage]:
    """Usages of the writable disks."""
    return {disk.number: disk.usage for disk in snapshot.writable() if disk.usage is not None}


def best_case(snapshot: Snapshot) -> dict[DiskNumber, DiskUsage]:
    """Usages after the removal of all segments except the newest KEPT_SEGMENTS.

    Each segment counts with its full size: an upper bound that needs no walk over the log.
    """
    kept = Counter(segment.disk for segment in snapshot.log.newest(KEPT_SEGMENTS))
    not_reclaiming = disks_not_reclaiming(snapshot)
    size = snapshot.log.segment_size
    return {
        number: usage.with_pending_free(
            0 if number in not_reclaiming else (snapshot.log.count_on(number) - kept[number]) * size
        )
        for number, usage in usages_of(snapshot).items()
    }


def disks_not_reclaiming(snapshot: Snapshot) -> frozenset[DiskNumber]:
    """Disks where the latest removals freed no space, so that none is expected to."""
    return frozenset(disk.number for disk in snapshot.disks if disk.reclaims_nothing)
