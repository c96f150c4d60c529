"""`commitlogfs exporter`: a plug-in of the command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from commitlogfs.console.errors import UsageError
from commitlogfs.console.units import parse_duration_ms
from commitlogfs.mount.config.timing import timing_from

DEFAULT_LISTEN = "127.0.0.1:9639"
DEFAULT_INTERVAL = "15s"


def register(app: typer.Typer) -> None:
    app.command()(exporter)


def exporter(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names of the mounts.", show_default="all of this machine"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the HTTP server.",
            show_default=f"{DEFAULT_LISTEN}; none with --textfile",
        ),
    ] = None,
    textfile: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write DIR/commitlogfs.prom for node_exporter's textfile collector."),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time between two textfiles.", show_default=DEFAULT_INTERVAL),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the metrics, or write the textfile, and end.")
    ] = False,
    certfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate (PEM, with its chain).")
    ] = None,
    keyfile: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    auth: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Let only these users read: lines `user:bcrypt-hash` (htpasswd -nB)."),
    ] = None,
) -> None:
    """Serve the state of all mounts over HTTP: /metrics for Prometheus, a live page at /, /healthz and /api/status.

    It needs no rights but to read the status sockets: run it as a user in the group `commitlogfs`. A daemon that
    hangs delays no answer; its mount has `commitlogfs_up 0` and the latest figures then.

    EXIT STATUS: 0 stopped by SIGTERM or SIGINT; 2 bad options; 4 the address or the directory cannot be used.
    """
    if once and listen is not None:
        raise UsageError("--once: ends at once, so it cannot --listen")
    interval_s = _interval_s(interval, is_used=textfile is not None and not once)
    serves = not once and (listen is not None or textfile is None)
    _check_http({"--certfile": certfile, "--keyfile": keyfile, "--auth": auth}, serves=serves)
    try:  # imported here, because every command loads this module
        from commitlogfs.exporter import server
        from commitlogfs.exporter import textfile as files
        from commitlogfs.exporter.authentication import read_users
    except ModuleNotFoundError as error:
        raise UsageError(
            f"exporter: {error.name} is not installed; pip install 'commitlogfs[exporter]' installs it"
        ) from None
    wanted = server.Settings(
        listen=(listen or DEFAULT_LISTEN) if serves else None,
        textfile=textfile,
        interval_s=interval_s,
        timing=timing_from(os.environ).exporter,
        names=tuple(names or ()),
        certificate=certfile,
        key=keyfile,
        users=None if auth is None else read_users(auth),
    )
    if not once:
        server.run(wanted)
        return
    text = server.run_once(wanted)
    if textfile is None:
        typer.echo(text.decode(), nl=False)
    else:
        files.write(textfile, text)


def _check_http(options: Mapping[str, Path | None], *, serves: bool) -> None:
    """Raises UsageError for an option that has no effect."""
    given = [option for option, value in options.items() if value is not None]
    if given and not serves:
        raise UsageError(f"{given[0]}: no HTTP is served; give --listen")
    if "--keyfile" in given and "--certfile" not in given:
        raise UsageError("--keyfile: give --certfile, too")


def _interval_s(given: str | None, *, is_used: bool) -> float:
    """Raises UsageError."""
    if given is not None and not is_used:
        raise UsageError("--interval: only a --textfile that is written again and again has one")
    text = given or DEFAULT_INTERVAL
    try:
        seconds = parse_duration_ms(text) / 1000
    except ValueError as error:
        raise UsageError(f"--interval: {error}") from None
    if seconds < 1:
        raise UsageError(f"--interval: {text} is too short; give at least 1s")
    return seconds
