"""Messages of keeper and daemons besides sd_notify(3): the call of a standby, and fields of our own.

A call is one message over a socket pair. It carries what a daemon is otherwise started with: environment and
descriptors.
"""

import array
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STANDBY_OPTION = "--standby-fd"
"""Option of a daemon's command line, with the number of its end of the channel."""
_MAX_BYTES = 1 << 18
"""More than the kernel accepts as one message by default."""
SERVING = "X_COMMITLOGFS_SERVING"
"""Field of a notification: a daemon that has taken a mount over is about to answer its first request."""
PREPARE = "X_COMMITLOGFS_PREPARE"
"""Field of a notification that brings a descriptor, to which the keeper writes LOADED or FAILED."""
LOADED, FAILED = b"1", b"0"
_HAS_LOADED = b"loaded"
_MAX_FDS = 253
"""SCM_MAX_FD."""


class BrokenCallError(Exception):
    """The kernel could not deliver the whole call: a limit of open files, no memory, a security module."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything that a standby needs to become the daemon."""

    variables: Mapping[str, str]
    """Variables for its environment."""
    descriptors: Sequence[tuple[str, int]]
    """With their names. The receiver gets copies of its own."""


def channel() -> tuple[socket.socket, socket.socket]:
    """The keeper's end, which never waits, and the daemon's. Raises OSError."""
    keepers, daemons = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keepers.setblocking(False)
    return keepers, daemons


def report_loaded(sock: socket.socket) -> None:
    """The daemon reports that it waits for the call. A keeper that has ended is not an error."""
    with contextlib.suppress(ConnectionError):
        sock.send(_HAS_LOADED)


def has_loaded(sock: socket.socket) -> bool:
    """Whether the daemon has reported so; never waits."""
    try:
        return sock.recv(len(_HAS_LOADED)) == _HAS_LOADED
    except (BlockingIOError, ConnectionError):
        return False


def send(sock: socket.socket, call: Call) -> None:
    """Raises OSError: the standby has ended, or the message is too long."""
    names = [name for name, _ in call.descriptors]
    fds = array.array("i", [fd for _, fd in call.descriptors])
    text = json.dumps({"variables": dict(call.variables), "names": names}).encode()
    sock.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])


def receive(sock: socket.socket) -> Call | None:
    """Waits for the call. None if the keeper has closed its end or has ended. Raises BrokenCallError, and closes
    all descriptors that came, if a part of the call is missing."""
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    # A keeper closes its end when it has called, and the kernel may report that before it gives out the call:
    # - as the end, once, if call and close come while a read begins: __skb_wait_for_more_packets() checks the queue
    #   first and the connection afterwards;
    # - as a reset connection, once, if the keeper has not read that this daemon is loaded: unix_release_sock().
    for _ in range(3):
        with contextlib.suppress(ConnectionError):
            text, ancillary, flags, _ = sock.recvmsg(_MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC)
            if text:
                break
    else:
        return None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    sent = json.loads(text) if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) else None
    if sent is None or len(sent["names"]) != len(fds):
        for fd in fds:
            os.close(fd)
        raise BrokenCallError("the keeper's call arrived without all of its descriptors")
    return Call(sent["variables"], tuple(zip(sent["names"], fds, strict=True)))
