"""HTTP/1.1 connections that are closed when their client is slow: uvicorn waits for it without a limit."""

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from commitlogfs.store.timing import ExporterTiming

MOST_CONNECTIONS: Final = 200
"""A connection beyond these is closed at once; each holds a descriptor and memory."""


def make_protocol(timing: ExporterTiming) -> type[H11Protocol]:
    """Class of connections with these times. uvicorn makes the connections itself, so it needs a class."""

    class Protocol(_ImpatientProtocol):
        times = timing

    return Protocol


class _ImpatientProtocol(H11Protocol):
    times: ClassVar[ExporterTiming]
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self.transport.abort()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_longer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes less than it asks for."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_longer()

    def _wait(self) -> None:
        self._wait_no_longer()
        self._waiting = self.loop.call_later(self.times.request_s, self._end)

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait for the client to take the rest
        else:
            self.transport.close()

    def _wait_no_longer(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
