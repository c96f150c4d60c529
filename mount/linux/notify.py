"""The sd_notify protocol (sd_notify(3)): telling a service manager our state and handing it descriptors.

Spoken to systemd or to our own keeper alike, through the datagram socket that $NOTIFY_SOCKET names. Not under
such a socket, everything here does nothing and returns False.
"""

import array
import os
import socket
from collections.abc import Sequence

SEND_TIMEOUT_S = 1.0
"""How long a full queue at the manager may hold us up."""

_MAX_FDS = 253
"""The kernel's limit of descriptors in one message (SCM_MAX_FD)."""


def notify(state: str, fds: Sequence[int] = ()) -> bool:
    """Send `state` (lines `KEY=value`) with copies of `fds`. True once it is in the manager's queue.

    Raises OSError if there is a socket but the message could not be sent (TimeoutError: its queue stayed
    full), ValueError for a message that the protocol cannot carry.
    """
    if not state or "\0" in state or len(fds) > _MAX_FDS:
        raise ValueError(f"not a notification: {state!r} with {len(fds)} descriptors")
    address = _address()
    if address is None:
        return False
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(SEND_TIMEOUT_S)
        # The address goes with the message: Python 3.11's socket.send_fds ignores one.
        sock.sendmsg([state.encode(errors="surrogateescape")], ancillary, 0, address)
    return True


def ready(text: str = "") -> bool:
    """The mount answers. `text` is the one-line state shown by `systemctl status`."""
    return _tell("READY=1\n" + _status_line(text))


def status(text: str) -> bool:
    """Show `text` as our one-line state. Only of a mount that answers: says READY once more, which may have got
    lost."""
    return _tell("READY=1\n" + _status_line(text))


def stopping() -> bool:
    """We have begun to shut down."""
    return _tell("STOPPING=1")


def watchdog() -> bool:
    """We are alive: starts the watchdog interval anew."""
    return _tell("WATCHDOG=1")


def needs_time(seconds: float) -> bool:
    """A start or stop that is under way may take so long from now on."""
    return _tell(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")


def watch_no_longer() -> bool:
    """Do without `watchdog` from now on (sd_notify(3): WATCHDOG_USEC). Our keeper judges that by itself."""
    return _tell("WATCHDOG_USEC=0")


def watchdog_interval_s() -> float | None:
    """Within how many seconds `watchdog` must be called each time; None if nobody watches this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isdecimal() and int(text) > 0 else None


def _tell(state: str) -> bool:
    """Like `notify`; a manager that does not listen is no reason to stop serving, so False then."""
    try:
        return notify(state)
    except OSError:
        return False


def _status_line(text: str) -> str:
    # One line whatever is in it: a second one would be taken for another KEY=value.
    return "STATUS=" + " ".join(text.replace("\0", " ").split())


def _address() -> str | None:
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None
