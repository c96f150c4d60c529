"""When a scrub begins by itself, and in which hours it runs. Pure."""

import time
from dataclasses import dataclass
from typing import Final

DEFAULT_EVERY_S: Final = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class ScrubRules:
    """The table `[scrub]` of the configuration."""

    every_s: float = DEFAULT_EVERY_S
    """Time from the end of a scrub to the begin of the next one; 0: only by hand."""
    rate: int = 0
    """Bytes per second on each disk; 0 if none is given."""
    window: frozenset[int] = frozenset()
    """Hours of the day, in local time, in which a scheduled scrub runs; empty for all."""

    def is_open(self, now_s: float) -> bool:
        """Whether a scheduled scrub may run now. `now_s` is in seconds since 1970."""
        return not self.window or time.localtime(now_s).tm_hour in self.window

    def next_s(self, completed_s: float) -> float | None:
        """When the next scrub is due, in seconds since 1970; the window may delay it. None if none is scheduled."""
        return completed_s + self.every_s if self.every_s else None
