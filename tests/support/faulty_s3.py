"""A proxy on loopback before an S3 server: it can be slow, refuse requests, and confirm what it has not stored."""

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.s3_server import HOST

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
_REPLACED = {"expect", "transfer-encoding", "content-length"}
_DELAY_S = 0.3
_DEADLINE_S = 60.0


class Kind(Enum):
    SLOW = auto()
    BUSY = auto()
    """503: clients retry it."""
    DENIED = auto()
    """403: clients do not retry it."""
    LOST = auto()
    """200 for an object that is not stored."""


@dataclass(slots=True)
class Fault:
    """The treatment of the next requests with this method whose path matches."""

    kind: Kind
    method: str
    path: str
    """A regular expression, searched in the path and query."""
    times: int = 1 << 30
    met: int = 0
    """Requests that were treated."""


class FaultyS3:
    """The proxy's faults; they may change while it runs."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.endpoint = ""
        """HOST:PORT of the proxy."""
        self.faults: list[Fault] = []
        self._lock = threading.Lock()

    def take(self, method: str, path: str) -> Kind | None:
        """The treatment of this request; None to pass it on."""
        with self._lock:
            for fault in self.faults:
                if fault.method == method and fault.met < fault.times and re.search(fault.path, path):
                    fault.met += 1
                    return fault.kind
        return None


_REFUSALS = {Kind.BUSY: (503, "SlowDown"), Kind.DENIED: (403, "AccessDenied")}


def _handler(proxy: FaultyS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self._body()
            kind = proxy.take(self.command, self.path)
            if kind is Kind.SLOW:
                time.sleep(_DELAY_S)
            if kind in _REFUSALS:
                status, code = _REFUSALS[kind]
                text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
                self._answer(status, [("Content-Type", "application/xml")], text.encode())
            elif kind is Kind.LOST:
                self._answer(200, [("ETag", '"d41d8cd98f00b204e9800998ecf8427e"')], b"")
            else:
                self._pass_on(body)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))
            body = bytearray()
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return bytes(body)

        def _pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(proxy.server, timeout=_DEADLINE_S)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _REPLACED}
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
                kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
                self._answer(answer.status, kept, content, answer.getheader("Content-Length"))
            finally:
                connection.close()

        def _answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, length: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            is_head = self.command == "HEAD"
            self.send_header("Content-Length", length or "0" if is_head else str(len(content)))
            self.end_headers()
            if not is_head:
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


@contextmanager
def faulty_s3(server: str) -> Iterator[FaultyS3]:
    """A proxy before the server at HOST:PORT."""
    proxy = FaultyS3(server)
    listener = ThreadingHTTPServer((HOST, 0), _handler(proxy))
    listener.daemon_threads = True
    proxy.endpoint = f"{HOST}:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
