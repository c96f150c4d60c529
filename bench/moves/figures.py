"""How exactly a move keeps to a given rate, and what it leaves of the page cache. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from commitlogfs.bench.figures import Target, in_words, median, target_as_json
from commitlogfs.bench.page_cache import CACHE_LIMIT, KeptPages

DEVIATION_LIMIT: Final = 0.05
CHANGE_LIMIT_S: Final = 1.0


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
    hot: KeptPages = field(default_factory=KeptPages)
    """Pages of the segments that are not moved."""
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
        if self.hot.before:
            found.append(self.hot.target("other segments"))
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
            **self.hot.as_json(),
            "copied_pages": {"all": self.copied_pages, "cached": self.copied_pages_cached},
            "targets": [target_as_json(target) for target in self.targets()],
        }

    def in_words(self) -> list[str]:
        lines = []
        if self.measured:
            shown = f"{median(self.measured) / 1e6:.2f} MB/s ({min(self.measured) / 1e6:.2f} .. "
            shown += f"{max(self.measured) / 1e6:.2f})"
            lines.append(f"move at --rate {self.rate / 1e6:.2f} MB/s: {shown} in windows of {self.window_s:g} s")
        if self.hot.before:
            lines.append(
                f"{self.moved_segments} segments of {self.segment_size >> 20} MiB moved: cached pages of other "
                f"segments {self.hot.in_words()}; of {self.copied_pages:,} copied pages "
                f"{self.copied_pages_cached:,} cached"
            )
        return lines + [in_words(target) for target in self.targets()]


def slowest(changes: Sequence[RateChange]) -> float:
    """Infinite if a change never applied."""
    return max(float("inf") if change.seconds is None else change.seconds for change in changes)
