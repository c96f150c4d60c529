"""The page cache before and after a scrub. Pure."""

from dataclasses import dataclass, field
from typing import Any

from commitlogfs.bench.figures import Target, in_words, target_as_json
from commitlogfs.bench.page_cache import KeptPages


@dataclass(slots=True)
class ScrubFigures:
    segments: int = 0
    """Number of segments that were read."""
    segment_size: int = 0
    pages: KeptPages = field(default_factory=KeptPages)
    """Pages of the segments that were read."""

    def targets(self) -> list[Target]:
        """The goals. A part that was not measured has none."""
        return [self.pages.target("the segments")] if self.pages.before else []

    def as_json(self) -> dict[str, Any]:
        return {
            "segments": self.segments,
            "segment_size": self.segment_size,
            **self.pages.as_json(),
            "targets": [target_as_json(target) for target in self.targets()],
        }

    def in_words(self) -> list[str]:
        if not self.pages.before:
            return []
        size = f"{self.segments} segments of {self.segment_size >> 20} MiB scrubbed"
        return [f"{size}: their cached pages {self.pages.in_words()}", *map(in_words, self.targets())]
