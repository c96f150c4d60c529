"""Whether the wall clock can be believed: it is what the age of a segment is told by. Pure."""

from dataclasses import dataclass
from typing import Final

from commitlogfs.store.retention.facts import Moment

TOLERANCE_S: Final = 60.0
"""Less is the daily work of NTP; ages are judged in hours."""


@dataclass(frozen=True, slots=True)
class ClockWatch:
    """The wall clock's lead over the steady one when it was first seen. Time zones and summer time do not touch
    it. A jump back to the truth ends the disagreement; a jump to the truth does not: only a new mount, or a daemon
    restarted by somebody who has looked, takes the present time for granted. One that follows a dead one does not.
    """

    lead_s: float

    @classmethod
    def begin(cls, moment: Moment) -> "ClockWatch":
        return cls(_lead(moment))

    def jumped_by(self, moment: Moment) -> float:
        """Seconds, 0.0 while both agree."""
        difference = _lead(moment) - self.lead_s
        return difference if abs(difference) > TOLERANCE_S else 0.0


def _lead(moment: Moment) -> float:
    return moment.wall_ns / 1e9 - moment.steady_s
