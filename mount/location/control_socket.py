"""The control socket: a command sends one request to the daemon and gets one answer.

It is a SOCK_SEQPACKET socket in the runtime directory. A request is one packet of JSON, `{"verb": ...}`, which may
bring one descriptor; the answer is JSON in packets that begin with `+` (more follows) or `.` (the last). The daemon
checks the peer's credentials and answers root and its own user only.
"""

import array
import contextlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from commitlogfs.console.errors import RefusedError, UnreachableError, UserError
from commitlogfs.mount.location.runtime_directory import (
    bind_private,
    ensure_runtime_directory,
    identity,
    keeper_lock_path,
    lock_path,
    recorded_trouble,
)
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.locks import lock_holder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and what to do once it has been sent, or its peer has gone."""

    document: dict[str, Any]
    after: Callable[[], None] = lambda: None


Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | Reply]]

Request = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def answer_or_refuse(request: Request, document: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request. A PoolError refuses it: {"refused": why}, and nothing has changed."""
    try:
        return await request(document)
    except PoolError as error:
        return {"refused": str(error)}


DESCRIPTOR = "descriptor"
"""Key, in the document that a verb gets, of the descriptor that came with the request; absent without one. It is
closed when the verb has answered."""
MAX_REQUEST_BYTES = 4096
PACKET_BYTES = 32768
MAX_PEERS = 16
BACKLOG = 256
"""Connections that the kernel queues; beyond them, connect(2) fails with EAGAIN."""
PEER_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 3.0
CHECK_INTERVAL_S = 5.0
"""Time between two checks that the path still leads to this socket."""
_UCRED = struct.Struct("=iII")


class ControlError(UserError):
    """The daemon understood the request and answered with an error."""


def bind(path: Path) -> socket.socket:
    """The listening socket, mode 0600. The caller has made sure that no other daemon uses the path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        bind_private(listener, path)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@dataclass(eq=False, slots=True)
class _Peer:
    scope: trio.CancelScope
    asked: bool = False
    """Whether its request has arrived."""


async def serve(listener: socket.socket, verbs: dict[str, Answer], on_bound_anew: Callable[[], None]) -> None:
    """Answer requests until cancelled.

    If the socket's directory is removed, it is made again, and `on_bound_anew` is called.
    """
    path = Path(listener.getsockname())
    while True:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, listener, verbs)
            await _until_unreachable(path)
            nursery.cancel_scope.cancel()
        listener.close()
        while True:
            try:
                ensure_runtime_directory()
                listener = bind(path)
                break
            except (UserError, OSError) as error:
                log_event(log, logging.WARNING, "control_not_bound", path=path, reason=str(error))
            await trio.sleep(CHECK_INTERVAL_S)
        log_event(log, logging.WARNING, "control_bound_anew", path=path)
        on_bound_anew()


async def _until_unreachable(path: Path) -> None:
    bound = identity(path)
    while True:
        await trio.sleep(CHECK_INTERVAL_S)
        if await trio.to_thread.run_sync(identity, path) != bound:
            return


async def _accept(listener: socket.socket, verbs: dict[str, Answer]) -> None:
    """Accept every connection. Beyond MAX_PEERS, drop the oldest peer that has sent no request.

    So silent or slow peers, however many, do not keep another one waiting.
    """
    endpoint = trio.socket.from_stdlib_socket(listener)
    peers: list[_Peer] = []
    async with trio.open_nursery() as nursery:
        while True:
            try:
                connection, _ = await endpoint.accept()
            except OSError as error:
                log_event(log, logging.WARNING, "control_accept_failed", errno=error.errno)
                await trio.sleep(0.1)
                continue
            if len(peers) >= MAX_PEERS:
                dropped = next((peer for peer in peers if not peer.asked), peers[0])
                peers.remove(dropped)
                dropped.scope.cancel()
            peer = _Peer(trio.CancelScope(deadline=trio.current_time() + PEER_TIMEOUT_S))
            peers.append(peer)
            nursery.start_soon(_serve_peer, connection, verbs, peer, peers)


async def _serve_peer(
    connection: trio.socket.SocketType, verbs: dict[str, Answer], peer: _Peer, peers: list[_Peer]
) -> None:
    try:
        with connection, peer.scope:
            await _serve_request(connection, verbs, peer)
    except OSError as error:
        log_event(log, logging.DEBUG, "control_peer_lost", errno=error.errno)
    finally:
        if peer in peers:
            peers.remove(peer)


async def _serve_request(connection: trio.socket.SocketType, verbs: dict[str, Answer], peer: _Peer) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    if uid not in (0, os.geteuid()):
        log_event(log, logging.WARNING, "control_peer_refused", pid=pid, uid=uid)
        # If we closed the connection before the request arrives, the peer's send would fail, and it would not read
        # our answer.
        await connection.recv(MAX_REQUEST_BYTES + 1)
        await _send(connection, {"error": f"user {uid} may not control this daemon; run as root or its user"})
        return
    request, descriptors = await _receive_request(connection)
    peer.asked = True
    try:
        if request:
            answer = await _answer(request, descriptors, verbs)
            reply = answer if isinstance(answer, Reply) else Reply(answer)
            try:
                await _send(connection, reply.document)
            finally:
                reply.after()
    finally:
        for descriptor in descriptors:
            await _close(descriptor)


async def _close(descriptor: int) -> None:
    """Close a descriptor of a peer. Its filesystem may be a remote one that hangs, and keeps only a thread then."""
    with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True), contextlib.suppress(OSError):
        await trio.to_thread.run_sync(os.close, descriptor, abandon_on_cancel=True)


async def _receive_request(connection: trio.socket.SocketType) -> tuple[bytes, list[int]]:
    """The caller closes the descriptors."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(descriptors.itemsize)
    request, ancillary, _, _ = await connection.recvmsg(MAX_REQUEST_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return request, list(descriptors)


async def _answer(request: bytes, descriptors: list[int], verbs: dict[str, Answer]) -> dict[str, Any] | Reply:
    if len(request) > MAX_REQUEST_BYTES:
        return {"error": f"a request has at most {MAX_REQUEST_BYTES} bytes"}
    try:
        document = json.loads(request)
        verb = verbs[document["verb"]]
        document.pop(DESCRIPTOR, None)
        if descriptors:
            document[DESCRIPTOR] = descriptors[0]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"error": f"this daemon does not know the request; it knows {', '.join(sorted(verbs))}"}
    try:
        return await verb(document)
    except (UserError, ValueError) as error:
        return {"error": str(error)}
    except Exception as error:
        # A fault in an answer must not end the daemon.
        log_event(log, logging.ERROR, "control_failed", verb=document["verb"], exc_info=error)
        return {"error": f"the daemon failed to answer ({type(error).__name__}); see its log"}


async def _send(peer: trio.socket.SocketType, document: dict[str, Any]) -> None:
    text = await trio.to_thread.run_sync(_encode, document)
    for start in range(0, len(text), PACKET_BYTES):
        last = start + PACKET_BYTES >= len(text)
        await peer.send((b"." if last else b"+") + text[start : start + PACKET_BYTES])


def _encode(document: dict[str, Any]) -> bytes:
    """The document as JSON. iterencode lets other threads run; json.dumps of 60,000 segments would hold the GIL for
    50 ms."""
    return "".join(json.JSONEncoder().iterencode(document)).encode()


def ask(path: Path, verb: str, timeout_s: float = PEER_TIMEOUT_S, **arguments: object) -> dict[str, Any]:
    """The daemon's answer to one request. Raises UnreachableError, RefusedError, ControlError."""
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
            _connect(connection, os.fspath(path), time.monotonic() + timeout_s)
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
        raise ControlError(f"{name}: {answer['error']}")
    return answer


def _why_no_answer(name: str) -> str:
    if trouble := recorded_trouble(name):
        return f"{trouble}; see the daemon's log"
    if any(lock_holder(os.fspath(path)) for path in (lock_path(name), keeper_lock_path(name))):
        return "no daemon answers at this moment, but its keeper runs; try again, or see the daemon's log"
    return "no daemon is running; start it with `commitlogfs mount`"


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


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:  # the daemon's backlog is full
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.02)


def _receive(connection: socket.socket) -> bytes:
    parts = []
    while True:
        packet = connection.recv(PACKET_BYTES + 1)
        if not packet:
            raise ConnectionResetError(104, "the daemon closed the connection")
        parts.append(packet[1:])
        if packet[:1] == b".":
            return b"".join(parts)
