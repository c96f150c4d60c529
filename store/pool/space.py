"""How full the disks are, and what removing segments would give back."""

from collections import Counter
from collections.abc import Iterable

from commitlogfs.store.clock import Clock
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.disks.reclaim import FruitlessRemovals, ReclaimedSpace
from commitlogfs.store.files.attributes import nlink_of
from commitlogfs.store.files.usage import DiskUsage, UsageAfter
from commitlogfs.store.pool.catalog import Catalog, Segment
from commitlogfs.store.pool.other_files import OtherFiles


class Space:
    """Ledger of space, by disk: the latest measurement, and what the latest removals gave.

    Space of a removed file counts as free from its removal on, although it is free only after the last close: what
    is on its way must not be reclaimed a second time. A disk whose removals gave nothing is not counted on.
    """

    def __init__(
        self, disks: Iterable[DiskNumber], catalog: Catalog, others: OtherFiles, clock: Clock, fruitless_s: float
    ) -> None:
        """`fruitless_s`: as for ReclaimedSpace."""
        self._catalog = catalog
        self._others = others
        self._measured: dict[DiskNumber, DiskUsage | None] = dict.fromkeys(disks)
        self._reclaimed = ReclaimedSpace(catalog.segment_size, fruitless_s)
        self._clock = clock
        self._linked: Counter[DiskNumber] = Counter()

    def record_usage(self, disk: DiskNumber, usage: DiskUsage | None) -> None:
        """The latest measurement of a disk; None while it does not answer."""
        self._measured[disk] = usage
        if usage is not None:
            self._reclaimed.record_free(disk, usage.free_bytes)

    def record_removal(self, file: Segment, usage: DiskUsage) -> None:
        """The usage of its disk after a file was removed; call it while the file is still known."""
        if isinstance(usage, UsageAfter):
            promised = self._others.gainable_bytes(file)
            now_s = self._clock.monotonic()
            self._reclaimed.record_removal(file.disk, promised, usage.gained_bytes, usage.free_bytes, now_s)
        self.record_usage(file.disk, usage)

    def measured(self, disk: DiskNumber) -> DiskUsage | None:
        """The latest measurement, as the disk says."""
        return self._measured[disk]

    def usage(self, disk: DiskNumber) -> DiskUsage | None:
        """The latest measurement, with pending bytes counted as free already."""
        usage = self._measured[disk]
        return None if usage is None else usage.with_pending_free(self._others.pending_bytes(disk))

    def usages_when_closed(self) -> dict[DiskNumber, DiskUsage | None]:
        """The latest measurements, with all files counted as free that have left a disk's part of the log: also the
        sources of moves."""
        held = self._others.held_bytes()
        usages = {disk: self.usage(disk) for disk in self._measured}
        return {disk: usage and usage.with_pending_free(held[disk]) for disk, usage in usages.items()}

    def freeable_bytes(self, disk: DiskNumber) -> int:
        """Bytes that removing all segments of a disk would give back, as far as is known."""
        if self.reclaims_nothing(disk):
            return 0
        return max(0, self._catalog.count_on_disk(disk) - self._linked[disk]) * self._catalog.segment_size

    def count_links(self) -> None:
        """Walk the log for `freeable_bytes`: which segments have names that are not ours."""
        self._linked = Counter(segment.disk for segment in self._catalog if nlink_of(segment.attributes) > 1)

    def reclaims_nothing(self, disk: DiskNumber) -> bool:
        """Whether the latest removals from this disk freed nothing, so that none is to be counted on."""
        return self._reclaimed.reclaims_nothing(disk, self._clock.monotonic())

    def fruitless_removals(self) -> dict[DiskNumber, FruitlessRemovals]:
        """Disks where the latest removals have not freed what they promised."""
        return self._reclaimed.records()

    def resume_fruitless_removals(self, disk: DiskNumber, record: FruitlessRemovals) -> None:
        """Take over what a former daemon of this mount has found."""
        self._reclaimed.resume(disk, record)
