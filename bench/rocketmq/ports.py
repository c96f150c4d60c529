"""Ports of 127.0.0.1 for servers that start later, kept from everyone else until then."""

import secrets
import socket
import weakref
from contextlib import ExitStack

# Below what the kernel gives to outgoing connections, so that none takes a port between choice and use.
_LOWEST, _HIGHEST = 12_000, 32_000


class ReservedPort:
    """A port such that `number` + o is free on all addresses for every o of `offsets`, and stays so.

    Each is bound, but not listened to, until this object is gone. Linux lets a server that sets SO_REUSEADDR (as
    those of Java and Python do) listen there all the same, as often as it likes; another reservation binds without
    it and fails.
    """

    def __init__(self, offsets: tuple[int, ...] = (0,)) -> None:
        for _ in range(1000):
            number = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST)
            with ExitStack() as bound:
                try:
                    for offset in offsets:
                        bound.enter_context(_bound(number + offset))
                except OSError:
                    continue
                self.number = number
                weakref.finalize(self, bound.pop_all().close)
                return
        raise OSError("no free port found")


def _bound(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    found = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if both:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", port))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        found.close()
        raise
    return found
