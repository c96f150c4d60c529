"""The receiving end of sd_notify(3): a datagram socket; each message names its sender."""

import array
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commitlogfs.mount.location.runtime_directory import bind_private, identity

_MAX_BYTES = 4096
_MAX_FDS = 253
_UCRED = struct.Struct("=iII")
_ROOM = socket.CMSG_SPACE(_UCRED.size) + socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


@dataclass(frozen=True, slots=True)
class Message:
    """One notification. Its descriptors belong to the receiver."""

    pid: int
    """The sender, as the kernel says; 0 from outside of this pid namespace."""
    fields: dict[str, str]
    fds: list[int] = field(default_factory=list)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class Inbox:
    """The socket at `path`, mode 0600. The caller has made sure that no other keeper uses it. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = _listen(path)
        self._bound = identity(path)

    def is_reachable(self) -> bool:
        """Whether `path` still leads here: its directory may have been removed."""
        return identity(self.path) == self._bound

    def listen_again(self) -> None:
        """At the same path, with the same descriptor number. Raises OSError, and then nothing has changed."""
        with _listen(self.path) as fresh:
            os.dup2(fresh.fileno(), self._socket.fileno(), inheritable=False)
        self._bound = identity(self.path)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Iterator[Message]:
        """The messages that have arrived; never waits. A message that is cut short is dropped: it has no
        meaning."""
        while True:
            try:
                text, ancillary, flags, _ = self._socket.recvmsg(_MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            message = _message(text, ancillary)
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                message.close()
                continue
            yield message

    def close(self) -> None:
        """The path is removed, too, so that senders get an error."""
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        bind_private(made, path)
    except BaseException:
        made.close()
        raise
    return made


def _message(text: bytes, ancillary: list[tuple[int, int, bytes]]) -> Message:
    pid, fds = 0, array.array("i")
    for level, kind, data in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        elif kind == socket.SCM_CREDENTIALS:
            pid, _uid, _gid = _UCRED.unpack(data)
    lines = text.decode(errors="surrogateescape").split("\n")
    fields = {key: value for key, equals, value in (line.partition("=") for line in lines) if equals}
    return Message(pid, fields, list(fds))
