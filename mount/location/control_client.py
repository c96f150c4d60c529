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
from commitlogfs.mount.linux.probe import probe_mount
from commitlogfs.mount.location.name_lock import recorded_mount
from commitlogfs.mount.location.runtime_directory import (
    keeper_lock_path,
    lock_path,
    recorded_trouble,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files.locks import lock_holder

log = logging.getLogger(__name__)

PACKET_BYTES = 32768
PEER_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
UNKNOWN_REQUEST = "this daemon does not know the request"
"""How its answer to an unknown verb begins."""
ASKED_AGAIN = frozenset(
    {
        *("status", "segments", "locate", "metrics", "decisions", "retention", "rebalance-plan"),
        *("disk-content", "restore-plan", "restart-plan", "restart"),
    }
)
"""Verbs of requests that are sent to the next daemon if the former one ends without an answer. All but `restart`
only read, and a second restart does no harm. The former daemon may have executed any other verb already."""


class ControlError(UserError):
    """The daemon understood the request and answered with an error."""


class FormerVersionError(ControlError):
    """The daemon does not know the request."""

    exit_code = ExitCode.REFUSED

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: its daemon is of a former version; `commitlogfs restart {name}`")


class SilentError(UnreachableError):
    """A daemon listens, but does not answer in time."""


class NotMountedError(UnreachableError):
    """There is no mount of this name, and neither a daemon nor a keeper that may be about to make or end one."""


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
    request = json.dumps({"verb": verb, **arguments}).encode()
    deadline = time.monotonic() + timeout_s
    try:
        text = _ask_until(deadline, path, request, descriptors, may_repeat=verb in ASKED_AGAIN)
    except PermissionError:
        raise RefusedError(f"{name}: {path}: permission denied; run as the daemon's user or root") from None
    except TimeoutError:
        raise SilentError(
            f"{name}: the daemon does not answer within {timeout_s:g} s; see its log, or run `commitlogfs doctor`"
        ) from None
    except (ConnectionResetError, BrokenPipeError):
        raise UnreachableError(f"{name}: the daemon closed the connection; try again, or see its log") from None
    except OSError as error:
        raise UnreachableError(f"{name}: {path}: {os.strerror(error.errno or 0)}") from None
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        if answer["error"].startswith(UNKNOWN_REQUEST):
            raise FormerVersionError(name)
        raise ControlError(f"{name}: {answer['error']}")
    return answer


def _why_absent(name: str, deadline: float) -> tuple[UnreachableError, bool]:
    """Why no daemon answers, and whether one may answer soon. Waits for a mount that has neither a daemon nor a
    keeper, but is alive: a service manager keeps it, and starts the next daemon."""
    trouble = recorded_trouble(name)
    if trouble:
        return UnreachableError(f"{name}: {trouble}; see the daemon's log"), False
    if _is_held(name):
        text = "no daemon answers at this moment, but its keeper runs; try again, or see the daemon's log"
        # A user who may not read the trouble would wait for a daemon that cannot start.
        return UnreachableError(f"{name}: {text}"), trouble is not None
    nothing_runs = f"{name}: no daemon is running; start it with `commitlogfs mount`"
    left = recorded_mount(name)
    if left is None:
        return NotMountedError(nothing_runs), False
    probed = probe_mount(left.mountpoint, max(0.0, deadline - time.monotonic()))
    if probed.dead:
        return UnreachableError(nothing_runs), False
    text = (
        f"no daemon serves {left.mountpoint} at this moment, and its requests wait for the next one; try "
        "again, or see the daemon's log and the state of its service"
    )
    return UnreachableError(f"{name}: {text}"), probed.ok


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


def _ask_until(
    deadline: float, path: Path, request: bytes, descriptors: Sequence[int], *, may_repeat: bool
) -> bytes:
    """The answer of the daemon, or of the next one. Raises UnreachableError if there is none, and OSError;
    TimeoutError if it does not answer by the deadline."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return _ask_once(deadline, path, request, descriptors)
        except BlockingIOError:  # the daemon's backlog is full
            if time.monotonic() >= deadline:
                raise TimeoutError from None
        except (FileNotFoundError, ConnectionRefusedError):
            # The keeper may be about to have the next daemon, also without an order: a disk that is back is such a
            # reason. One that does not get that far records why.
            reason, is_expected = _why_absent(path.stem, deadline)
            if not is_expected or time.monotonic() >= deadline:
                raise reason from None
        except (ConnectionResetError, BrokenPipeError):  # the daemon has ended meanwhile
            if not may_repeat or time.monotonic() >= deadline:
                raise
        time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _ask_once(deadline: float, path: Path, request: bytes, descriptors: Sequence[int]) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.setblocking(False)
        connection.connect(os.fspath(path))  # never waits
        _limit(connection, deadline)
        socket.send_fds(connection, [request], descriptors)
        return _receive(connection, deadline)


def _limit(connection: socket.socket, deadline: float) -> None:
    """Limit the next call to the time that is left. Raises TimeoutError if there is none."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    parts = []
    while True:
        _limit(connection, deadline)
        packet = connection.recv(PACKET_BYTES + 1)
        if not packet:
            raise ConnectionResetError(104, "the daemon closed the connection")
        parts.append(packet[1:])
        if packet[:1] == b".":
            return b"".join(parts)
