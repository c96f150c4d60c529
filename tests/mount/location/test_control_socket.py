"""The control socket, served and asked in this process."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.waiting import PATIENCE_S

from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.control_socket import Answer, Reply


def test_what_follows_an_answer_waits_until_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that hands its mount over ends: on a busy machine before its answer was encoded in a thread."""
    encode = control_socket._encode

    def encode_slowly(document: dict[str, Any]) -> bytes:
        trio.from_thread.run(trio.testing.wait_all_tasks_blocked)
        return encode(document)

    monkeypatch.setattr(control_socket, "_encode", encode_slowly)
    path = tmp_path / "test.sock"
    answers: list[dict[str, Any]] = []
    listener = control_socket.bind(path)

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def end(_request: dict[str, Any]) -> Reply:
                return Reply({"pid": 1}, nursery.cancel_scope.cancel)

            verbs: dict[str, Answer] = {"end": end}
            nursery.start_soon(control_socket.serve, listener, verbs, lambda: None)
            peer.start()

    peer = threading.Thread(target=lambda: answers.append(control_socket.ask(path, "end", PATIENCE_S)))
    with listener:
        trio.run(main)
    peer.join()
    assert answers == [{"pid": 1}]
