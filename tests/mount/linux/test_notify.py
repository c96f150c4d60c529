import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from commitlogfs.mount.linux import notify


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The manager's end of a notify socket."""
    name = f"@commitlogfs-test-{os.getpid()}" if request.param == "abstract" else str(workdir / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if name.startswith("@") else name)
        sock.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield sock


def test_the_helpers_send_what_systemd_reads(manager: socket.socket):
    assert notify.ready("3 disks")
    assert notify.status("70 %")
    assert notify.stopping()
    assert notify.watchdog()
    got = [manager.recv(4096).decode() for _ in range(4)]
    assert got == [
        "READY=1\nSTATUS=3 disks",
        "READY=1\nSTATUS=70 %",
        "STOPPING=1",
        "WATCHDOG=1",
    ]


def test_descriptors_arrive_as_working_copies(manager: socket.socket):
    near, far = os.pipe()
    assert notify.notify("FDSTORE=1\nFDNAME=fuse", [near, far])
    message, ancillary, _flags, _address = manager.recvmsg(4096, socket.CMSG_SPACE(2 * 4))
    assert message == b"FDSTORE=1\nFDNAME=fuse"
    fds = array.array("i", ancillary[0][2])
    os.write(fds[1], b"through the copy")
    assert os.read(near, 100) == b"through the copy"
    for fd in (near, far, *fds):
        os.close(fd)


def test_a_status_cannot_carry_a_second_assignment(manager: socket.socket):
    notify.status("a\nMAINPID=1\0b")
    assert manager.recv(4096) == b"READY=1\nSTATUS=a MAINPID=1 b"


@pytest.mark.parametrize("name", [None, "", "relative", "vsock:2:1234"])
def test_without_a_socket_nothing_happens(name: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if name is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
    assert not notify.notify("READY=1")
    assert not notify.ready()


def test_a_manager_that_is_gone(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(workdir / "gone"))
    with pytest.raises(FileNotFoundError):
        notify.notify("FDSTORE=1", [0])
    assert not notify.watchdog()


def test_a_manager_that_does_not_read_cannot_hang_us(manager: socket.socket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 0.05)
    sent = next(n for n in range(10_000) if not notify.watchdog())
    assert sent > 0
    with pytest.raises(TimeoutError):
        notify.notify("WATCHDOG=1")


@pytest.mark.parametrize("state", ["", "a\0b"])
def test_what_the_protocol_cannot_carry(state: str):
    with pytest.raises(ValueError, match="not a notification"):
        notify.notify(state)


def test_the_watchdog_interval(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    for text, seconds in (("2000000", 2.0), ("0", None), ("x", None), ("", None)):
        monkeypatch.setenv("WATCHDOG_USEC", text)
        assert notify.watchdog_interval_s() == seconds
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert notify.watchdog_interval_s() is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert notify.watchdog_interval_s() == 2.0
