"""A daemon at its socket that answers what a test gives it: one of a former version, or one that lies or hangs."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlogfs.mount.location.control_client import PACKET_BYTES, UNKNOWN_REQUEST

_REQUEST_BYTES = 4096


class ScriptedDaemon:
    """`asked` are the verbs so far."""

    def __init__(self, path: Path, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.held: set[str] = set()
        """Verbs that it answers only after `release`."""
        self._released = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            request = peer.recv(_REQUEST_BYTES)
            if not request:
                return  # it was only looked whether somebody listens
            verb = json.loads(request)["verb"]
            self.asked.append(verb)
            if verb in self.held:
                self._released.wait()
            text = json.dumps(self.answers.get(verb, {"error": UNKNOWN_REQUEST})).encode()
            *others, last = (text[at : at + PACKET_BYTES] for at in range(0, len(text), PACKET_BYTES))
            for part in others:
                peer.send(b"+" + part)
            peer.send(b"." + last)

    def release(self) -> None:
        self._released.set()

    def end(self) -> None:
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def scripted_daemon(path: Path, **answers: Any) -> Iterator[ScriptedDaemon]:
    """It listens at `path` and answers these verbs."""
    made = ScriptedDaemon(path, answers)
    try:
        yield made
    finally:
        made.end()
        path.unlink()
