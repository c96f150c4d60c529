"""The client's side of the control socket."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlogfs.console.errors import UnreachableError
from commitlogfs.mount.location import control_client
from commitlogfs.mount.location.name_lock import hold_file
from commitlogfs.mount.location.runtime_directory import keeper_lock_path, socket_path

NAME = "test"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(tmp_path))


@contextmanager
def a_keeper() -> Iterator[None]:
    lock = hold_file(keeper_lock_path(NAME), 0.0)
    assert lock is not None
    yield
    os.close(lock)


def serve_once() -> None:
    """Answer one request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(os.fspath(socket_path(NAME)))
        listening.listen()
        connection, _ = listening.accept()
        with connection:
            connection.recv(control_client.PACKET_BYTES)
            connection.send(b'.{"served": true}')


@pytest.mark.parametrize("left", [False, True], ids=["no-socket", "socket-of-a-dead-daemon"])
def test_a_request_waits_for_the_next_daemon_while_one_is_replaced(
    monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    path, next_daemon = socket_path(NAME), threading.Thread(target=serve_once)
    if left:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(os.fspath(path))

    def begin(_name: str) -> str:
        """Called when nobody has answered."""
        if not next_daemon.ident:
            path.unlink(missing_ok=True)
            next_daemon.start()
        return ""

    monkeypatch.setattr(control_client, "recorded_trouble", begin)
    with a_keeper():
        assert control_client.ask(path, "status") == {"served": True}
    next_daemon.join()


def test_nobody_waits_where_no_daemon_is_expected() -> None:
    with pytest.raises(UnreachableError, match="no daemon is running"):
        control_client.ask(socket_path(NAME), "status", 1e6)


def test_nobody_waits_for_a_daemon_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "recorded_trouble", lambda _name: "the configuration is wrong")
    with a_keeper(), pytest.raises(UnreachableError, match="the configuration is wrong; see the daemon's log"):
        control_client.ask(socket_path(NAME), "status", 1e6)
