"""How fast the log grows and when a disk reaches its next threshold. Pure."""

import math
from dataclasses import dataclass
from fractions import Fraction

from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.usage import DiskUsage

RECENT_SEGMENTS = 16
"""The rate is that of the newest so many segments."""


@dataclass(frozen=True, slots=True)
class NextThreshold:
    """The lowest threshold a disk has not reached yet."""

    name: str
    percent: float
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


def seconds_until(usage: DiskUsage, percent: float, bytes_per_second: float) -> float | None:
    """Until a disk is at `percent`: 0.0 if it is, None if it never will be."""
    if usage.is_at_or_above(percent):
        return 0.0
    missing = math.ceil(Fraction(percent) * usage.entire_bytes / 100) - usage.used_bytes
    return missing / bytes_per_second if bytes_per_second > 0 else None


def next_threshold(usage: DiskUsage, thresholds: Thresholds, bytes_per_second: float) -> NextThreshold | None:
    """None for a disk at or above `full`. `bytes_per_second` is this disk's share of the ingest."""
    for name, percent in (
        ("clean", thresholds.clean),
        ("force", thresholds.force),
        ("full", thresholds.full),
    ):
        if not usage.is_at_or_above(percent):
            missing = math.ceil(Fraction(percent) * usage.entire_bytes / 100) - usage.used_bytes
            eta = missing / bytes_per_second if bytes_per_second > 0 else None
            return NextThreshold(name, percent, missing, eta)
    return None
