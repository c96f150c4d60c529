"""How a keeper calls a daemon that stands by: one message over a socket that both have, with what a daemon is
otherwise started with, its environment and descriptors."""

import array
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STANDBY_OPTION = "--standby-fd"
"""Of a daemon's command line, with the number of its end of the channel."""
_MAX_BYTES = 1 << 18
"""More than the kernel takes as one message by default: what was sent fits."""
START_TIMEOUT_S = 60.0
"""A daemon has it from its start, or from its taking the call, to READY."""
_LOADED = b"loaded"
_MAX_FDS = 253
"""SCM_MAX_FD."""


class BrokenCallError(Exception):
    """The kernel could not hand over all of it: a limit of open files, no memory, a security module."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a daemon that is needed now is told."""

    variables: Mapping[str, str]
    """For its environment."""
    descriptors: Sequence[tuple[str, int]]
    """By name. Copies, the receiver's own, once received."""


def channel() -> tuple[socket.socket, socket.socket]:
    """The keeper's end, which never waits, and the daemon's. Raises OSError."""
    keepers, daemons = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keepers.setblocking(False)
    return keepers, daemons


def tell_loaded(sock: socket.socket) -> None:
    """From the daemon: nothing is left to be done before the call. A keeper that has ended is no error."""
    with contextlib.suppress(ConnectionError):
        sock.send(_LOADED)


def has_loaded(sock: socket.socket) -> bool:
    """Whether the daemon's word that it has is there to be taken; never waits."""
    try:
        return sock.recv(len(_LOADED)) == _LOADED
    except (BlockingIOError, ConnectionError):
        return False


def send(sock: socket.socket, call: Call) -> None:
    """Raises OSError: nobody is there any more, or it is too long."""
    names = [name for name, _ in call.descriptors]
    fds = array.array("i", [fd for _, fd in call.descriptors])
    text = json.dumps({"variables": dict(call.variables), "names": names}).encode()
    sock.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])


def receive(sock: socket.socket) -> Call | None:
    """Waits for the call. None if none comes any more: the keeper has closed its end, or has ended. Raises
    BrokenCallError, and has closed what came, if a part of it is missing."""
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    try:
        text, ancillary, flags, _ = sock.recvmsg(_MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not text:
        return None
    told = json.loads(text) if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) else None
    if told is None or len(told["names"]) != len(fds):
        for fd in fds:
            os.close(fd)
        raise BrokenCallError("a keeper's call came without all of its descriptors")
    return Call(told["variables"], tuple(zip(told["names"], fds, strict=True)))
