"""The sd_notify protocol (sd_notify(3)): it reports our state to a service manager and passes descriptors to it.

The manager is systemd or our own keeper, at the datagram socket in $NOTIFY_SOCKET. Without that variable,
everything here does nothing and returns False.
"""

import array
import os
import socket
from collections.abc import Sequence

SEND_TIMEOUT_S = 1.0
"""How long a full queue of the manager may delay us."""

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
    """Report that the mount answers. `text` is the one-line state that `systemctl status` shows."""
    return _send("READY=1\n" + _status_line(text))


def status(text: str) -> bool:
    """Report `text` as our one-line state, for a mount that answers. It repeats READY, which may have got lost."""
    return _send("READY=1\n" + _status_line(text))


def stopping() -> bool:
    """Report that this process has begun to shut down."""
    return _send("STOPPING=1")


def watchdog() -> bool:
    """Report that this process is alive, which starts the watchdog interval again."""
    return _send("WATCHDOG=1")


def needs_time(seconds: float) -> bool:
    """Extend the timeout of the start or stop that is under way to this time from now."""
    return _send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")


def watch_no_longer() -> bool:
    """Switch the manager's watchdog off (sd_notify(3): WATCHDOG_USEC). Our own keeper does that without a
    message."""
    return _send("WATCHDOG_USEC=0")


def watchdog_interval_s() -> float | None:
    """Longest time between two calls of `watchdog`; None if the manager does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isdecimal() and int(text) > 0 else None


def _send(state: str) -> bool:
    """As `notify`, but returns False on an error: the daemon serves without its manager, too."""
    try:
        return notify(state)
    except OSError:
        return False


def _status_line(text: str) -> str:
    # A second line would be taken for another KEY=value.
    return "STATUS=" + " ".join(text.replace("\0", " ").split())


def _address() -> str | None:
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None
