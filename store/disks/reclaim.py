"""Whether removing segments really frees space on a disk. Pure.

A segment that somebody holds by a hard link, a copy that shares its blocks (reflink) or a descriptor of his own
looks like any other, and frees nothing when it goes. Believed each time anew, the promise would empty the log. So
what a removal gave is compared with what it had promised, and a disk where several in a row gave nothing is
*barren*: no removal counts on it until its free space has risen by itself, or a long time has passed; then one more
is tried.

What a removal gave is measured right around it by whoever removes, so that other writers hardly count; if the space
comes later after all, it rises by itself.
"""

from dataclasses import dataclass
from typing import Final

from commitlogfs.store.disks.identity import DiskNumber

FRUITLESS_REMOVALS: Final = 3
"""In a row, until a disk is barren."""
TRY_AGAIN_S: Final = 3600.0


@dataclass(slots=True)
class FruitlessRemovals:
    """Of one disk, since a removal there has last given what it promised."""

    in_a_row: int
    lowest_free_bytes: int
    """Since the latest of them: what a rise is measured from."""
    since_s: float
    reclaimed_nothing: bool = False


class ReclaimedSpace:
    """What removals have given, by disk. Times are monotonic seconds."""

    def __init__(self, segment_size: int) -> None:
        self._enough_bytes = segment_size // 2
        self._records: dict[DiskNumber, FruitlessRemovals] = {}

    def record_removal(
        self, disk: DiskNumber, promised_bytes: int, gained_bytes: int, free_bytes: int, now_s: float
    ) -> None:
        """`promised_bytes` is what was counted on: nothing promised proves nothing. `free_bytes` is what the disk
        says afterwards."""
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
        """A measurement that no removal has caused."""
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
        """For a successor of this daemon."""
        return self._records

    def resume(self, disk: DiskNumber, record: FruitlessRemovals) -> None:
        """What a former daemon has found."""
        self._records[disk] = record

    def reclaims_nothing(self, disk: DiskNumber, now_s: float) -> bool:
        record = self._records.get(disk)
        return record is not None and record.in_a_row >= FRUITLESS_REMOVALS and now_s - record.since_s < TRY_AGAIN_S
