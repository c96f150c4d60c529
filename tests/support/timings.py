"""Times of the processes of a test, given by their environment (docs/testing.md)."""

from dataclasses import replace

from commitlogfs.mount.config.timing import VARIABLE, describe
from commitlogfs.store.timing import (
    ChecksumTiming,
    CheckTiming,
    DaemonTiming,
    HealthTiming,
    KeeperTiming,
    LostWriteTiming,
    MemberTiming,
    MoveTiming,
    Pace,
    RequestTiming,
    ScrubTiming,
    SlownessTiming,
    Timing,
    VerdictTiming,
)

_NEVER_S = 1e9

BRISK = Timing(
    requests=RequestTiming(freeing_s=0.1, commit_s=2.0, hedge_s=2.0, resize_s=3.0, refresh_s=1.0, change_s=6.0),
    health=HealthTiming(remembered_s=0.2),
    members=MemberTiming(compare_s=0.2),
    pace=Pace(idle_share=1.0, smallest_share=1.0, look_s=0.05),
    moves=MoveTiming(source_s=0.5, look_s=0.1, usage_age_s=0.1),
    checksums=ChecksumTiming(start_s=0.1, look_s=0.1, at_rest_s=0.5, changed_retry_s=0.5),
    scrub=ScrubTiming(start_s=0.1, look_s=0.1, schedule_s=0.5),
    verdicts=VerdictTiming(start_s=0.1),
    lost_writes=LostWriteTiming(look_s=0.2),
    daemon=DaemonTiming(returns_look_s=1.0),
    keeper=KeeperTiming(standby_s=3600.0),
)
"""Background work at once, and at full speed. A disk that is late because the machine is busy keeps its segment,
and its attributes are shown: tests rely on that. What else a request or a disk gets, and when something that has
failed is tried again or given up, are the defaults.

A standby is loaded for a restart only. To load one after each start of a daemon, too, would take as much processor
time as the daemons themselves, and most tests end before it is called."""
WITH_STANDBY = replace(BRISK, keeper=KeeperTiming())
"""The same, and a standby is loaded as soon as a daemon serves."""


def timing_variables(timing: Timing) -> dict[str, str]:
    """The environment variable of a daemon or a keeper with these times. There is only one: of two such results,
    one would replace the other."""
    return {VARIABLE: describe(timing)}


_NO_CHECKS = CheckTiming(first_s=_NEVER_S, successor_s=_NEVER_S)
WITHOUT_CHECKS = timing_variables(replace(BRISK, checks=_NO_CHECKS))
"""For daemons that do not check their disks: a request meets a fault first, however slow the machine."""
_NO_WORK = replace(
    BRISK,
    checksums=ChecksumTiming(start_s=_NEVER_S),
    scrub=ScrubTiming(start_s=_NEVER_S),
    lost_writes=LostWriteTiming(look_s=_NEVER_S),
)
WITHOUT_WRITES = timing_variables(replace(_NO_WORK, checks=_NO_CHECKS))
"""For daemons that write to no disk by themselves, but for records of a change: a disk that answers no write holds
none of them."""
FIRST_WITHOUT_WRITES = timing_variables(replace(_NO_WORK, checks=CheckTiming(first_s=_NEVER_S)))
"""The same for a first daemon. Its successors check their disks, without which they take none back."""
PATIENT_REQUESTS = timing_variables(Timing(requests=BRISK.requests))
"""No segment is made elsewhere, or given up, because the machine is busy; everything else as in the product."""

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
