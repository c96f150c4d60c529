"""Replacing a running daemon: it hands over, and its successor answers."""

import contextlib
import time
from dataclasses import dataclass
from typing import Final

from commitlogfs.console.errors import AbsentError, RefusedError, UnreachableError
from commitlogfs.console.output import waiting_line
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target

_ASK_TIMEOUT_S: Final = 1.0
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Replaced:
    """Process ids of the former daemon and of its successor, and the time until the latter answered."""

    former: int
    pid: int
    seconds: float


def replace_daemon(target: Target, timeout_s: float, *, force: bool = False) -> Replaced:
    """Let the daemon hand over, and wait for its successor.

    With `force`, a program that cannot be loaded does not refuse it. Raises UnreachableError; RefusedError if the
    daemon does not hand over; AbsentError if no successor answers within `timeout_s`.
    """
    started = time.monotonic()
    former = _ask(target, "restart", force=force)
    with waiting_line(f"{target.name}: daemon {former} has handed over, waiting for its successor"):
        pid = _wait_for_successor(target, former, started + timeout_s)
    if pid is None:
        raise AbsentError(
            f"{target.name}: no successor of daemon {former} has answered within {timeout_s:g} s, and requests "
            "wait; see the daemon's log for the reason"
        )
    return Replaced(former, pid, time.monotonic() - started)


def require_replaceable(target: Target, *, force: bool = False) -> None:
    """Raises as `replace_daemon` if the daemon would not hand over now. Nothing is known of one of a former
    version. The successor's program is not loaded: the standby would be another one afterwards."""
    with contextlib.suppress(control_socket.FormerVersionError):
        _ask(target, "restart-plan", force=force)


def _ask(target: Target, verb: str, *, force: bool) -> int:
    """Process id of the daemon that hands over. Raises UnreachableError, RefusedError."""
    answer = control_socket.ask(target.socket, verb, force=force)
    if "refused" in answer:
        raise RefusedError(f"{target.name}: not restarted: {answer['refused']}")
    pid: int = answer["pid"]
    return pid


def _wait_for_successor(target: Target, former: int, deadline: float) -> int | None:
    while (left_s := deadline - time.monotonic()) > 0:
        # For a moment no daemon answers, and a starting one does not answer at once.
        with contextlib.suppress(UnreachableError):
            pid: int = control_socket.ask(target.socket, "status", min(left_s, _ASK_TIMEOUT_S))["daemon"]["pid"]
            if pid != former:
                return pid
        time.sleep(_PAUSE_S)
    return None
