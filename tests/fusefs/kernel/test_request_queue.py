"""Whether requests are taken, with a socket in the place of the connection."""

import socket

from commitlogfs.fusefs.kernel.request_queue import RequestQueue


def test_requests_that_wait_while_none_is_taken() -> None:
    taken = 0
    kernel, connection = socket.socketpair()
    with kernel, connection:
        queue = RequestQueue(connection.fileno(), lambda: taken)
        assert not queue.has_stopped(), "none waits"
        kernel.send(b"request")
        assert not queue.has_stopped(), "it may have come just now"
        assert queue.has_stopped()
        assert queue.has_stopped()
        taken += 1
        assert not queue.has_stopped(), "a busy daemon"
        assert queue.has_stopped()
        connection.recv(100)
        assert not queue.has_stopped()
        kernel.send(b"request")
        assert not queue.has_stopped(), "another one, of which nothing is known yet"
