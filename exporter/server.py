"""The process: finds mounts, serves HTTP and writes the textfile until it is told to stop."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.exporter import textfile
from commitlogfs.exporter.app import make_app
from commitlogfs.exporter.authentication import Users
from commitlogfs.exporter.figures import Figures
from commitlogfs.exporter.impatient import make_protocol
from commitlogfs.exporter.mounts import Discovery
from commitlogfs.store.timing import ExporterTiming

LARGEST_HEAD: Final = 16 << 10
BACKLOG: Final = 256
STOP_TIMEOUT_S: Final = 1


@dataclass(frozen=True, slots=True)
class Settings:
    listen: str | None
    """HOST:PORT; None serves no HTTP."""
    textfile: Path | None
    interval_s: float
    timing: ExporterTiming
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    users: Users | None = None


def run_once(settings: Settings) -> bytes:
    """The metrics of this moment."""

    async def compose() -> bytes:
        async with Figures(Discovery(settings.names).find) as figures:
            return await textfile.compose(figures)

    return asyncio.run(compose())


def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises UsageError, RefusedError."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # not each malformed request
    listening = None if settings.listen is None else _listen(settings.listen)
    with contextlib.ExitStack() as stack:
        if listening is not None:
            stack.callback(listening.close)
        tls = _load_certificate(settings)
        asyncio.run(_run(settings, listening, tls))


async def _run(settings: Settings, listening: socket.socket | None, tls: ssl.SSLContext | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Figures(Discovery(settings.names).find) as figures:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        if settings.textfile is not None:
            writing = textfile.keep_writing(settings.textfile, figures, settings.interval_s)
            tasks.append(asyncio.create_task(writing))
        server = None
        if listening is not None:
            server = _Server(_configure(figures, settings, tls))
            tasks.append(asyncio.create_task(server.serve([listening])))
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if server is not None:
            server.should_exit = True
            await asyncio.wait(tasks[-1:])
        for task in pending:
            task.cancel()
        for task in done:
            task.result()


class _Server(uvicorn.Server):
    """One that leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: str) -> socket.socket:
    """Raises UsageError for a text that is no address, RefusedError if it cannot be used."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16):
        raise UsageError(f"--listen: {address!r} is not HOST:PORT; write for example 127.0.0.1:9639 or [::1]:9639")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
        except OSError:
            listening.close()
            raise
    except UnicodeError:  # IDNA takes no label that is empty or longer than 63 characters
        raise UsageError(f"--listen: {host!r} is no host name; write for example 127.0.0.1:9639") from None
    except OSError as error:
        raise RefusedError(f"{address}: cannot listen there ({error.strerror}); choose another --listen") from error
    return listening


def _configure(figures: Figures, settings: Settings, tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        make_app(figures, settings.users),
        http=make_protocol(settings.timing),
        ws="none",
        lifespan="off",
        log_config=None,  # errors go to standard error
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    config.load()
    config.ssl = tls
    return config


def _load_certificate(settings: Settings) -> ssl.SSLContext | None:
    """Raises UsageError."""
    if settings.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{settings.certificate}: no usable certificate and key ({error.strerror or error}); give PEM files"
        ) from None
    return context
