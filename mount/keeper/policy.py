"""Decisions of the keeper: which event a message or an end of a daemon is, when the next daemon starts, when none
is started any more, and when a silent daemon is at fault. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.keeper.standby_call import PREPARE, SERVING
from commitlogfs.mount.keeper.transitions import Event
from commitlogfs.store.timing import KeeperTiming

MAX_FAILED_STARTS = 10
"""Failed starts in a row; after one more, the keeper gives up a mount that nobody holds."""

COUNTING_SHARE = 0.1
"""Share of the watchdog interval: a shorter wait for a processor does not excuse silence."""

_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the keeper's work ended."""

    status: int
    leaves_mount: bool = False
    """Whether a mount is left that no daemon will serve any more."""
    in_use: bool = False
    """Whether that mount was in use."""


def message_events(fields: Mapping[str, str], *, in_use: bool, with_standby: bool) -> Iterator[Event]:
    """The events of one message of the daemon, in their order. `in_use`: a daemon of this mount has been ready."""
    yield Event.HEARD
    if fields.keys() & {"STATUS", "STOPPING", "WATCHDOG"}:
        yield Event.ALIVE
    if fields.get(SERVING) == "1" and in_use:
        yield Event.SERVING
    if fields.get("READY") == "1":
        yield Event.READY
    if fields.get("STOPPING") == "1":
        yield Event.STOPPING
    if fields.get("WATCHDOG") == "1":
        yield Event.WATCHDOG
    if extension_s(fields):
        yield Event.EXTEND
    if fields.get(PREPARE) == "1" and with_standby:
        yield Event.PREPARE


def extension_s(fields: Mapping[str, str]) -> float:
    """Seconds that a message asks for (EXTEND_TIMEOUT_USEC); 0 if it does not, or for a number that is not one."""
    text = fields.get("EXTEND_TIMEOUT_USEC", "")
    return int(text) / 1_000_000 if text.isdecimal() and len(text) <= _MAX_DIGITS else 0.0


def end_event(status: int | None, *, mounted: bool, in_use: bool, kept: bool, has_served: bool) -> Event:
    """The event that the end of a daemon is.

    `status` as of os.waitstatus_to_exitcode, None if unknown; `kept`: there are descriptors for a successor. A
    successor that ends with status 0 before it has served a mount that is there has not ended that mount.
    """
    if not mounted or (status == 0 and (has_served or not in_use)):
        return Event.MOUNT_ENDED
    if status == ExitCode.HANDED_OVER and kept:
        return Event.HANDED_OVER
    if not in_use:
        return Event.FIRST_FAILED
    if has_served:
        return Event.DIED if kept else Event.DIED_WITH_MOUNT
    return Event.REFUSED if is_refusal(status) else Event.FAILED


def outcome_of_end(status: int | None, *, mounted: bool, in_use: bool) -> Outcome:
    """The keeper's outcome when mount and daemon have ended (MOUNT_ENDED)."""
    # Killed, or on its way to a successor, when its mount was gone: the mount has ended as somebody requested.
    cut_short = status is not None and (status < 0 or status == ExitCode.HANDED_OVER)
    if cut_short and in_use and not mounted:
        return Outcome(ExitCode.OK)
    return Outcome(as_shell(status), leaves_mount=mounted)


def as_shell(status: int | None) -> int:
    """The keeper's exit status for a daemon's. An unknown one counts as success, since the mount is gone."""
    if status is None:
        return 0
    return status if status >= 0 else 128 - status


class Restarts:
    """Counts the starts in a row that failed. A start has not failed when its daemon has answered a request.

    A daemon that has answered is replaced at once, however short its life was: requests wait, and the start of the
    next one takes longer than any pause here.
    """

    def __init__(self, timing: KeeperTiming) -> None:
        self._timing = timing
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
        depends on it. A mount that a process holds is never given up, and neither is one that successors refuse (a
        version that does not know the state's layout, a broken configuration): open files continue to work without
        a daemon, and an operator can correct the cause.
        """
        if has_served:
            return 0.0
        if is_refusal(status):
            return self._timing.refused_delay_s
        self.failed_in_row += 1
        if self.is_hopeless and not is_held():
            return None
        return min(self._timing.longest_delay_s, self._timing.first_delay_s * 2.0 ** (self.failed_in_row - 1))


def is_refusal(status: int | None) -> bool:
    """Whether a daemon that has not been ready ended for a reason that only an operator can change."""
    return status in (ExitCode.USAGE, ExitCode.REFUSED)


def patience(*, silent_s: float, starved_s: float, late_s: float, interval_s: float, longest_s: float) -> float:
    """Seconds to wait longer for a daemon that has been silent for its watchdog interval; 0: it hangs.

    The time in which it waited for a processor (`starved_s`), or in which the keeper itself did (`late_s`, a
    machine that stood still), does not count as silence, but the wait ends after `longest_s`.
    """
    excused = max(starved_s, late_s)
    if excused < interval_s * COUNTING_SHARE or silent_s >= max(longest_s, interval_s):
        return 0.0
    return min(excused, interval_s)
