"""`commitlogfs mount`: serve a pool, with a keeper over the daemon unless a service manager does its work."""

import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from commitlogfs.console import interrupts, settings
from commitlogfs.console.errors import RefusedError, UsageError, UserError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.daemon import daemonize, lifecycle
from commitlogfs.mount.daemon.arguments import configuration_of, make_pool_if_none
from commitlogfs.mount.keeper.options import DEFAULT_WATCHDOG_S, Options
from commitlogfs.mount.linux import descriptor_store, logs, mountinfo, priority
from commitlogfs.mount.location.runtime_directory import socket_path

_LONGEST_WATCHDOG_S = 86400.0
_MOST_LINKS = 40


def register(app: typer.Typer) -> None:
    app.command()(mount)


def mount(
    which: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE|MOUNTPOINT", help="With --init: the mountpoint.", show_default=False),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            metavar="DISK,DISK,...",
            help="For a first try: make a pool of these folders if they are none yet, and mount it.",
        ),
    ] = None,
    segment_size: Annotated[
        str | None,
        typer.Option(help="With --init: the broker's mappedFileSizeCommitLog. Default: 1GiB.", metavar="SIZE"),
    ] = None,
    background: Annotated[
        bool, typer.Option("--daemon", help="Return as soon as the mount answers; serve in the background.")
    ] = False,
    no_keeper: Annotated[
        bool,
        typer.Option(
            "--no-keeper",
            help="Be the daemon itself: a service manager keeps the descriptors (the systemd unit), or nobody.",
        ),
    ] = False,
    watchdog: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Replace a daemon that does not answer for so long; 0: never."),
    ] = DEFAULT_WATCHDOG_S,
    no_standby: Annotated[
        bool,
        typer.Option(
            "--no-standby",
            help="Load no second daemon in advance: less memory, but a successor comes later.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every refused request too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
    report_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> int:
    """Mount a pool and serve it until it is unmounted. In the foreground unless --daemon is given.

    Everything is checked before anything is mounted: disks, identity, duplicates, gaps, other users of the
    folders. The bare mountpoint gets a guard, so that a broker started without the mount refuses to run.

    This process becomes the keeper of the mount: it starts the daemon, replaces one that dies or hangs, and passes
    signals on to it. Open files and mappings go on meanwhile.

    EXIT STATUS: 0 unmounted (or, with --daemon, serving); 1 the daemon died again and again; 2 bad options or
    configuration; 4 refused.
    """
    report = daemonize.Report(report_fd)
    try:
        verbose, quiet = verbose or settings.current().verbose, quiet or settings.current().quiet
        if init is None:
            which = settings.or_default(which)
        _check_watchdog(watchdog)
        config = configuration_of(which, init, segment_size)
        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        if background or not no_keeper:
            socket_path(config.name)  # an impossible one is refused before anything is made for it
            with logs.logging_to(level=level):
                lifecycle.check_mountpoint(config)
                if init is not None:
                    make_pool_if_none(config)
            serve = _daemon_command(which, init, segment_size, config, ["-v"] * verbose + ["-q"] * quiet)
            keeper = Options(
                config.name,
                mountinfo.resolve_path(config.mountpoint),
                tuple(serve),
                watchdog,
                level,
                report_fd,
                standby=not no_standby,
            )
            if not background:
                _become(keeper)
            pid = _start_in_background(None if no_keeper else keeper, serve, config.name)
            if not quiet:
                what = "daemon" if no_keeper else "keeper"
                typer.echo(f"{config.mountpoint}: mounted, {what} {pid}, log {daemonize.log_file(config.name)}")
            return 0
        priority.raise_priority()
        priority.lock_memory()
        with logs.logging_to(level=level):
            if init is not None:
                make_pool_if_none(config)
            return int(lifecycle.run(config, descriptor_store.take_received(), report.ready))
    except UserError as error:
        report.failed(error)
        raise


def _check_watchdog(seconds: float) -> None:
    """A look through the mount takes a fraction of a second on a busy machine. Raises UsageError."""
    if seconds != 0 and not 1 <= seconds <= _LONGEST_WATCHDOG_S:
        raise UsageError(f"--watchdog: {seconds:g}: must be 0 (never) or from 1 to {_LONGEST_WATCHDOG_S:g} seconds")


def _become(keeper: Options) -> NoReturn:
    """Raises RefusedError."""
    interrupts.block()  # until the keeper can take it
    try:
        os.execv(sys.executable, keeper.command_line())  # noqa: S606 - no shell is wanted
    except OSError as error:
        interrupts.unblock()
        raise RefusedError(
            f"{keeper.name}: the keeper cannot be started: {sys.executable}: {error.strerror}"
        ) from error


def _start_in_background(keeper: Options | None, serve: list[str], name: str) -> int:
    if keeper is None:
        return daemonize.start(lambda report_fd: [*serve, "--report-fd", str(report_fd)], name)
    return daemonize.start(lambda report_fd: dataclasses.replace(keeper, report_fd=report_fd).command_line(), name)


def _daemon_command(
    which: str | None, init: str | None, segment_size: str | None, config: Config, flags: list[str]
) -> list[str]:
    """Starts the daemon itself, from any folder: all paths are absolute."""
    assert which is not None
    command = daemon_program()
    if init is None:
        command.append(config.file if _is_path(which) and config.file is not None else which)
    else:
        command += [config.mountpoint, "--init", ",".join(disk.path for disk in config.disks)]
        command += ["--segment-size", segment_size] if segment_size is not None else []
    return command + flags


def daemon_program() -> list[str]:
    """The start of the daemon's command line: where there are installed commands, the one beside this command.

    It is named by the path, with its links, by which this one was called. A keeper uses it for as long as the mount
    lives, so an upgrade that changes a link (docs/installing.md) takes effect at the next `restart`.
    """
    called = Path(sys.argv[0]).absolute()
    folder = called.resolve().parent
    for _ in range(_MOST_LINKS):
        beside = called.with_name("commitlogfs-daemon")
        if beside.exists() and beside.resolve().parent == folder:
            return [str(beside)]
        if not called.is_symlink():
            break
        called = called.parent / called.readlink()
    return [sys.executable, "-P", "-m", "commitlogfs.mount.serve"]


def _is_path(which: str) -> bool:
    return "/" in which or which.endswith(".toml") or not which
