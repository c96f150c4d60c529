"""Whether the wall clock has jumped: the age of a segment is measured by it. Pure."""

from dataclasses import dataclass
from typing import Final

from commitlogfs.store.retention.facts import Moment

TOLERANCE_S: Final = 60.0
"""Smaller differences are normal corrections by NTP; ages are compared in hours."""


@dataclass(frozen=True, slots=True)
class ClockWatch:
    """Baseline of the wall clock: its lead over the steady clock at the first measurement.

    Time zones and summer time do not change it. A jump ends when the wall clock returns to the baseline. Only a new
    mount or `commitlogfs restart` sets a new baseline, because only an operator can say that the new time is right.
    A daemon that follows a dead one keeps the baseline.
    """

    lead_s: float

    @classmethod
    def begin(cls, moment: Moment) -> "ClockWatch":
        return cls(_lead(moment))

    def jumped_by(self, moment: Moment) -> float:
        """Seconds by which the wall clock differs from the baseline; 0.0 within the tolerance."""
        difference = _lead(moment) - self.lead_s
        return difference if abs(difference) > TOLERANCE_S else 0.0


def _lead(moment: Moment) -> float:
    return moment.wall_ns / 1e9 - moment.steady_s
