"""The control socket: a command (control_client.py) sends one request to the daemon and gets one answer.

It is a SOCK_SEQPACKET socket in the runtime directory. A request is one packet of JSON, `{"verb": ...}`, which may
bring one descriptor; the answer is JSON in packets that begin with `+` (more follows) or `.` (the last). The daemon
checks the peer's credentials and answers root and its own user only.

The status socket beside it speaks the same protocol, knows only verbs that change nothing, and answers everybody
whom its mode lets connect. Its peers take no place from those of the control socket.
"""

import array
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from commitlogfs.console.errors import UserError
from commitlogfs.mount.location.control_client import PACKET_BYTES, UNKNOWN_REQUEST
from commitlogfs.mount.location.control_client import PEER_TIMEOUT_S as PEER_TIMEOUT_S
from commitlogfs.mount.location.control_client import ControlError as ControlError
from commitlogfs.mount.location.control_client import FormerVersionError as FormerVersionError
from commitlogfs.mount.location.control_client import NotMountedError as NotMountedError
from commitlogfs.mount.location.control_client import ask as ask
from commitlogfs.mount.location.control_client import ask_with as ask_with
from commitlogfs.mount.location.control_client import is_listening as is_listening
from commitlogfs.mount.location.runtime_directory import (
    bind_for_group,
    bind_private,
    ensure_runtime_directory,
    identity,
)
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event

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
MAX_PEERS = 16
BACKLOG = 256
"""Connections that the kernel queues; beyond them, connect(2) fails with EAGAIN."""
CLOSE_TIMEOUT_S = 3.0
CHECK_INTERVAL_S = 5.0
"""Time between two checks that the path still leads to this socket."""
_UCRED = struct.Struct("=iII")


def bind(path: Path) -> socket.socket:
    """The listening control socket, mode 0600. The caller has made sure that no other daemon uses the path."""
    return _listen(partial(bind_private, path=path))


def bind_status(path: Path, group: int | None) -> socket.socket:
    """The listening status socket, open to `group`. As `bind`."""
    return _listen(partial(bind_for_group, path=path, group=group))


def _listen(bind_to: Callable[[socket.socket], None]) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        bind_to(listener)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@dataclass(frozen=True, slots=True)
class _Endpoint:
    bind: Callable[[Path], socket.socket]
    """Binds the socket anew."""
    verbs: dict[str, Answer]
    is_private: bool
    """Whether only root and the daemon's own user get answers."""


@dataclass(eq=False, slots=True)
class _Peer:
    scope: trio.CancelScope
    asked: bool = False
    """Whether its request has arrived."""


async def serve(listener: socket.socket, verbs: dict[str, Answer], on_bound_anew: Callable[[], None]) -> None:
    """Answer requests at the control socket until cancelled.

    If the socket's directory is removed, it is made again, and `on_bound_anew` is called.
    """
    await _serve(_Endpoint(bind, verbs, is_private=True), listener, on_bound_anew)


async def serve_status(listener: socket.socket, verbs: dict[str, Answer], group: int | None) -> None:
    """Answer requests at the status socket until cancelled. The verbs change nothing."""
    await _serve(_Endpoint(partial(bind_status, group=group), verbs, is_private=False), listener, lambda: None)


async def _serve(endpoint: _Endpoint, listener: socket.socket, on_bound_anew: Callable[[], None]) -> None:
    path = Path(listener.getsockname())
    while True:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, listener, endpoint)
            await _until_unreachable(path)
            nursery.cancel_scope.cancel()
        listener.close()
        while True:
            try:
                ensure_runtime_directory()
                listener = endpoint.bind(path)
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


async def _accept(listener: socket.socket, endpoint: _Endpoint) -> None:
    """Accept every connection. Beyond MAX_PEERS, drop the oldest peer that has sent no request.

    So silent or slow peers, however many, do not keep another one waiting.
    """
    listening = trio.socket.from_stdlib_socket(listener)
    peers: list[_Peer] = []
    async with trio.open_nursery() as nursery:
        while True:
            try:
                connection, _ = await listening.accept()
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
            nursery.start_soon(_serve_peer, connection, endpoint, peer, peers)


async def _serve_peer(
    connection: trio.socket.SocketType, endpoint: _Endpoint, peer: _Peer, peers: list[_Peer]
) -> None:
    try:
        with connection, peer.scope:
            await _serve_request(connection, endpoint, peer)
    except OSError as error:
        log_event(log, logging.DEBUG, "control_peer_lost", errno=error.errno)
    finally:
        if peer in peers:
            peers.remove(peer)


async def _serve_request(connection: trio.socket.SocketType, endpoint: _Endpoint, peer: _Peer) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    if endpoint.is_private and uid not in (0, os.geteuid()):
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
            answer = await _answer(request, descriptors, endpoint.verbs)
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
        return {"error": f"{UNKNOWN_REQUEST}; it knows {', '.join(sorted(verbs))}"}
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
