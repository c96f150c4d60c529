"""Free ports on 127.0.0.1."""

import secrets
import socket
from contextlib import ExitStack

# Below what the kernel gives to outgoing connections, so that none takes a port between choice and use.
_LOWEST, _HIGHEST = 12_000, 32_000


def free_port(offsets: tuple[int, ...] = (0,)) -> int:
    """A port such that port + o is free on all addresses for every o of `offsets`."""
    for _ in range(1000):
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST)
        if all(_is_free(port + offset) for offset in offsets):
            return port
    raise OSError("no free port found")


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - not listening
            try:
                probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            except OSError:
                continue  # no IPv6 here
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
