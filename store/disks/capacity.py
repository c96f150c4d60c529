"""Whether a disk is large enough for the segments of a pool. Pure."""

from typing import Final

from commitlogfs.store.errors import PoolError
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.thresholds import Thresholds

KEPT_SEGMENTS: Final = 3
"""Number of the newest segments, which no rule removes: the active one, the one made ahead, and the one that a
recovery starts from."""


def compare_size(path: str, usage: DiskUsage, thresholds: Thresholds, segment_size: int) -> list[Finding]:
    """A finding for a disk that would not have room for the segments that a pool never removes, even if it were
    empty. A warning only: the segments of a disk that the pool has already are served."""
    fits = segments_fitting(usage, thresholds, segment_size)
    if fits >= KEPT_SEGMENTS:
        return []
    effect = f"only {fits} of them, and the newest {KEPT_SEGMENTS} are never removed" if fits else "none of them"
    limits = f"below full = {thresholds.full} %"
    if thresholds.min_free_bytes:
        limits += f" and beside min_free = {thresholds.min_free_bytes:,}"
    return [
        Finding(
            FindingCode.DISK_TOO_SMALL,
            Severity.WARNING,
            path,
            "",
            f"its filesystem has {usage.total_bytes:,} bytes, and segments have {segment_size:,} (segment_size): "
            f"{limits}, it has room for {effect}",
            "use a larger disk, or make the pool with a smaller segment_size (and mappedFileSizeCommitLog)",
        )
    ]


def require_room(path: str, usage: DiskUsage, thresholds: Thresholds, segment_size: int) -> None:
    """Raises PoolError for a disk on which no segment could be made."""
    if not segments_fitting(usage, thresholds, segment_size):
        raise PoolError("\n".join(map(str, compare_size(path, usage, thresholds, segment_size))))


def segments_fitting(usage: DiskUsage, thresholds: Thresholds, segment_size: int) -> int:
    """Segments for which an empty disk of this size has room below `full`, and beside `min_free`."""
    room = min(usage.total_bytes * thresholds.full // 100, usage.total_bytes - thresholds.min_free_bytes)
    return max(0, room) // segment_size
