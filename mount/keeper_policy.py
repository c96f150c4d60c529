"""When the next daemon is started, and when no further one."""

from commitlogfs.mount.exit_codes import ExitCode

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 5.0
REFUSED_DELAY_S = 5.0
MAX_FAILED_STARTS = 10
"""In a row; one more and the keeper gives up."""


class Restarts:
    """Counts starts that failed. One is over, and with it their row, when its daemon is READY.

    So a daemon that was READY, however shortly, is replaced at once: its requests wait, and a starting one costs
    more time than any pause here would save.
    """

    def __init__(self) -> None:
        self.failed_in_row = 0

    def note_ready(self) -> None:
        self.failed_in_row = 0

    def delay_after(self, status: int | None, *, was_ready: bool) -> float | None:
        """Seconds until the next start after a daemon of a living mount has ended; None: give up.

        `status` is as of os.waitstatus_to_exitcode, None if unknown. A refusal (a version that does not know the
        state's layout, a broken configuration) is waited out for ever: open files go on without a daemon, and an
        operator can put it right.
        """
        if was_ready:
            return 0.0
        if is_refusal(status):
            return REFUSED_DELAY_S
        self.failed_in_row += 1
        if self.failed_in_row > MAX_FAILED_STARTS:
            return None
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (self.failed_in_row - 1))


def is_refusal(status: int | None) -> bool:
    """Whether a daemon that has not been READY ended for a reason that only an operator can change."""
    return status in (ExitCode.USAGE, ExitCode.REFUSED)
