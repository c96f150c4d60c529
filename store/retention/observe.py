"""Snapshot of the open log for the rules. Touches memory only."""

from collections.abc import Callable, Iterator, Mapping

from commitlogfs.store.disks import health
from commitlogfs.store.disks.lost_writes import LostWrite
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.files.remove import Reason, reason_of
from commitlogfs.store.pool.catalog import Catalog, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.retention.facts import DiskFacts, HeldFacts, Moment, RefusedFacts, SegmentFacts, Snapshot


class CatalogFacts:
    """The catalog as LogFacts."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def segment_size(self) -> int:
        return self._catalog.segment_size

    def __len__(self) -> int:
        return len(self._catalog)

    def __iter__(self) -> Iterator[SegmentFacts]:
        return map(_facts_of, self._catalog)

    def newest(self, count: int) -> tuple[SegmentFacts, ...]:
        return tuple(map(_facts_of, self._catalog.newest(count)))

    def count_on(self, disk: DiskNumber) -> int:
        return self._catalog.count_on_disk(disk)


def observe(
    log: CommitLog,
    moment: Moment,
    held_since_s: Callable[[Segment], float],
    lost_writes: Mapping[DiskNumber, tuple[LostWrite, ...]],
    refused: RefusedFacts | None = None,
) -> Snapshot:
    """Snapshot with the latest measurements. `held_since_s` returns the steady time at which a segment was retired;
    `lost_writes` are those of the disks that have lost some."""
    now_s = log.clock.monotonic()
    disks = tuple(
        DiskFacts(
            disk.number,
            disk.path,
            disk.present_state,
            log.space.measured(disk.number),
            log.others.pending_bytes(disk.number),
            disk.thresholds,
            reclaims_nothing=log.space.reclaims_nothing(disk.number),
            is_troubled=disk.is_troubled,
            is_lost=health.is_lost(disk, now_s, log.timing.health),
            lost_writes=lost_writes.get(disk.number, ()),
            is_unresponsive=disk.is_unresponsive,
            is_vanished=disk.is_vanished,
            is_slow=disk.is_slow,
        )
        for disk in log.disks.values()
    )
    held = tuple(
        HeldFacts(file.base_offset, file.disk, log.others.punchable_bytes(file), held_since_s(file), file.ino)
        for file in log.others.retired()
        if reason_of(file.placed_as) is Reason.FORCED
    )
    return Snapshot(moment, disks, CatalogFacts(log.catalog), held, log.is_removing, refused)


def _facts_of(segment: Segment) -> SegmentFacts:
    attributes = unpack(segment.attributes)
    gain = attributes.allocated_bytes if attributes.nlink <= 1 else 0  # another name keeps the blocks
    return SegmentFacts(segment.base_offset, segment.disk, gain, attributes.mtime_ns)
