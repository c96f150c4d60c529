"""When the next daemon is started, when no further one, and when a silent daemon is at fault."""

from collections.abc import Callable

from commitlogfs.console.exit_status import ExitCode

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 5.0
REFUSED_DELAY_S = 5.0
MAX_FAILED_STARTS = 10
"""In a row; one more, and the keeper gives up a mount that nobody holds."""

LONGEST_SILENCE_S = 30.0
COUNTING_SHARE = 0.1
"""Of the watchdog interval: a shorter wait for a processor is no excuse."""


class Restarts:
    """Counts the starts in a row that failed. A start has not failed when its daemon has answered a request.

    A daemon that has answered is replaced at once, however short its life was: requests wait, and the start of the
    next one takes longer than any pause here.
    """

    def __init__(self) -> None:
        self.failed_in_row = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether only the holders of the mount are a reason for further starts."""
        return self.failed_in_row > MAX_FAILED_STARTS

    def record_served(self) -> None:
        self.failed_in_row = 0

    def delay_after(self, status: int | None, *, has_served: bool, is_held: Callable[[], bool]) -> float | None:
        """Seconds until the next start after a daemon of a living mount has ended; None: give up.

        `status` is as of os.waitstatus_to_exitcode, None if unknown. `is_held` is called only when the answer
        depends on it. A mount that somebody holds is never given up, and neither is one that successors refuse (a
        version that does not know the state's layout, a broken configuration): open files continue to work without
        a daemon, and an operator can correct the cause.
        """
        if has_served:
            return 0.0
        if is_refusal(status):
            return REFUSED_DELAY_S
        self.failed_in_row += 1
        if self.is_hopeless and not is_held():
            return None
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (self.failed_in_row - 1))


def is_refusal(status: int | None) -> bool:
    """Whether a daemon that has not been READY ended for a reason that only an operator can change."""
    return status in (ExitCode.USAGE, ExitCode.REFUSED)


def patience(*, silent_s: float, starved_s: float, late_s: float, interval_s: float) -> float:
    """Seconds to wait longer for a daemon that has been silent for its watchdog interval; 0: it hangs.

    The time in which it waited for a processor (`starved_s`), or in which the keeper itself did (`late_s`, a
    machine that stood still), does not count as silence; but nobody is waited for longer than LONGEST_SILENCE_S.
    """
    excused = max(starved_s, late_s)
    if excused < interval_s * COUNTING_SHARE or silent_s >= max(LONGEST_SILENCE_S, interval_s):
        return 0.0
    return min(excused, interval_s)
