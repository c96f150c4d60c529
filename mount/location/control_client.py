"""The control socket as a command uses it: one request, one answer.

It loads no event loop, so that a command that only asks starts quickly. The daemon's side is control_socket.py.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commitlogfs.console.errors import RefusedError, UnreachableError, UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.location.runtime_directory import keeper_lock_path, lock_path, recorded_trouble
from commitlogfs.store.events import log_event
from commitlogfs.store.files.locks import lock_holder

log = logging.getLogger(__name__)

PACKET_BYTES = 32768
PEER_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
UNKNOWN_REQUEST = "this daemon does not know the request"
"""How its answer to an unknown verb begins."""


class ControlError(UserError):
    """The daemon understood the request and answered with an error."""


class FormerVersionError(ControlError):
    """The daemon does not know the request."""

    exit_code = ExitCode.REFUSED

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: its daemon is of a former version; `commitlogfs restart {name}`")


def ask(path: Path, verb: str, timeout_s: float = PEER_TIMEOUT_S, **arguments: object) -> dict[str, Any]:
    """The daemon's answer to one request; that of the next daemon if one is just replaced. Raises UnreachableError,
    RefusedError, ControlError."""
    return ask_with(path, verb, (), timeout_s, **arguments)


def ask_with(
    path: Path, verb: str, descriptors: Sequence[int], timeout_s: float = PEER_TIMEOUT_S, **arguments: object
) -> dict[str, Any]:
    """`ask`; the request brings copies of `descriptors`, at most one."""
    name = path.stem
    log_event(log, logging.DEBUG, "asking", socket=path, verb=verb)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout_s)
        try:
            _connect(connection, path, time.monotonic() + timeout_s)
            socket.send_fds(connection, [json.dumps({"verb": verb, **arguments}).encode()], descriptors)
            text = _receive(connection)
        except (FileNotFoundError, ConnectionRefusedError):
            raise UnreachableError(f"{name}: {_why_no_answer(name)}") from None
        except PermissionError:
            raise RefusedError(f"{name}: {path}: permission denied; run as the daemon's user or root") from None
        except TimeoutError:
            raise UnreachableError(
                f"{name}: the daemon does not answer within {timeout_s:g} s; "
                "see its log, or run `commitlogfs doctor`"
            ) from None
        except ConnectionResetError:
            raise UnreachableError(f"{name}: the daemon closed the connection; try again, or see its log") from None
        except OSError as error:
            raise UnreachableError(f"{name}: {path}: {os.strerror(error.errno or 0)}") from None
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        if answer["error"].startswith(UNKNOWN_REQUEST):
            raise FormerVersionError(name)
        raise ControlError(f"{name}: {answer['error']}")
    return answer


def _why_no_answer(name: str) -> str:
    if trouble := recorded_trouble(name):
        return f"{trouble}; see the daemon's log"
    if _is_held(name):
        return "no daemon answers at this moment, but its keeper runs; try again, or see the daemon's log"
    return "no daemon is running; start it with `commitlogfs mount`"


def _is_held(name: str) -> bool:
    """Whether a mount of this name has a process, although perhaps no daemon that answers."""
    return any(lock_holder(os.fspath(path)) for path in (lock_path(name), keeper_lock_path(name)))


def is_listening(path: Path) -> bool:
    """Whether a daemon listens at this socket, which a dead one leaves behind. It may hang nevertheless."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.setblocking(False)
        try:
            connection.connect(os.fspath(path))
        except BlockingIOError:  # its backlog is full
            return True
        except OSError:
            return False
    return True


def _connect(connection: socket.socket, path: Path, deadline: float) -> None:
    """Raises OSError; TimeoutError at the deadline if the daemon has too many requests."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return connection.connect(os.fspath(path))
        except BlockingIOError:  # the daemon's backlog is full
            if time.monotonic() > deadline:
                raise TimeoutError from None
        except (FileNotFoundError, ConnectionRefusedError):
            # The keeper may be about to have the next daemon, also without an order: a disk that is back is such a
            # reason. One that does not get that far records why.
            if time.monotonic() > deadline or recorded_trouble(path.stem) or not _is_held(path.stem):
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _receive(connection: socket.socket) -> bytes:
    parts = []
    while True:
        packet = connection.recv(PACKET_BYTES + 1)
        if not packet:
            raise ConnectionResetError(104, "the daemon closed the connection")
        parts.append(packet[1:])
        if packet[:1] == b".":
            return b"".join(parts)
