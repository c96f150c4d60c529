"""When a scrub begins by itself, and in which hours it runs. Pure."""

import time
from dataclasses import dataclass
from typing import Final

DEFAULT_EVERY_S: Final = 7 * 86400.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0


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

    def elapsed_s(self, now_s: float, work_s: float) -> float:
        """Time from now on until a scheduled scrub has been at work for `work_s`."""
        if not self.window:
            return work_s
        open_s = len(self.window) * _HOUR_S
        whole_days = max(0.0, work_s // open_s - 1)
        at_s, left_s = now_s + whole_days * _DAY_S, work_s - whole_days * open_s
        while True:
            local = time.localtime(at_s)
            hour_s = max(1.0, _HOUR_S - local.tm_min * 60 - local.tm_sec)
            if self.is_open(at_s):
                if left_s <= hour_s:
                    return at_s + left_s - now_s
                left_s -= hour_s
            at_s += hour_s

    def next_s(self, completed_s: float) -> float | None:
        """When the next scrub is due, in seconds since 1970; the window may delay it. None if none is scheduled."""
        return completed_s + self.every_s if self.every_s else None
