"""How fast the log grows and when a disk reaches its next threshold. Pure."""

from dataclasses import dataclass

from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.usage import DiskUsage

RECENT_SEGMENTS = 16
"""The rate is that of the newest so many segments."""


@dataclass(frozen=True, slots=True)
class NextThreshold:
    """The lowest threshold a disk has not reached yet."""

    name: str
    percent: int
    missing_bytes: int
    eta_seconds: float | None
    """None while the log does not grow, or not on this disk."""


def ingest_rate(birth_times_ns: list[int], segment_size: int, now_ns: int) -> float:
    """Bytes per second, from the birth times of the newest segments; 0.0 if fewer than two are known.

    Measured up to now, so that a log that has stopped growing is seen to slow down.
    """
    known = sorted(birth for birth in birth_times_ns if 0 < birth <= now_ns)[-RECENT_SEGMENTS:]
    if len(known) < 2 or now_ns <= known[0]:
        return 0.0
    return (len(known) - 1) * segment_size * 1e9 / (now_ns - known[0])


def seconds_until(usage: DiskUsage, percent: int, bytes_per_second: float) -> float | None:
    """Until a disk is at `percent`: 0.0 if it is, None if it never will be."""
    missing = _missing_bytes(usage, percent)
    if missing <= 0:
        return 0.0
    return missing / bytes_per_second if bytes_per_second > 0 else None


def _missing_bytes(usage: DiskUsage, percent: int) -> int:
    """How much more makes a disk `is_at_or_above` this."""
    return -(-percent * usage.entire_bytes // 100) - usage.used_bytes


def next_threshold(usage: DiskUsage, thresholds: Thresholds, bytes_per_second: float) -> NextThreshold | None:
    """None for a disk at or above `full`. `bytes_per_second` is this disk's share of the ingest."""
    for name, percent in (
        ("clean", thresholds.clean),
        ("force", thresholds.force),
        ("full", thresholds.full),
    ):
        if not usage.is_at_or_above(percent):
            eta = seconds_until(usage, percent, bytes_per_second)
            return NextThreshold(name, percent, _missing_bytes(usage, percent), eta)
    return None
