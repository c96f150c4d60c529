"""The client's side of the control socket."""

import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest
from support.tiny_fuse import tiny_fuse
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.mount.linux.probe import ProbeResult, probe_mount
from commitlogfs.mount.location import control_client, control_socket, replacement
from commitlogfs.mount.location.name_lock import hold_file
from commitlogfs.mount.location.runtime_directory import keeper_lock_path, lock_path, socket_path
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.status.control_api import ControlApi

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


def listening_socket(name: str = NAME) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(os.fspath(socket_path(name)))
    made.listen()
    return made


def serve_once(name: str = NAME) -> None:
    """Answer one request."""
    with listening_socket(name) as listening:
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


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_next_daemon_gets_only_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole time, the question would take an hour."""
    clock, listening = Clock(), list[socket.socket]()

    def begin(_name: str) -> str:
        clock.now_s = 3599.9
        listening.append(listening_socket())
        return ""

    monkeypatch.setattr(control_client, "time", clock)
    monkeypatch.setattr(control_client, "recorded_trouble", begin)
    with a_keeper(), pytest.raises(UnreachableError, match="does not answer within 3600 s"):
        control_client.ask(socket_path(NAME), "status", 3600)
    listening[0].close()


def test_the_rest_of_an_answer_gets_only_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(control_client, "time", clock)
    with listening_socket() as listening:

        def begin_an_answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(control_client.PACKET_BYTES)
                clock.now_s = 3599.9
                connection.send(b"+{")
                connection.recv(1)  # until the client has given up

        daemon = threading.Thread(target=begin_an_answer)
        daemon.start()
        with pytest.raises(UnreachableError, match="does not answer within 3600 s"):
            control_client.ask(socket_path(NAME), "status", 3600)
        daemon.join()


def end_without_an_answer(listening: socket.socket, *, accepts: bool) -> None:
    """As a daemon ends that is replaced: its socket stays."""
    eventually(lambda: bool(select.select([listening], [], [], 0)[0]))
    with listening:
        if accepts:
            listening.accept()[0].close()


@pytest.mark.parametrize("accepts", [True, False], ids=["accepted", "in-the-backlog"])
@pytest.mark.parametrize("verb", ["status", "restart"])
def test_a_request_that_a_dying_daemon_has_is_asked_again(verb: str, accepts: bool) -> None:
    listening = listening_socket()

    def be_replaced() -> None:
        end_without_an_answer(listening, accepts=accepts)
        socket_path(NAME).unlink()
        serve_once()

    daemons = threading.Thread(target=be_replaced)
    daemons.start()
    with a_keeper():
        assert control_client.ask(socket_path(NAME), verb, PATIENCE_S) == {"served": True}
    daemons.join()


def test_a_request_that_may_have_been_executed_is_not_asked_again() -> None:
    daemon = threading.Thread(target=end_without_an_answer, args=[listening_socket()], kwargs={"accepts": True})
    daemon.start()
    with a_keeper(), pytest.raises(UnreachableError, match="the daemon closed the connection"):
        control_client.ask(socket_path(NAME), "disk-drain", PATIENCE_S)
    daemon.join()


def test_every_verb_that_only_reads_is_asked_again() -> None:
    api = ControlApi.__new__(ControlApi)  # its verbs do not depend on its state
    assert {*api.verbs(), *api.status_verbs()} <= control_client.ASKED_AGAIN


def test_the_end_without_an_answer_of_a_mount_without_keeper() -> None:
    daemon = threading.Thread(target=end_without_an_answer, args=[listening_socket()], kwargs={"accepts": True})
    daemon.start()
    with pytest.raises(UnreachableError, match="no daemon is running"):
        control_client.ask(socket_path(NAME), "status", PATIENCE_S)
    daemon.join()


def test_nobody_waits_who_cannot_read_why_no_daemon_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "recorded_trouble", lambda _name: None)
    with a_keeper(), pytest.raises(UnreachableError, match="no daemon answers at this moment"):
        control_client.ask(socket_path(NAME), "status", 1e6)


@pytest.fixture
def left(workdir: Path) -> Iterator[Popen[bytes]]:
    """The daemon of a mount that has no lock: neither it nor a keeper of ours is known."""
    mountpoint = workdir / "mnt"
    mountpoint.mkdir()
    lock_path("tiny").write_text(f"{mountpoint}\n")
    with tiny_fuse(mountpoint) as daemon:
        yield daemon


@pytest.mark.root
@pytest.mark.mounted
def test_a_request_waits_for_the_daemon_that_a_service_manager_starts(
    left: Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount answers as soon as the next daemon does."""
    left.send_signal(signal.SIGSTOP)
    next_daemon = threading.Thread(target=serve_once, args=["tiny"])

    def probe(mountpoint: str, timeout_s: float) -> ProbeResult:
        if not next_daemon.ident:
            next_daemon.start()
            left.send_signal(signal.SIGCONT)
        return probe_mount(mountpoint, timeout_s)

    monkeypatch.setattr(control_client, "probe_mount", probe)
    assert control_client.ask(socket_path("tiny"), "status", PATIENCE_S) == {"served": True}
    next_daemon.join()


@pytest.mark.root
@pytest.mark.mounted
def test_a_mount_that_waits_for_its_next_daemon_is_reported(left: Popen[bytes]) -> None:
    left.send_signal(signal.SIGSTOP)
    with pytest.raises(UnreachableError, match=r"tiny: no daemon serves .*/mnt at this moment"):
        control_client.ask(socket_path("tiny"), "status", 0.3)
    left.send_signal(signal.SIGCONT)


@pytest.mark.root
@pytest.mark.mounted
def test_nobody_waits_for_a_daemon_of_a_dead_mount(left: Popen[bytes]) -> None:
    left.kill()
    left.wait()
    with pytest.raises(UnreachableError, match="tiny: no daemon is running"):
        control_client.ask(socket_path("tiny"), "status", 1e6)


@pytest.mark.parametrize(("timeout_s", "limits"), [(0.0, []), (2.5, [1.0, 1.0, 0.4])])
def test_the_successor_is_asked_for_the_remaining_time_only(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, limits: list[float]
) -> None:
    clock, asked = Clock(), list[float]()

    def answer_as_the_former(_path: Path, _verb: str, limit_s: float) -> dict[str, object]:
        asked.append(limit_s)
        clock.now_s += 1.03
        return {"daemon": {"pid": 1}}

    monkeypatch.setattr(replacement, "time", clock)
    monkeypatch.setattr(control_socket, "ask", answer_as_the_former)
    assert replacement._wait_for_successor(Target(NAME), 1, timeout_s) is None
    assert asked == pytest.approx(limits)
