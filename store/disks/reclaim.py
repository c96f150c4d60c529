"""Whether removing segments really frees space on a disk. Pure.

A hard link, a copy that shares its blocks (reflink), or another process's descriptor can keep the blocks of a
segment: its removal then frees nothing. Rules that expected the space each time would empty the log. So the space
that a removal freed is compared with the space that was expected. A disk where several removals in a row freed
nothing is *not reclaiming*: no removal there is expected to free space until its free space has risen by itself, or
a long time has passed; then one more is tried.

The caller measures the free space right before and after each removal, so that other writers hardly matter. If the
blocks are freed later, the free space rises by itself.
"""

from dataclasses import dataclass
from typing import Final

from commitlogfs.store.disks.membership import DiskNumber

FRUITLESS_REMOVALS: Final = 3
"""Number of removals in a row that freed nothing, after which a disk is not reclaiming."""


@dataclass(slots=True)
class FruitlessRemovals:
    """Removals on one disk that freed too little, since the last one that freed what was expected."""

    in_a_row: int
    lowest_free_bytes: int
    """Least free space since the latest of them; a rise is measured from here."""
    since_s: float
    reclaimed_nothing: bool = False
    """Whether the disk has been not reclaiming. After a rise, one more fruitless removal then suffices."""


class ReclaimedSpace:
    """Whether removals free space, by disk. Times are monotonic seconds."""

    def __init__(self, segment_size: int, fruitless_s: float) -> None:
        """One more removal is tried `fruitless_s` after the latest one that freed nothing."""
        self._enough_bytes = segment_size // 2
        self._fruitless_s = fruitless_s
        self._records: dict[DiskNumber, FruitlessRemovals] = {}

    def record_removal(
        self, disk: DiskNumber, promised_bytes: int, gained_bytes: int, free_bytes: int, now_s: float
    ) -> None:
        """Record a removal that was expected to free `promised_bytes` and freed `gained_bytes`.

        `free_bytes` is the disk's free space afterwards. A removal that was expected to free nothing proves
        nothing.
        """
        if promised_bytes <= 0:
            return
        if gained_bytes * 2 >= promised_bytes:
            self._records.pop(disk, None)
            return
        record = self._records.setdefault(disk, FruitlessRemovals(0, free_bytes, now_s))
        record.in_a_row += 1
        record.lowest_free_bytes = free_bytes
        record.since_s = now_s
        record.reclaimed_nothing |= record.in_a_row >= FRUITLESS_REMOVALS

    def record_free(self, disk: DiskNumber, free_bytes: int) -> None:
        """Record a measurement of the disk's free space apart from removals."""
        record = self._records.get(disk)
        if record is None:
            return
        if free_bytes - record.lowest_free_bytes < self._enough_bytes:
            record.lowest_free_bytes = min(record.lowest_free_bytes, free_bytes)
        elif record.reclaimed_nothing:
            record.in_a_row = FRUITLESS_REMOVALS - 1
            record.lowest_free_bytes = free_bytes
        else:
            del self._records[disk]

    def records(self) -> dict[DiskNumber, FruitlessRemovals]:
        """Records by disk, to be stored for a successor of this daemon."""
        return self._records

    def resume(self, disk: DiskNumber, record: FruitlessRemovals) -> None:
        """Restore the record of a former daemon."""
        self._records[disk] = record

    def reclaims_nothing(self, disk: DiskNumber, now_s: float) -> bool:
        """Whether the disk is not reclaiming, and it is too early to try once more."""
        record = self._records.get(disk)
        if record is None or record.in_a_row < FRUITLESS_REMOVALS:
            return False
        return now_s - record.since_s < self._fruitless_s
