"""Ports for brokers: two runs at once never choose the same, and a broker finds its own free at each start."""

import gc
import socket

import pytest

from commitlogfs.bench.rocketmq import ports
from commitlogfs.bench.rocketmq.ports import ReservedPort


def _listening(number: int, address: str = "127.0.0.1") -> socket.socket:
    """As Java's servers listen."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, number))
    server.listen()
    return server


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - nobody is waited for
def test_a_server_listens_on_its_reserved_port_again_and_again(address: str):
    reserved = ReservedPort((0, 1))
    for _ in range(2):
        with _listening(reserved.number + 1, address) as server, socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_a_reserved_port_is_not_chosen_again(monkeypatch: pytest.MonkeyPatch):
    first = ReservedPort((0, 1))
    monkeypatch.setattr(ports, "_LOWEST", first.number - 1)
    monkeypatch.setattr(ports, "_HIGHEST", first.number + 2)
    with pytest.raises(OSError, match="no free port"):
        ReservedPort((0, 1))


def test_a_port_is_free_again_when_its_reservation_is_gone(monkeypatch: pytest.MonkeyPatch):
    first = ReservedPort()
    number = first.number
    monkeypatch.setattr(ports, "_LOWEST", number)
    monkeypatch.setattr(ports, "_HIGHEST", number + 1)
    del first
    gc.collect()
    assert ReservedPort().number == number


def test_a_port_that_somebody_listens_on_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    reserved = ReservedPort()
    with _listening(reserved.number) as server:
        monkeypatch.setattr(ports, "_LOWEST", reserved.number)
        monkeypatch.setattr(ports, "_HIGHEST", reserved.number + 1)
        del reserved
        gc.collect()
        with pytest.raises(OSError, match="no free port"):
            ReservedPort()
        assert server.fileno() >= 0
