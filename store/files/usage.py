"""How full a disk is, by RocketMQ's own arithmetic."""

import os
from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One measurement of a filesystem, in bytes. `free` counts root's reserve, `available` does not."""

    total_bytes: int
    free_bytes: int
    available_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes

    @property
    def entire_bytes(self) -> int:
        """Denominator of the ratio: used + available (UtilAll#getDiskPartitionSpaceUsedPercent)."""
        return self.used_bytes + self.available_bytes

    @property
    def used_ratio(self) -> Fraction:
        """Exact used / (used + available), 0 to 1; an empty measurement counts as full."""
        return Fraction(self.used_bytes, self.entire_bytes) if self.entire_bytes > 0 else Fraction(1)

    @property
    def used_percent(self) -> float:
        return float(self.used_ratio * 100)

    def is_at_or_above(self, percent: int) -> bool:
        """Exact, and in integers: asked for every planned removal."""
        entire = self.entire_bytes
        return entire <= 0 or self.used_bytes * 100 >= percent * entire

    def with_pending_free(self, pending_bytes: int) -> "DiskUsage":
        """The usage once `pending_bytes` of removed but still open segments are given back."""
        pending = max(0, min(pending_bytes, self.used_bytes))
        return replace(
            self,
            free_bytes=self.free_bytes + pending,
            available_bytes=self.available_bytes + pending,
        )


@dataclass(frozen=True, slots=True)
class UsageAfter(DiskUsage):
    """The usage after a file was removed."""

    gained_bytes: int = 0
    """Bytes that became free meanwhile."""


def measure_usage(directory: int | str) -> DiskUsage:
    """statvfs of the filesystem behind a directory's descriptor or path. Raises OSError."""
    st = os.statvfs(directory)
    return DiskUsage(st.f_blocks * st.f_frsize, st.f_bfree * st.f_frsize, st.f_bavail * st.f_frsize)
