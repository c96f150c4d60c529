"""How exactly a move keeps to a given rate, and what it leaves of the page cache. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from commitlogfs.bench.figures import Target, median, target_as_json

DEVIATION_LIMIT: Final = 0.05
CHANGE_LIMIT_S: Final = 1.0
CACHE_LIMIT: Final = 0.01


@dataclass(slots=True)
class RateChange:
    from_rate: int
    to_rate: int
    seconds: float | None
    """From the daemon's answer until the new rate applies; None if it never did."""


@dataclass(slots=True)
class MoveFigures:
    rate: int = 0
    """Bytes per second, as given with --rate."""
    window_s: float = 0.0
    measured: list[float] = field(default_factory=list)
    """Bytes per second in each window."""
    changes: list[RateChange] = field(default_factory=list)
    moved_segments: int = 0
    segment_size: int = 0
    hot_pages: int = 0
    """Cached pages of the segments that are not moved, before the move."""
    hot_pages_after: int = 0
    control_pages: int = 0
    """Cached pages of a file that has nothing to do with the pool: some machines reclaim idle pages at any time."""
    control_pages_after: int = 0
    copied_pages: int = 0
    """Pages of the segments that were moved."""
    copied_pages_cached: int = 0
    """Number of those that are in the page cache afterwards."""

    @property
    def deviation(self) -> float:
        """Difference between the worst window and the rate, as a part of the rate."""
        return max(abs(rate / self.rate - 1) for rate in self.measured)

    def targets(self) -> list[Target]:
        """The goals. A part that was not measured has none."""
        found = []
        if self.measured:
            name = f"deviation from --rate, worst of {len(self.measured)} windows of {self.window_s:g} s"
            found.append(Target(name, round(self.deviation, 4), DEVIATION_LIMIT, ""))
        if self.changes:
            name = f"a changed rate applies, slowest of {len(self.changes)}"
            found.append(Target(name, slowest(self.changes), CHANGE_LIMIT_S, "s"))
        if self.hot_pages:
            kept = self.hot_pages_after / self.hot_pages
            kept_elsewhere = self.control_pages_after / self.control_pages
            lost = round(max(0.0, kept_elsewhere - kept), 4)
            name = "cached pages of other segments that are gone, beyond those of a file elsewhere"
            found.append(Target(name, lost, CACHE_LIMIT, ""))
            cached = self.copied_pages_cached / self.copied_pages
            found.append(Target("cached part of the copies", round(cached, 4), CACHE_LIMIT, ""))
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "rate_bytes_per_second": self.rate,
            "window_seconds": self.window_s,
            "measured_bytes_per_second": [round(rate) for rate in self.measured],
            "changes": [
                {"from": change.from_rate, "to": change.to_rate, "seconds": change.seconds}
                for change in self.changes
            ],
            "moved_segments": self.moved_segments,
            "segment_size": self.segment_size,
            "other_cached_pages": {"before": self.hot_pages, "after": self.hot_pages_after},
            "control_cached_pages": {"before": self.control_pages, "after": self.control_pages_after},
            "copied_pages": {"all": self.copied_pages, "cached": self.copied_pages_cached},
            "targets": [target_as_json(target) for target in self.targets()],
        }

    def in_words(self) -> list[str]:
        lines = []
        if self.measured:
            shown = f"{median(self.measured) / 1e6:.2f} MB/s ({min(self.measured) / 1e6:.2f} .. "
            shown += f"{max(self.measured) / 1e6:.2f})"
            lines.append(f"move at --rate {self.rate / 1e6:.2f} MB/s: {shown} in windows of {self.window_s:g} s")
        if self.hot_pages:
            lines.append(
                f"{self.moved_segments} segments of {self.segment_size >> 20} MiB moved: cached pages of other "
                f"segments {self.hot_pages:,} before, {self.hot_pages_after:,} after; of a file elsewhere "
                f"{self.control_pages:,} and {self.control_pages_after:,}; of {self.copied_pages:,} copied pages "
                f"{self.copied_pages_cached:,} cached"
            )
        for target in self.targets():
            verdict = "met" if target.is_met else "missed"
            value = f"{target.value:.2f} s" if target.unit == "s" else f"{target.value:.2%}"
            limit = f"{target.limit:g} s" if target.unit == "s" else f"{target.limit:.0%}"
            lines.append(f"{target.name}: {value}, required < {limit}: {verdict}")
        return lines


def slowest(changes: Sequence[RateChange]) -> float:
    """Infinite if a change never applied."""
    return max(float("inf") if change.seconds is None else change.seconds for change in changes)
