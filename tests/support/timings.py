"""Times of the processes of a test, given by their environment (docs/testing.md)."""

from commitlogfs.mount.config.timing import VARIABLE, describe
from commitlogfs.store.timing import CheckTiming, DaemonTiming, HealthTiming, SlownessTiming, Timing

_NEVER_S = 1e9


def timing_variables(timing: Timing) -> dict[str, str]:
    """The environment variable of a daemon or a keeper with these times. There is only one: of two such results,
    one would replace the other."""
    return {VARIABLE: describe(timing)}


WITHOUT_CHECKS = timing_variables(Timing(checks=CheckTiming(first_s=_NEVER_S, successor_s=_NEVER_S)))
"""For daemons that do not check their disks: a request meets a fault first, however slow the machine."""
SOON_CHECKED = timing_variables(
    Timing(
        checks=CheckTiming(interval_s=1.0, confirm_s=0.5, observe_s=0.3), daemon=DaemonTiming(returns_look_s=1.0)
    )
)
"""For daemons that check their disks often."""
SOON_PROBED = timing_variables(Timing(slowness=SlownessTiming(probe_after_s=15.0)))
"""For daemons that probe a slow disk after seconds, not minutes."""
SOON_LOST = timing_variables(Timing(health=HealthTiming(lost_after_s=5.0)))
"""For daemons for which the segments of an unreadable disk are absent after seconds, not minutes."""
